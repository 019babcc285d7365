#ifndef TRYST_CHANNEL_OPS_SERVE_SESSION_H_
#define TRYST_CHANNEL_OPS_SERVE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "channel/bootstrap.h"
#include "channel/ops/farewell.h"
#include "channel/ops/limits.h"
#include "channel/ops/link_kind.h"
#include "channel/ops/serve_link.h"
#include "channel/ops/serve_slots.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct ServeSessionOptions {
  std::string self;
  uint64_t self_incarnation = 0;
  Trace* trace = nullptr;      // The poller's; may be null.
  SlotWatch* watch = nullptr;  // Likewise.
  int64_t retain_ms = 60'000;  // How long it waits for a consumer whose link is over.
  // As ServeSlotsOptions has them.
  uint32_t max_parked = 1'000'000;
  uint32_t max_keys = limits::kMaxKeys;
};

// The producer's half of a session: one life of one consumer, over as many links as that takes, of
// whichever kind, with one at a time. Between two links it keeps the slots, their takes and answers
// until the consumer repeats its requests, ends the session, does not come back for retain_ms, or
// is seen to be gone. Poller thread only.
class ServeSession final {
 public:
  // `consumer` is the first hello.
  ServeSession(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
               const Hello& consumer, uint64_t session);
  ~ServeSession();  // REQUIRES: Drained().
  // Opens, or replaces, the link, by one of this kind, which outlives the session. An earlier one
  // is drained first.
  void OnHello(const Hello& hello, const ServeKind* kind, HelloDone done);
  // The consumer closes. Tensors that were taken for it and have not landed are given back before
  // `done`.
  void OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done);
  void HearLast() {
    if (link_ != nullptr) link_->HearLast();
  }
  // Ends the session: nothing is answered or kept any more. `why` is for the log.
  void Close(const absl::Status& why);
  bool closed() const { return closed_; }
  bool Drained() const { return closed_ && !has_link() && takes_idle(); }
  bool takes_idle() const { return slots_.takes_idle(); }
  // The consumer has been gone for too long, so the owner may close this.
  bool Abandoned() const { return abandoned_ || (link_ != nullptr && link_->Abandoned()); }

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  // The consumer only sees whether a path works, and has another session.
  bool probes() const { return probes_; }
  const std::string& path() const { return kind_->path; }  // That the link is of, or the last was.
  ServeCounters Counted() const;                           // Since links are of this kind.
  size_t told_keys() const { return slots_.told_keys(); }
  size_t Coming() const { return slots_.Coming(); }
  PathView View() const;
  std::string Explain() const;
  void ListOps(LiveOps* ops) const { slots_.ListOps(ops); }

  // ---- What happens to a link: for ServeLink ----
  Poller* poller() const { return poller_; }
  ServeLink* link() const { return link_.get(); }  // Null: no hello was answered yet.
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
  struct Waiting {
    Hello hello;
    const ServeKind* kind;
    HelloDone done;
  };

  absl::Status StartEpoch(const Hello& hello);
  Hello NewAnswer(const Hello& hello) const;
  void Accept(const Hello& hello, const ServeKind* kind, HelloDone done);
  void UseKind(const ServeKind* kind);
  void LeaveKind();
  bool has_link() const { return link_ != nullptr && link_->Exists(); }
  void WaitForConsumer();
  void OnNotBack();
  void FinishFarewell();
  // Its end was asked for by a hello.
  bool is_replaced() const { return next_hello_.has_value() || farewell_.has_value(); }

  // Constant after construction.
  Poller* const poller_;
  const std::string self_;
  const uint64_t self_incarnation_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const bool probes_;
  const uint64_t session_;
  const int64_t retain_ns_;
  SlotWatch* const watch_;  // May be null.

  // Poller thread only.
  uint64_t epoch_ = 0;
  int64_t state_since_ns_;
  ServeCounters counters_;
  ServeSlots slots_;
  const ServeKind* kind_ = nullptr;  // What link_ is of; null: there never was one.
  std::unique_ptr<ServeLink> link_;
  bool closed_ = false;
  bool abandoned_ = false;
  absl::optional<Waiting> next_hello_;                    // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;  // Its answer waits for takes to end.
  MemberTimer<ServeSession> retain_timer_{this, &ServeSession::OnNotBack};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_SESSION_H_
