#ifndef TRYST_CHANNEL_OPS_SERVE_SESSION_H_
#define TRYST_CHANNEL_OPS_SERVE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "channel/bootstrap.h"
#include "channel/ops/farewell.h"
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
  int64_t retain_ms = 60'000;  // How long it waits for a consumer whose link is over.
};

// The producer's half of a session: one life of one consumer, over as many links as that takes,
// with one at a time. Between two links it keeps the slots, their takes and answers until the
// consumer repeats its requests, ends the session, does not come back for retain_ms, or is seen to
// be gone. A transport brings the link. Poller thread only.
class ServeSession : protected ServeWire {
 public:
  ~ServeSession() override;  // REQUIRES: Drained().
  // Opens, or replaces, the link. An earlier one is drained first.
  void OnHello(const Hello& hello, HelloDone done);
  // The consumer goes on by another path. Tensors that were taken for it here and have not landed
  // are given back before `done`, so that the other path finds them.
  void OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done);
  // Hears what the consumer has said up to now, which may end the session.
  virtual void HearLast() {}
  // Ends the session: nothing is answered or kept any more. `why` is for the log.
  void Close(const absl::Status& why);
  bool closed() const { return closed_; }
  bool Drained() const { return closed_ && !HasLink() && takes_idle(); }
  bool takes_idle() const { return slots_.takes_idle(); }
  // The consumer has been gone for too long, so the owner may close this.
  virtual bool Abandoned() const { return abandoned_; }

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  virtual ServeCounters counters() const { return counters_; }
  size_t told_keys() const { return slots_.told_keys(); }
  PathView View() const;
  virtual std::string Explain() const;
  void ListOps(LiveOps* ops) const { slots_.ListOps(ops); }

 protected:
  // `consumer` is the first hello.
  ServeSession(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
               ServeSlotsOptions slots, const Hello& consumer, uint64_t session);

  virtual bool HasLink() const = 0;  // Or one that is about to open or to be gone.
  // It ends; OnLinkGone() follows, when no work of it is under way any more.
  virtual void BreakLink(const absl::Status& why) = 0;
  // Answers a hello for a link. OnLinkOpen() is called in it, or later. REQUIRES: there is none.
  virtual absl::StatusOr<Hello> OpenLink(const Hello& hello) = 0;
  // Hears what is written down of the last link that was open: what was lent over it is lent no
  // longer, and slots whose answers the consumer has accepted are free. Returns how the others end:
  // kNotAccepted if it accepts nothing more, or kLeft.
  virtual ServeEvent EndFormer() { return ServeEvent::kLeft; }
  // How the link is: View::health, state and note.
  virtual void ViewLink(PathView* view) const = 0;

  Hello NewAnswer(uint64_t epoch) const;
  void OnLinkOpen(uint64_t epoch);
  void OnLinkGone();
  // Its end was asked for by a hello.
  bool is_replaced() const { return next_hello_.has_value() || farewell_.has_value(); }
  bool any_unanswered() const;  // Is the consumer still to be told of any?
  void OnTakesIdle() override { FinishFarewell(); }

  // Constant after construction.
  Poller* const poller_;
  const std::string path_;
  const std::string self_;
  const uint64_t self_incarnation_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t session_;

  // Poller thread only.
  uint64_t epoch_ = 0;
  int64_t state_since_ns_ = 0;  // When the link, or its absence, began.
  ServeCounters counters_;
  ServeSlots slots_;

 private:
  absl::Status StartEpoch(const Hello& hello);
  void Accept(const Hello& hello, HelloDone done);
  void WaitForConsumer();
  void OnNotBack();
  void FinishFarewell();

  const int64_t retain_ns_;
  SlotWatch* const watch_;  // May be null.
  bool closed_ = false;
  bool abandoned_ = false;
  absl::optional<std::pair<Hello, HelloDone>> next_hello_;  // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;    // Its answer waits for takes to end.
  MemberTimer<ServeSession> retain_timer_{this, &ServeSession::OnNotBack};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_SESSION_H_
