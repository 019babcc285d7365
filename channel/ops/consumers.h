#ifndef TRYST_CHANNEL_OPS_CONSUMERS_H_
#define TRYST_CHANNEL_OPS_CONSUMERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/bootstrap.h"
#include "channel/ops/serve_session.h"
#include "channel/poller/member_timer.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The workers that fetch from us. Answers their hellos, whichever kind of link they are for, keeps
// a session for each, and gives up those that do not come back. A worker that sees whether another
// path works has a second one.
//
// A worker that comes anew waits until no take of its former session is under way: what such a take
// meets at this moment is then back, and no later tensor overtakes it.
//
// Poller thread only. REQUIRES at destruction: drained, or no hello ever came.
class Consumers {
 public:
  using Sessions = std::vector<std::unique_ptr<ServeSession>>;
  // Both outlive it. There are at most `most` sessions that fetch, as many that probe, and as many
  // that are about to be gone. Sessions are numbered from `seed` on.
  Consumers(Poller* poller, TensorSource* source, const ServeSessionOptions& options, uint32_t most,
            uint64_t seed);
  ~Consumers() { poller_->CancelTimer(&wait_timer_); }

  void OnHello(const Hello& hello, const ServeKind* kind, HelloDone done);
  // `farewell` is as the consumer has encoded it.
  void OnFarewell(const Hello& hello, absl::string_view farewell, HelloDone done);
  // A worker has a new incarnation: ends the sessions of its earlier ones.
  void NotePeer(const std::string& worker, uint64_t incarnation);
  // Call it now and then: ends the sessions of workers that are gone.
  void Maintain();
  void Reap();  // Destroys the sessions that have drained.

  // How many tensors are on their way to them, which Close() would cut off.
  size_t Coming() const;
  void Close(const absl::Status& why);
  bool Drained() const;

  // Explains the consumer `peer`, or all of them if `peer` is empty.
  void Explain(const std::string& peer, std::string* out) const;
  void View(const std::string& peer, std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;
  const Sessions& serving() const { return serving_; }
  size_t closing() const { return closing_.size(); }

 private:
  // Ends the sessions for which `is_over` returns true, with `why`.
  template <typename IsOver>
  void End(IsOver is_over, const absl::Status& why);
  ServeSession* FindLiving(const Hello& hello) const;  // Null: it has none.
  // Whether a closed session of this worker still has a take under way. Then `hello` waits.
  bool MustWait(const Hello& hello, const ServeKind* kind, absl::string_view farewell,
                HelloDone* done);
  void DropWaitingOfOthers(const std::string& worker, uint64_t incarnation);
  void HearWaiting();

  struct Waiting {
    Hello hello;
    const ServeKind* kind;  // Null: it is a farewell,
    std::string farewell;   // this one.
    HelloDone done;
  };

  Poller* const poller_;
  TensorSource* const source_;
  const ServeSessionOptions options_;
  const uint32_t most_;
  uint64_t next_session_;  // Counts from a random number.
  Sessions serving_;
  Sessions closing_;
  std::vector<Waiting> waiting_;  // At most one of each worker.
  MemberTimer<Consumers> wait_timer_{this, &Consumers::HearWaiting};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_CONSUMERS_H_
