#include "rendezvous/step_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "rendezvous/all_run.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/match_core.h"

namespace tryst {
namespace {

constexpr int64_t kWalkAgainNs = 1'000'000;

std::vector<std::pair<std::string, uint64_t>> SortedDevices(const StepRegistry::Options& options) {
  std::vector<std::pair<std::string, uint64_t>> devices(options.incarnations.begin(),
                                                        options.incarnations.end());
  std::sort(devices.begin(), devices.end());
  return devices;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRegistry>> StepRegistry::Make(const Options& options,
                                                                 Alarms* alarms,
                                                                 TensorFetcher* fetcher) {
  DeviceName name;
  const std::string device = absl::StrCat(options.worker, "/device:CPU:0");
  if (!ParseDeviceName(device, &name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", options.worker, "\" is not a worker's name (/job:J/replica:R/task:T)"));
  }
  if (options.max_held_bytes < 0 || options.step.max_held_bytes < 0) {
    return absl::InvalidArgumentError(
        "max_held_bytes of the process and of a step must not be negative: set 0 for no limit");
  }
  if (options.max_held_bytes != 0 && options.step.max_held_bytes > options.max_held_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_held_bytes of a step, ", options.step.max_held_bytes,
                     ", is above that of the process, ", options.max_held_bytes,
                     ": lower the first or raise the second"));
  }
  if (options.step.shards < 1 || options.step.shards > 1024) {
    return absl::InvalidArgumentError("a step registry needs 1 to 1024 shards");
  }
  return std::unique_ptr<StepRegistry>(new StepRegistry(options, alarms, fetcher));
}

StepRegistry::StepRegistry(const Options& options, Alarms* alarms, TensorFetcher* fetcher)
    : options_(options),
      devices_(SortedDevices(options)),
      alarms_(alarms),
      fetcher_(fetcher),
      held_(std::make_shared<HeldBytes>(options.max_held_bytes)),
      tombstones_(options.max_tombstones, absl::ToInt64Nanoseconds(options.tombstone_ttl)) {}

StepRegistry::~StepRegistry() {
  std::vector<int64_t> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, step] : steps_) ids.push_back(id);
  }
  AllRun all;
  for (const int64_t id : ids)
    all.Run([&] { EndStep(id, absl::AbortedError("this worker is stopping")); });
  all.ThrowFirst();
  MutexLock lock(&mu_);
  while (alarms_set_ != 0) alarms_done_.Wait(&mu_);
}

absl::StatusOr<std::shared_ptr<Rendezvous>> StepRegistry::StartStep(int64_t step_id) {
  MutexLock lock(&mu_);
  if (!closed_.ok()) return closed_;
  if (const absl::Status* over = tombstones_.Find(step_id, alarms_->clock().NowNs())) return *over;
  const auto found = steps_.find(step_id);
  Step* step = found == steps_.end() ? NewStep(step_id) : &found->second;
  if (!step->started) {
    step->started = true;
    LeaveUnstarted(step);
    ++own_.steps_started;
    CancelAlarm(&step->expiry);
  }
  return std::shared_ptr<Rendezvous>(step->rendezvous);
}

absl::Status StepRegistry::BeginStep(int64_t step_id) {
  {
    MutexLock lock(&mu_);
    if (steps_.size() >= options_.max_begun_by_peers && !steps_.contains(step_id)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Step ", step_id, " was not begun: ", steps_.size(),
                       " steps are open, and peers may begin no more: clean up finished steps"));
    }
  }
  return StartStep(step_id).status();
}

std::shared_ptr<Rendezvous> StepRegistry::FindStep(int64_t step_id) const {
  MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  if (found == steps_.end() || !found->second.started) return nullptr;
  return found->second.rendezvous;
}

void StepRegistry::LeaveUnstarted(Step* step) {
  --unstarted_;
  const auto share = unstarted_of_.find(step->asked_by);
  if (share != unstarted_of_.end() && --share->second == 0) unstarted_of_.erase(share);
  step->asked_by.clear();
}

// OK: it has not failed.
absl::Status StepRegistry::FailureOf(const Step& step) {
  absl::Status cause = step.rendezvous->table()->abort_cause();
  return cause.ok() ? step.derived : cause;  // The former still waits for its cause.
}

void StepRegistry::DropAbandonedSteps() {
  MutexLock lock(&mu_);
  (void)DropAbandoned();
}

