#ifndef TRYST_CHANNEL_SHM_FETCH_LINK_H_
#define TRYST_CHANNEL_SHM_FETCH_LINK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/link_kind.h"
#include "channel/ops/paged_blocks.h"
#include "channel/poller/poller.h"
#include "channel/shm/fetch_ask.h"
#include "channel/shm/fetch_receiving.h"
#include "channel/shm/fetch_sending.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"

namespace tryst {

// The consumer's end of shared memory with one producer of this host.
//
// When the producer's process ends, requests to it end with kUnavailable at once. So do later
// requests to that life, unless a new process answers in its place. Requests that may be served by
// the next life wait for it, for at most patience_ms. A process that was stopped, and is silent for
// patience_ms, is treated as if it had ended. Delivered views stay readable whatever happens.
//
// Only this process writes our memory, so a caller's destination is free as soon as `done` runs.
// Poller thread only.
class ShmFetchLink final : public FetchLink,
                           private ShmHub::Watcher,
                           private ShmHub::Link,
                           private ShmReceiver::User,
                           private PollerFlush {
 public:
  ShmFetchLink(FetchSession* session, ShmHub* hub, const ShmOptions& options);
  ~ShmFetchLink() override;
  // This kind of link. The hub outlives what it makes.
  static FetchKind Kind(ShmHub* hub, const ShmOptions& options);

 private:
  static constexpr int kCellsPerTurn = 128;
  static constexpr int kPacketsPerLook = 8;
  static constexpr uint8_t kMisansweredMost = 3;  // Wrong answers after which a fetch fails.
  // Enough to read a full ring. A producer that is about to end may still write.
  static constexpr int kCellsAfterEnd = 2 * shm_wire::kMaxCells;

  // FetchLink.
  FetchWords* words() override { return &sender_; }
  absl::Status Begin(Hello* hello) override;
  absl::Status UseAnswer(const Hello& answer) override;
  bool EndAttempt(const absl::Status& why) override;
  void Break(const absl::Status& why) override { End(why, false); }
  bool Close(const absl::Status& why) override;
  std::string FarewellParameters(const std::string& farewell) const override;
  std::string Explain() const override;
  void HearWords() override;
  int64_t MostSilentMs() const override { return session_->options().patience_ms; }
  void AskForSign(bool again) override;
  absl::Status Overdue() override;
  FetchAsk* MakeAsk() override { return ask_blocks_.Make(); }
  void DropAsks() override { ask_blocks_.Clear(); }
  void DropKeys() override;
  absl::Status MayFillDevice(int ordinal) const override;
  void OnWaits(FetchOp* op) override;
  void DropMemory(FetchAsk* ask) override { ShmAsk::Of(ask)->DropTensor(); }
  // A tensor of which parts have arrived lies in the memory of the fetch in front.
  bool MayPass(const FetchAsk& ask, const FetchOp&) const override {
    return !ShmAsk::Of(ask).into.valid();
  }
  void OnLeaves(FetchAsk* ask, FetchState from) override;
  void OnLinkOver(FetchAsk* ask) override { DropMemory(ask); }
  uint64_t BytesOf(const FetchAsk& ask) const override;
  uint64_t messages() const override { return sender_.requests.written(); }

  // What the producer says on the socket.
  void OnSocket() override;
  bool HearPacket();  // False: there was none, or the link has ended.
  absl::StatusOr<LocalSocket::Received> ReadPacket();
  absl::Status ReadSocketFor(uint32_t segment) override;
  absl::Status OnPacket(const shm_wire::Packet& packet, OwnedFd fd);
  absl::Status OnWelcome(const shm_wire::Packet& packet, OwnedFd fd);
  void OnProducerGone();

  // The end of a link.
  // `life_over`: what was asked ends, since the producer's life is over; what is for its next life
  // waits.
  void End(const absl::Status& why, bool life_over);
  void DropLink(shm_wire::LinkEnd how);

  // Turns.
  bool PollLink() override;
  int ReadCells(int most);  // Returns how many it has read. The link may have ended in it.
  void ReadRest();
  void NoteMisanswered(const shm_wire::ReplyCell& cell);
  bool Ready() const override { return open() && sender_.replies.Ready(); }
  void FallAsleep() override;
  bool WakeUp() override;
  void Flush() override;
  bool open() const { return session_->open(); }
  bool has_more_to_say() const {
    return !sender_.words.empty() || session_->HasWords() || session_->SomebodyWaits();
  }

  FetchSession* const session_;
  ShmSender sender_;
  ShmReceiver receiver_;
  PagedBlocks<ShmAsk> ask_blocks_;
  uint32_t cells_seen_ = 0;        // What the session knows of: cells of this link,
  uint64_t brought_seen_ = 0;      // and tensors and parts of all links.
  uint64_t gone_incarnation_ = 0;  // The life whose process has ended, if no new one has answered.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_LINK_H_
