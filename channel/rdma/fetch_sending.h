#ifndef TRYST_CHANNEL_RDMA_FETCH_SENDING_H_
#define TRYST_CHANNEL_RDMA_FETCH_SENDING_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/fetch_words.h"
#include "channel/rdma/fetch_destination.h"
#include "channel/rdma/key_habits.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/wire.h"

namespace tryst {

// The consumer's link of this epoch, and what it sends over it: keys, requests, cancels. Poller
// thread only.
class RdmaSender final : public FetchWords {
 public:
  RdmaSender(const FetchSession* session, FetchDestinations* destinations, KeyHabits* habits)
      : session_(session), destinations_(destinations), habits_(habits) {}

  std::unique_ptr<MessageLink> link;  // Null: there is none.
  uint64_t epoch = 0;                 // Its hello has it.
  bool ping_due = false;
  bool ping_out = false;  // The peer has not answered one that was sent.

  // A PONG has come. False: it answers nothing, since the peer has not read our PING.
  bool TakePong();
  void FlushSoon() override;
  bool AsksAtOnce() const override { return true; }
  bool HasRoom(const FetchAsk&) override { return link->message() != nullptr; }
  bool SendRequest(FetchAsk* ask, bool may_park) override;
  bool SendCancel(const FetchAsk& ask) override;
  bool SendPark(const FetchAsk& ask) override;
  bool SendWaits(FetchAsk* ask) override;
  bool SendUnwanted(absl::Span<const uint64_t> tickets) override;
  bool SendReplayed() override;
  bool SayOwn() override;
  uint64_t most_run_bytes() const override {
    return std::min<uint64_t>(kRunBytes, wire::EagerBytes(link->options().message_bytes));
  }
  size_t most_tickets() const override { return wire::kMaxTickets; }

 private:
  bool TellKey(FetchKey* key);

  const FetchSession* const session_;
  FetchDestinations* const destinations_;
  KeyHabits* const habits_;
  uint32_t ping_message_ = 0;  // Which had the first PING that is out.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_SENDING_H_