size_t StepRegistry::DropAbandoned() {
  const size_t before = steps_.size();
  for (auto it = steps_.begin(); it != steps_.end();) {
    auto here = it++;
    Step& step = here->second;
    // A take that was admitted a moment ago holds it too, and is about to wait.
    if (step.started || step.rendezvous.use_count() > 1 ||
        step.rendezvous->counters().waiting_receives > 0) {
      continue;
    }
    CancelAlarm(&step.expiry);
    CancelAlarm(&step.grace);
    LeaveUnstarted(&step);
    const absl::Status cause = FailureOf(step);
    if (!cause.ok()) tombstones_.Add(here->first, MarkDerived(cause), alarms_->clock().NowNs());
    steps_.erase(here);
  }
  return before - steps_.size();
}

// A peer that asks on, and is refused, must not make others wait for the lock.
void StepRegistry::MakeRoom() {
  const int64_t now_ns = alarms_->clock().NowNs();
  if (walked_in_vain_ns_.has_value() && now_ns - *walked_in_vain_ns_ < kWalkAgainNs) return;
  walked_in_vain_ns_.reset();
  if (DropAbandoned() == 0) walked_in_vain_ns_ = now_ns;
}

StepRegistry::Step* StepRegistry::NewStep(int64_t step_id) {
  Step& step = steps_[step_id];
  step.rendezvous =
      RoutingRendezvous::Make(options_.worker, step_id, options_.step, alarms_, held_, fetcher_);
  ++unstarted_;
  return &step;
}

absl::Status StepRegistry::CheckTake(const TensorKey& key) const {
  if (key.empty()) return absl::InvalidArgumentError("The request for a tensor has an empty key");
  if (key.src_device().empty() || !key.IsFrom(options_.worker)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid rendezvous key (source is not ", options_.worker, "): ", key.text()));
  }
  if (devices_.empty()) return absl::OkStatus();
  // There are few devices, so a search is cheaper than hashing the name.
  const absl::string_view name = key.src_device();
  const auto device =
      std::lower_bound(devices_.begin(), devices_.end(), name,
                       [](const auto& one, absl::string_view name) { return one.first < name; });
  if (device == devices_.end() || device->first != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("There is no device ", key.src_device(), " on ", options_.worker));
  }
  if (device->second == key.src_incarnation()) return absl::OkStatus();
  return absl::AbortedError(absl::StrFormat(
      "RecvTensor expects a different device incarnation: %016x vs. %016x. %s was probably "
      "restarted",
      key.src_incarnation(), device->second, options_.worker));
}

absl::StatusOr<std::shared_ptr<RoutingRendezvous>> StepRegistry::Admit(int64_t step_id,
                                                                       absl::string_view consumer) {
  if (!closed_.ok()) return closed_;
  if (const absl::Status* over = tombstones_.Find(step_id, alarms_->clock().CoarseNowNs())) {
    ++own_.tombstone_hits;
    return *over;
  }
  const auto found = steps_.find(step_id);
  Step* step = found == steps_.end() ? nullptr : &found->second;
  const auto full = [this, consumer]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto share = unstarted_of_.find(consumer);
    return unstarted_ >= options_.max_unstarted_steps ||
           (share != unstarted_of_.end() && share->second >= options_.max_unstarted_of_consumer);
  };
  if (step == nullptr && full()) MakeRoom();
  if (step == nullptr && full()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Peers ask for tensors of ", unstarted_,
        " steps that this worker has not started, and may ask for no more: start those steps"));
  }
  if (step != nullptr && !step->started &&
      step->rendezvous->counters().waiting_receives >=
          static_cast<int64_t>(options_.max_deferred_per_step)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Peers ask for too many tensors of step ", step_id,
                     ", which this worker has not started: start that step"));
  }
  if (step == nullptr) {
    step = NewStep(step_id);
    step->asked_by = std::string(consumer);
    ++unstarted_of_[step->asked_by];
    step->expiry = SetAlarm(options_.unstarted_ttl, &StepRegistry::OnUnstarted, step_id);
  }
  if (!step->started) ++own_.deferred;
  return step->rendezvous;
}

void StepRegistry::Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) {
  if (!done) done = [](Received&&) {};
  absl::Status status = CheckTake(key);
  std::shared_ptr<RoutingRendezvous> rendezvous;
  std::shared_ptr<Answerer> answerer;
  {
    MutexLock lock(&mu_);
    ++own_.takes;
    if (status.ok() && IsAnswered(key)) {
      auto found = FindAnswerer(key.edge());
      status = found.status();
      if (found.ok()) answerer = *std::move(found);
    } else if (status.ok()) {
      auto admitted = Admit(step_id, key.dst().worker);
      status = admitted.status();
      if (admitted.ok()) rendezvous = *std::move(admitted);
    }
  }
  if (!status.ok()) {
    FailReceive(std::move(status), args.executor, std::move(done));
  } else if (answerer != nullptr) {
    answerer->Answer(key, args, std::move(done));
  } else {
    rendezvous->table()->RecvAsync(key, args, std::move(done));
  }
}

