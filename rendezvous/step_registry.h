#ifndef TRYST_RENDEZVOUS_STEP_REGISTRY_H_
#define TRYST_RENDEZVOUS_STEP_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_source.h"
#include "rendezvous/tombstones.h"

namespace tryst {

// The steps of one worker. Safe from any thread.
// A step is created when it is started or when a peer first asks for one of its tensors, whichever
// is earlier. Until it is started, the requests of peers wait in its table. After clean-up a
// tombstone answers for it. A step id is used once.
class StepRegistry final : public TensorSource {
 public:
  struct Options {
    std::string worker;  // "/job:J/replica:R/task:T"
    // The incarnation of each device of this worker, by its full name. Empty: not checked.
    absl::flat_hash_map<std::string, uint64_t> incarnations;
    LocalRendezvous::Options step;  // Includes the cap of one step.
    int64_t max_held_bytes = 0;     // The cap for waiting sends of all steps; 0: none.
    // Bounds of steps that peers ask for and that have not been started: their number, how long
    // each is kept, and the requests that wait in them.
    size_t max_unstarted_steps = 1024;
    size_t max_unstarted_of_consumer = 256;
    size_t max_deferred_per_step = 65536;
    size_t max_begun_by_peers = 16'384;  // Steps in all; above that, no peer may begin another.
    absl::Duration unstarted_ttl = absl::Minutes(10);
    size_t max_tombstones = 4096;
    absl::Duration tombstone_ttl = absl::Minutes(10);
    // How long a derived failure waits for its cause.
    absl::Duration abort_grace = absl::Seconds(1);
  };

  // kInvalidArgument: `worker` is not a worker's name, or a limit makes no sense. `alarms` and
  // `fetcher` (which may be null) outlive every `done`.
  static absl::StatusOr<std::unique_ptr<StepRegistry>> Make(const Options& options, Alarms* alarms,
                                                            TensorFetcher* fetcher);
  // Aborts every step with kAborted. Must not be called from a `done`.
  ~StepRegistry() override;

  // The step's rendezvous; the same one again when it has started already.
  // The tombstone's status when the step is over.
  absl::StatusOr<std::shared_ptr<Rendezvous>> StartStep(int64_t step_id);
  // Starts a step because a peer asked for it (BeginStep call). kResourceExhausted: too many were
  // started so.
  absl::Status BeginStep(int64_t step_id);
  // Null when the step has not started or is over.
  std::shared_ptr<Rendezvous> FindStep(int64_t step_id) const;
  // Fails the step at once if `why` is a cause. A derived status, the consequence of a failure
  // elsewhere, first waits abort_grace for its cause. A step that is unknown here is over
  // afterwards.
  void AbortStep(int64_t step_id, const absl::Status& why);
  // The step is over, well or badly. What still waits ends with kAborted, or with
  // the status of an abort that waits for its cause.
  void CleanupStep(int64_t step_id);
  // Aborts every step: with `why`, or with kAborted if `why` is OK.
  void CleanupAll(const absl::Status& why = absl::OkStatus());
  // Does the same, and refuses new steps: StartStep() and Take() fail with `why` from now on.
  // REQUIRES: !why.ok().
  void Close(const absl::Status& why);

  // Peers' takes of edges that begin with `prefix`, which begins and ends with '|', are answered by
  // `answerer` from now on, whatever their step; null: by nobody (kUnavailable). An answer that is
  // under way may still use the former one. Of several that fit the first in order is taken.
  void SetAnswerer(const std::string& prefix, std::shared_ptr<Answerer> answerer);
  // As SetAnswerer(); false, and nothing has happened: somebody answers them already.
  bool AddAnswerer(const std::string& prefix, std::shared_ptr<Answerer> answerer);
  // By nobody from now on, if by `answerer` until now.
  void RemoveAnswerer(const std::string& prefix, const Answerer* answerer);

  Alarms* alarms() const { return alarms_; }

  // Drops steps that have not started and in which no request waits any more, with the memory that
  // their requests took.
  void DropAbandonedSteps();

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) override;
  bool MayTake(const TensorKey& key) const override { return CheckTake(key).ok(); }
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override;

  RendezvousCounters counters() const;
  // What waits, for what and since when: the `max_items` longest waits, the longest first, and how
  // many were left out. Step -1: every step.
  std::string DumpWaitingText(size_t max_items = 1000, int64_t step_id = -1) const;
  std::string DumpWaitingJson(size_t max_items = 1000, int64_t step_id = -1) const;

 private:
  struct Step {
    std::shared_ptr<RoutingRendezvous> rendezvous;
    bool started = false;
    std::string asked_by;  // The consumer whose request created the step; while it is not started.
    Alarms::Token expiry = Alarms::kNoToken;  // While not started.
    Alarms::Token grace = Alarms::kNoToken;   // While a derived failure waits for its cause.
    absl::Status derived;
  };

  StepRegistry(const Options& options, Alarms* alarms, TensorFetcher* fetcher);
  absl::Status CheckTake(const TensorKey& key) const;
  // The step that serves a take, or why the take is refused.
  absl::StatusOr<std::shared_ptr<RoutingRendezvous>> Admit(int64_t step_id,
                                                           absl::string_view consumer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<Answerer>> FindAnswerer(absl::string_view edge)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<RoutingRendezvous> Find(int64_t step_id) const;
  // Takes the step out of the list of steps that have not started.
  void LeaveUnstarted(Step* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status FailureOf(const Step& step);
  // Returns how many there were. It walks all steps.
  size_t DropAbandoned() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step* NewStep(int64_t step_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Alarms::Token SetAlarm(absl::Duration after, void (StepRegistry::*fire)(int64_t), int64_t step_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelAlarm(Alarms::Token* token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnUnstarted(int64_t step_id);
  void OnGraceOver(int64_t step_id);
  void EndStep(int64_t step_id, absl::Status why);
  void Retire(const RoutingRendezvous& rendezvous);
  WaitingItems ListWaiting(size_t max_items, int64_t step_id) const;

  // Constant after construction.
  const Options options_;
  const std::vector<std::pair<std::string, uint64_t>> devices_;  // From options_, sorted by name.
  Alarms* const alarms_;
  TensorFetcher* const fetcher_;

  const std::shared_ptr<HeldBytes> held_;  // Steps that users still hold keep it alive.
  mutable Mutex mu_;
  CondVar alarms_done_;
  absl::flat_hash_map<int64_t, Step> steps_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Answerer>, std::less<>> answerers_
      ABSL_GUARDED_BY(mu_);                   // By prefix.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);  // OK: it is open.
  size_t unstarted_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, size_t> unstarted_of_ ABSL_GUARDED_BY(mu_);  // By consumer.
  // When DropAbandoned() last found none.
  absl::optional<int64_t> walked_in_vain_ns_ ABSL_GUARDED_BY(mu_);
  Tombstones tombstones_ ABSL_GUARDED_BY(mu_);
  RendezvousCounters own_ ABSL_GUARDED_BY(mu_);  // With those of the steps that are over.
  int64_t alarms_set_ ABSL_GUARDED_BY(mu_) = 0;  // Alarms that may still call.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_STEP_REGISTRY_H_
