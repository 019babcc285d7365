#ifndef TRYST_CHANNEL_RDMA_FETCH_LINK_H_
#define TRYST_CHANNEL_RDMA_FETCH_LINK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/paged_blocks.h"
#include "channel/rdma/fetch_ask.h"
#include "channel/rdma/fetch_destination.h"
#include "channel/rdma/fetch_receiving.h"
#include "channel/rdma/fetch_sending.h"
#include "channel/rdma/fetch_standing.h"
#include "channel/rdma/key_habits.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/rdma_options.h"

namespace tryst {

// The consumer's end of a link over a NIC.
//
// Owns every destination from the request until the producer's last word on its slot,
// or until the queue pair that could write it has drained. Poller thread only.
class RdmaFetchLink final : public FetchLink, private MessageLink::Owner {
 public:
  RdmaFetchLink(FetchSession* session, QueueHub* hub, LandingPool* landings,
                const RdmaOptions& options);
  // This kind of link over a NIC, whose path is `path`. The pointers outlive what it makes.
  static FetchKind Kind(const std::string& path, QueueHub* hub, LandingPool* landings,
                        const RdmaOptions& options);

  // Call it when landing room came back: the fetch that has waited longest takes some, or ends.
  // False: no fetch waits, or the room was not enough.
  bool TakeRoom() { return destinations_.TakeRoom(); }
  bool waits_for_room() const { return destinations_.any_wait(); }
  // Gives up one of the standing receives, if there are any: their room is needed.
  void DropOneStanding() { standing_.DropOne(); }
  // Adds the landing memory that peers may write for us, and the part of it that waits for a Send.
  void AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const;

 private:
  // FetchLink.
  FetchWords* words() override { return &sender_; }
  absl::Status Begin(Hello* hello) override;
  absl::Status UseAnswer(const Hello& answer) override;
  bool EndAttempt(const absl::Status& why) override;
  void Break(const absl::Status& why) override { sender_.link->Break(why); }
  bool Close(const absl::Status& why) override;
  bool Gone() const override { return sender_.link == nullptr; }
  std::string Explain() const override;
  void View(PathView* view) const override;
  int64_t MostSilentMs() const override;
  void AskForSign(bool again) override;
  absl::Status Overdue() override;
  absl::Status StuckParts() const;
  bool KeepsLastWord(const RdmaAsk& ask) const;
  FetchAsk* MakeAsk() override { return ask_blocks_.Make(); }
  void DropAsks() override { ask_blocks_.Clear(); }
  void DropKeys() override { habits_ = KeyHabits(); }
  absl::Status MayFillDevice(int ordinal) const override {
    return destinations_.landings()->nic()->ReachesDevice(ordinal);
  }
  FetchAsk* Foreseen(const FetchKey& key, int64_t step_id) override {
    return standing_.Foreseen(key, step_id);
  }
  void OnWaits(FetchOp* op) override;
  void OnNoSlot() override { standing_.DropOne(); }
  size_t asked_ahead() const override { return standing_.count(); }
  void OnEndAhead(FetchAsk* ask) override;
  bool MayBeWritten(const FetchAsk& ask) const override {
    return RdmaAsk::Of(ask).region != nullptr;
  }
  void DropMemory(FetchAsk* ask) override { destinations_.Drop(RdmaAsk::Of(ask)); }
  bool MayPass(const FetchAsk& ask, const FetchOp& next) const override {
    return destinations_.MayPass(RdmaAsk::Of(ask), next);
  }
  void OnLeaves(FetchAsk* ask, FetchState from) override {
    receiver_.OnLeaves(RdmaAsk::Of(ask), from);
  }
  void DropAhead(const absl::Status& why) override { standing_.DropAll(why); }
  void OnLinkOver(FetchAsk* ask) override;
  std::string WhyLate(const FetchOp& op) const override;
  uint64_t BytesOf(const FetchAsk& ask) const override;

  // MessageLink::Owner.
  void OnBroken(const absl::Status& why) override;
  void OnDrained() override;
  void OnFlush() override {
    if (session_->open()) session_->SayAll();
  }
  absl::Status OnRecord(const wire::Record& record) override { return receiver_.OnRecord(record); }
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override {
    return receiver_.OnTensorPart(lane, slot, generation);
  }

  // Constant after construction.
  FetchSession* const session_;
  QueueHub* const hub_;
  const RdmaOptions options_;

  // Poller thread only.
  KeyHabits habits_;
  FetchDestinations destinations_;
  RdmaSender sender_;
  StandingReceives standing_;
  RdmaReceiver receiver_;
  PagedBlocks<RdmaAsk> ask_blocks_;
  bool asks_for_less_ = false;  // The peer grants no messages of our size.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_LINK_H_