// A cached place may be out of date. Its step is over then, hence aborted, and gives no tensor.
bool StepRegistry::TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) {
  if (IsAnswered(*key)) return false;
  if (place->step == nullptr || place->step_id != step_id) {
    MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end() || !found->second.started) return false;
    place->step_id = step_id;
    place->step = found->second.rendezvous;
  }
  if (place->step->table()->TakeHere(key, taken)) return true;
  if (place->step->table()->aborted()) place->step = nullptr;
  return false;
}

std::shared_ptr<RoutingRendezvous> StepRegistry::Find(int64_t step_id) const {
  MutexLock lock(&mu_);
  const auto found = steps_.find(step_id);
  return found == steps_.end() ? nullptr : found->second.rendezvous;
}

void StepRegistry::SetAnswerer(const std::string& prefix, std::shared_ptr<Answerer> answerer) {
  TRYST_CHECK(prefix.size() > 1 && prefix.front() == '|' && prefix.back() == '|');
  MutexLock lock(&mu_);
  std::swap(answerers_[prefix], answerer);  // The former one goes when the lock has gone.
  if (answerers_[prefix] == nullptr) answerers_.erase(prefix);
}

bool StepRegistry::AddAnswerer(const std::string& prefix, std::shared_ptr<Answerer> answerer) {
  TRYST_CHECK(prefix.size() > 1 && prefix.front() == '|' && prefix.back() == '|');
  MutexLock lock(&mu_);
  return answerers_.emplace(prefix, std::move(answerer)).second;
}

void StepRegistry::RemoveAnswerer(const std::string& prefix, const Answerer* answerer) {
  std::shared_ptr<Answerer> gone;  // It goes when the lock has gone.
  MutexLock lock(&mu_);
  const auto found = answerers_.find(prefix);
  if (found == answerers_.end() || found->second.get() != answerer) return;
  gone = std::move(found->second);
  answerers_.erase(found);
}

absl::StatusOr<std::shared_ptr<Answerer>> StepRegistry::FindAnswerer(absl::string_view edge) {
  if (!closed_.ok()) return closed_;
  // One of thousands is found as fast: what may be its prefix ends with a '|'.
  for (size_t at = edge.find('|', 1); at != edge.npos; at = edge.find('|', at + 1)) {
    const auto found = answerers_.find(edge.substr(0, at + 1));
    if (found != answerers_.end()) return found->second;
  }
  return absl::UnavailableError(absl::StrCat("nothing on ", options_.worker,
                                             " answers requests for ", edge,
                                             " so far: try again, or start what answers them"));
}

void StepRegistry::GiveBack(int64_t step_id, const TensorKey& key, Received taken) {
  if (IsAnswered(key)) return;
  const std::shared_ptr<RoutingRendezvous> rendezvous = Find(step_id);
  if (rendezvous != nullptr) rendezvous->table()->GiveBack(key, std::move(taken));
}

Alarms::Token StepRegistry::SetAlarm(absl::Duration after, void (StepRegistry::*fire)(int64_t),
                                     int64_t step_id) {
  const Deadline at = Deadline::After(alarms_->clock(), after);
  if (at.is_never()) return Alarms::kNoToken;
  ++alarms_set_;
  return alarms_->Set(at, [this, fire, step_id] {
    (this->*fire)(step_id);
    MutexLock lock(&mu_);
    if (--alarms_set_ == 0) alarms_done_.NotifyAll();
  });
}

void StepRegistry::CancelAlarm(Alarms::Token* token) {
  if (*token != Alarms::kNoToken && alarms_->Cancel(*token)) --alarms_set_;
  *token = Alarms::kNoToken;
}

// Fails the requests of peers for a step that did not start in time. The step may still start later
// and be asked for again.
void StepRegistry::OnUnstarted(int64_t step_id) {
  std::shared_ptr<RoutingRendezvous> rendezvous;
  {
    MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end() || found->second.started) return;
    CancelAlarm(&found->second.grace);
    const absl::Status cause = FailureOf(found->second);
    rendezvous = std::move(found->second.rendezvous);
    LeaveUnstarted(&found->second);
    if (!cause.ok()) tombstones_.Add(step_id, MarkDerived(cause), alarms_->clock().NowNs());
    steps_.erase(found);
    ++own_.steps_expired;
  }
  rendezvous->StartAbort(absl::DeadlineExceededError(
      absl::StrCat("Step ", step_id, " was not started within ",
                   absl::FormatDuration(options_.unstarted_ttl), " of the first request for it")));
  Retire(*rendezvous);
}

