#ifndef TRYST_RENDEZVOUS_FETCH_GROUP_H_
#define TRYST_RENDEZVOUS_FETCH_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/selection.h"

namespace tryst {

// What became of the receives of a group.
struct FenceReport {
  size_t ended_ok = 0;
  size_t cancelled = 0;
  size_t failed = 0;  // Those that ended otherwise.
  uint64_t bytes_landed = 0;
  std::string slowest_peer;  // Whose receive ended last after the cancel. Empty: none was left.
  int64_t waited_ns = 0;     // From the cancel to the end of the last one.
};

// Receives of any keys, steps and peers that are cancelled together. A receive ends when nothing of
// it lands any more, so the group's fence is a count of those that have ended. Thread-safe.
class FetchGroup {
 public:
  // `clock` outlives the receives.
  explicit FetchGroup(const Clock* clock);
  // Cancels what is under way. It does not wait: fences that were asked for are reported later.
  ~FetchGroup();
  FetchGroup(const FetchGroup&) = delete;
  FetchGroup& operator=(const FetchGroup&) = delete;

  // As of `step`, as a receive of this group. kCancelled, and nothing is received: StartCancel()
  // was called. Its args.cancellation cancels it alone.
  void RecvAsync(Rendezvous* step, const TensorKey& key, const RecvArgs& args, DoneFn done);
  void RecvSelectedAsync(Rendezvous* step, const TensorKey& key, const RecvArgs& args,
                         const SelectedLanding& landing, DoneFn done);
  // Starts some other receive by `start`, which gets what it is to be started with and is called at
  // most once, in here. `bytes` land if it ends well; kBytesOfTensor: those of what it brings.
  static constexpr uint64_t kBytesOfTensor = UINT64_MAX;
  void Start(absl::string_view peer, uint64_t bytes, const RecvArgs& args, DoneFn done,
             absl::FunctionRef<void(const RecvArgs& args, DoneFn done)> start);

  // Cancels what is under way and refuses what comes later. `fenced` runs once, when the `done` of
  // each receive has run: nothing is written any more to any of their destinations. Perhaps in
  // here; else where the last one ends. It may be called again, with another `fenced`.
  void StartCancel(absl::AnyInvocable<void(const FenceReport&) &&> fenced);
  size_t under_way() const;

 private:
  struct State;
  struct Member;

  const std::shared_ptr<State> state_;  // Receives under way share it.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_FETCH_GROUP_H_
