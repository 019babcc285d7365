#ifndef TRYST_CHANNEL_OPS_SERVE_SESSION_H_
#define TRYST_CHANNEL_OPS_SERVE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "channel/bootstrap.h"
#include "channel/ops/farewell.h"
#include "channel/ops/serve_link.h"
#include "channel/ops/serve_slots.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/trace/trace.h"
#include "channel/transport.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct ServeSessionOptions {
  std::string path;
  std::string self;
  uint64_t self_incarnation = 0;
  Trace* trace = nullptr;      // The poller's; may be null.
  SlotWatch* watch = nullptr;  // Likewise.
  int64_t retain_ms = 60'000;  // How long it waits for a consumer whose link is over.
};

// The producer's half of a session: one life of one consumer, over as many links as that takes,
// with one at a time. Between two links it keeps the slots, their takes and answers until the
// consumer repeats its requests, ends the session, does not come back for retain_ms, or is seen to
// be gone. Poller thread only.
class ServeSession final {
 public:
  using MakeLink = absl::FunctionRef<std::unique_ptr<ServeLink>(ServeSession* session)>;
  // `consumer` is the first hello.
  ServeSession(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
               ServeSlotsOptions slots, const Hello& consumer, uint64_t session, MakeLink make);
  ~ServeSession();  // REQUIRES: Drained().
  // Opens, or replaces, the link. An earlier one is drained first.
  void OnHello(const Hello& hello, HelloDone done);
  // The consumer goes on by another path. Tensors that were taken for it here and have not landed
  // are given back before `done`, so that the other path finds them.
  void OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done);
  void HearLast() { link_->HearLast(); }
  // Ends the session: nothing is answered or kept any more. `why` is for the log.
  void Close(const absl::Status& why);
  bool closed() const { return closed_; }
  bool Drained() const { return closed_ && !link_->Exists() && takes_idle(); }
  bool takes_idle() const { return slots_.takes_idle(); }
  // The consumer has been gone for too long, so the owner may close this.
  bool Abandoned() const { return abandoned_ || link_->Abandoned(); }

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  ServeCounters Counted() const;  // With those of the present link.
  size_t told_keys() const { return slots_.told_keys(); }
  PathView View() const;
  std::string Explain() const;
  void ListOps(LiveOps* ops) const { slots_.ListOps(ops); }

  // ---- What happens to a link: for ServeLink ----
  Poller* poller() const { return poller_; }
  ServeLink* link() const { return link_.get(); }
  ServeSlots* slots() { return &slots_; }
  const ServeSlots& slots() const { return slots_; }
  ServeCounters* counters() { return &counters_; }
  uint64_t number() const { return session_; }  // By which both ends know the session.
  uint64_t epoch() const { return epoch_; }
  int64_t state_since_ns() const { return state_since_ns_; }
  void NoteState() { state_since_ns_ = poller_->now_ns(); }  // The link, or its absence, begins.
  void OnLinkOpen(uint64_t epoch);
  void OnLinkBroken(const absl::Status& why);
  void OnLinkGone();
  void LogLoss(const absl::Status& why) const;

 private:
  absl::Status StartEpoch(const Hello& hello);
  Hello NewAnswer(uint64_t epoch) const;
  void Accept(const Hello& hello, HelloDone done);
  void WaitForConsumer();
  void OnNotBack();
  void FinishFarewell();
  // Its end was asked for by a hello.
  bool is_replaced() const { return next_hello_.has_value() || farewell_.has_value(); }

  // Constant after construction.
  Poller* const poller_;
  const std::string path_;
  const std::string self_;
  const uint64_t self_incarnation_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t session_;
  const int64_t retain_ns_;
  SlotWatch* const watch_;  // May be null.
  const std::unique_ptr<ServeLink> link_;

  // Poller thread only.
  uint64_t epoch_ = 0;
  int64_t state_since_ns_;
  ServeCounters counters_;
  ServeSlots slots_;
  bool closed_ = false;
  bool abandoned_ = false;
  absl::optional<std::pair<Hello, HelloDone>> next_hello_;  // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;    // Its answer waits for takes to end.
  MemberTimer<ServeSession> retain_timer_{this, &ServeSession::OnNotBack};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_SESSION_H_