void StepRegistry::AbortStep(int64_t step_id, const absl::Status& why) {
  const absl::Status status =
      why.ok() ? absl::AbortedError("the step was aborted and no reason was given") : why;
  std::shared_ptr<RoutingRendezvous> rendezvous;
  {
    MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) {
      tombstones_.Add(step_id, MarkDerived(status), alarms_->clock().NowNs());
      return;
    }
    Step& step = found->second;
    if (IsDerived(status) && options_.abort_grace > absl::ZeroDuration()) {
      if (!step.derived.ok()) return;  // An earlier call has set the alarm already.
      step.derived = status;
      step.grace = SetAlarm(options_.abort_grace, &StepRegistry::OnGraceOver, step_id);
      return;
    }
    CancelAlarm(&step.grace);
    rendezvous = step.rendezvous;
  }
  rendezvous->StartAbort(status);
}

void StepRegistry::OnGraceOver(int64_t step_id) {
  std::shared_ptr<RoutingRendezvous> rendezvous;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found == steps_.end()) return;
    rendezvous = found->second.rendezvous;
    status = found->second.derived;
  }
  rendezvous->StartAbort(status);
}

void StepRegistry::CleanupStep(int64_t step_id) {
  EndStep(step_id, absl::AbortedError(absl::StrCat("step ", step_id, " was cleaned up")));
}

void StepRegistry::CleanupAll(const absl::Status& why) {
  std::vector<int64_t> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, step] : steps_) ids.push_back(id);
  }
  AllRun all;
  for (const int64_t id : ids) {
    all.Run([&] {
      if (why.ok()) {
        CleanupStep(id);
      } else {
        EndStep(id, why);
      }
    });
  }
  all.ThrowFirst();
}

void StepRegistry::Close(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    if (closed_.ok()) closed_ = why;
  }
  CleanupAll(why);
}

void StepRegistry::EndStep(int64_t step_id, absl::Status why) {
  std::shared_ptr<RoutingRendezvous> rendezvous;
  {
    MutexLock lock(&mu_);
    const auto found = steps_.find(step_id);
    if (found != steps_.end()) {
      Step& step = found->second;
      CancelAlarm(&step.expiry);
      CancelAlarm(&step.grace);
      const absl::Status cause = FailureOf(step);
      if (!cause.ok()) why = cause;
      if (!step.started) LeaveUnstarted(&step);
      rendezvous = std::move(step.rendezvous);
      steps_.erase(found);
    }
    tombstones_.Add(step_id, MarkDerived(why), alarms_->clock().NowNs());
  }
  if (rendezvous == nullptr) return;
  AllRun all;
  all.Run([&] { rendezvous->StartAbort(why); });
  Retire(*rendezvous);
  all.ThrowFirst();
}

// Adds the counters of a step that is over to the registry's.
void StepRegistry::Retire(const RoutingRendezvous& rendezvous) {
  RendezvousCounters counted = rendezvous.counters();
  for (int i = 0; i < kCounterRowCount; ++i) {
    if (kCounterRows[i].gauge) counted.*kCounterRows[i].value = 0;
  }
  MutexLock lock(&mu_);
  own_ += counted;
}

RendezvousCounters StepRegistry::counters() const {
  MutexLock lock(&mu_);
  RendezvousCounters sum = own_;
  for (const auto& [id, step] : steps_) sum += step.rendezvous->counters();
  sum.steps = static_cast<int64_t>(steps_.size());
  sum.tombstones = static_cast<int64_t>(tombstones_.size());
  return sum;
}

WaitingItems StepRegistry::ListWaiting(size_t max_items, int64_t step_id) const {
  std::vector<std::shared_ptr<RoutingRendezvous>> steps;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, step] : steps_) {
      if (step_id < 0 || id == step_id) steps.push_back(step.rendezvous);
    }
  }
  WaitingItems items(max_items);
  for (const auto& step : steps) step->ListWaiting(&items);
  return items;
}

std::string StepRegistry::DumpWaitingText(size_t max_items, int64_t step_id) const {
  return WaitingText(ListWaiting(max_items, step_id), alarms_->clock().NowNs());
}

std::string StepRegistry::DumpWaitingJson(size_t max_items, int64_t step_id) const {
  return WaitingJson(ListWaiting(max_items, step_id), alarms_->clock().NowNs());
}

}  // namespace tryst
