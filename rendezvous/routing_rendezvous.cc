#include "rendezvous/routing_rendezvous.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/all_run.h"
#include "rendezvous/answerer.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/device_handover.h"
#include "rendezvous/host_fetcher.h"
#include "rendezvous/kept_tensors.h"
#include "rendezvous/match_core.h"
#include "rendezvous/packed_tensor.h"

namespace tryst {
namespace {

// REQUIRES: it is packed.
void UnpackInPlace(Received* received) {
  absl::StatusOr<Tensor> unpacked = Unpack(received->tensor);
  received->tensor = Tensor();
  if (unpacked.ok()) {
    received->tensor = *std::move(unpacked);
  } else {
    received->status = unpacked.status();
  }
}

// REQUIRES: into.on_host().
absl::Status CopyInto(const TensorKey& key, const Tensor& tensor, const Tensor& into) {
  if (tensor.dtype() != into.dtype() || tensor.shape() != into.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The destination of ", key.text(), " is ", DTypeName(into.dtype()), into.shape().ToString(),
        " and the tensor is ", DTypeName(tensor.dtype()), tensor.shape().ToString()));
  }
  if (tensor.dtype() == DType::kString || !tensor.on_host()) {
    return absl::InvalidArgumentError(
        absl::StrCat("The tensor of ", key.text(),
                     " is none of numbers in host memory, and only those can be copied into its "
                     "destination: receive it without one"));
  }
  if (tensor.bytes() > 0) memcpy(into.mutable_data(), tensor.data(), tensor.bytes());
  return absl::OkStatus();
}

// Makes a tensor that is kept the one that a receive wants. On an error it is as it was.
absl::Status PutWhereWanted(const TensorKey& key, const RecvArgs& args, Tensor* tensor) {
  const bool into_device = HostFetcher::WantsDevice(key, args) && tensor->dtype() != DType::kString;
  if (into_device == tensor->on_host() || (into_device && args.destination.valid())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The next tensor of ", key.text(),
        " has come for a receive that it did not fit, and lies in ",
        tensor->on_host() ? "the host's memory: receive it there"
                          : "a device's memory: receive it there, without a destination"));
  }
  if (!args.destination.valid()) return absl::OkStatus();
  absl::Status copied = CopyInto(key, *tensor, args.destination);
  if (copied.ok()) *tensor = args.destination;
  return copied;
}

}  // namespace

std::shared_ptr<RoutingRendezvous> RoutingRendezvous::Make(
    absl::string_view worker, int64_t step_id, const LocalRendezvous::Options& options,
    Alarms* alarms, std::shared_ptr<HeldBytes> process, TensorFetcher* fetcher) {
  return std::shared_ptr<RoutingRendezvous>(
      new RoutingRendezvous(worker, step_id, options, alarms, std::move(process), fetcher),
      [](RoutingRendezvous* step) { step->Drop(kUser); });
}

RoutingRendezvous::RoutingRendezvous(absl::string_view worker, int64_t step_id,
                                     const LocalRendezvous::Options& options, Alarms* alarms,
                                     std::shared_ptr<HeldBytes> process, TensorFetcher* fetcher)
    : worker_(worker),
      step_id_(step_id),
      alarms_(alarms),
      fetcher_(fetcher),
      has_devices_(options.has_devices),
      gathers_into_(options.gathers_into),
      table_(new MatchCore(options, alarms, std::move(process))) {}

RoutingRendezvous::~RoutingRendezvous() {
  delete kept_.load(std::memory_order_acquire);
  table_->Leave();
}

absl::Status RoutingRendezvous::CheckSend(const TensorKey& key) const {
  if (key.empty()) return absl::InvalidArgumentError("Send of an empty rendezvous key");
  if (ProducedHere(key) && !IsAnswered(key)) return absl::OkStatus();
  if (ProducedHere(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Nothing is sent under a name that begins with '|', such as ", key.edge(),
                     ": these are for what this worker answers by itself"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Invalid rendezvous key (source is not ", worker_, "): ", key.text()));
}

absl::Status RoutingRendezvous::CheckReceive(const TensorKey& key) const {
  if (key.empty()) return absl::InvalidArgumentError("Receive of an empty rendezvous key");
  if (!key.IsTo(worker_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid rendezvous key (destination is not ", worker_, "): ", key.text()));
  }
  if (!ProducedHere(key) && fetcher_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "This process is connected to no other workers, and so cannot ask for ", key.text()));
  }
  return absl::OkStatus();
}

// Packs a tensor for a peer if it has more dimensions than a wire can describe.
absl::Status RoutingRendezvous::PackForPeer(const TensorKey& key, Tensor* tensor) const {
  if (tensor->shape().rank() <= TensorShape::kMaxRank || key.src_device().empty() ||
      key.dst().worker == key.src().worker) {
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> packed = Pack(*tensor);
  if (!packed.ok()) {
    return absl::Status(packed.status().code(), absl::StrCat("Send failed for ", key.text(), ": ",
                                                             packed.status().message()));
  }
  *tensor = *std::move(packed);
  return absl::OkStatus();
}

absl::Status RoutingRendezvous::Send(const TensorKey& key, const SendArgs& args, Tensor tensor,
                                     bool is_dead) {
  if (key.empty() || !ProducedHere(key) || IsAnswered(key) ||
      tensor.shape().rank() > TensorShape::kMaxRank) {
    absl::Status status = CheckSend(key);
    if (status.ok()) status = PackForPeer(key, &tensor);
    if (!status.ok()) return status;
  }
  return table_->Send(key, args, &tensor, is_dead);
}

absl::Status RoutingRendezvous::SendMany(absl::Span<SendItem> items, const SendArgs& args) {
  for (const SendItem& item : items) {
    // Most keys of a call go between the same two devices.
    const bool as_first = !item.key.empty() && &item != &items[0] &&
                          item.key.HasEndsOf(items[0].key) && !IsAnswered(item.key);
    if (as_first) continue;
    absl::Status status = CheckSend(item.key);
    if (!status.ok()) return status;
  }
  for (SendItem& item : items) {
    absl::Status status = PackForPeer(item.key, &item.tensor);
    if (!status.ok()) return status;
  }
  return table_->SendMany(items, args);
}

void RoutingRendezvous::RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  if (!done) done = [](Received&&) {};
  // The way of nearly all that is fetched: another one made it, and it is for us.
  if (fetcher_ != nullptr && !key.empty() && !ProducedHere(key) && key.IsTo(worker_) &&
      !args.destination.read_only() && args.destination.shape().rank() <= TensorShape::kMaxRank) {
    if (ABSL_PREDICT_FALSE(KeepsAny()) && RecvKept(key, args, &done)) return;
    return Fetch(key, args, std::move(done));
  }
  absl::Status status = CheckReceive(key);
  if (status.ok() && args.destination.read_only()) {
    status = absl::InvalidArgumentError(
        absl::StrCat("The destination of ", key.text(), " is read-only memory"));
  }
  if (!status.ok()) {
    FailReceive(std::move(status), args.executor, std::move(done));
  } else if (!ProducedHere(key)) {  // Its destination has more dimensions than a wire can describe.
    FetchInto(key, args, std::move(done));
  } else if (NeedsHandover(key, args)) {
    table_->RecvAsync(key, args, CopyToReceiver(key, args, std::move(done)));
  } else {
    table_->RecvAsync(key, args, std::move(done));
  }
}

bool RoutingRendezvous::aborted() const { return table_->aborted(); }

bool RoutingRendezvous::EndsElsewhere(const TensorKey& key, const RecvArgs& args) const {
  return CheckReceive(key).ok() && !table_->aborted() &&
         (!ProducedHere(key) || NeedsHandover(key, args));
}

std::shared_ptr<Turns> RoutingRendezvous::TurnsFor(const TensorKey& key) {
  return fetcher_ == nullptr || key.empty() || ProducedHere(key) ? nullptr
                                                                 : fetcher_->TurnsFor(key);
}

void RoutingRendezvous::StartFetching(uint64_t fetches) {
  fetches_.fetch_add(static_cast<int64_t>(fetches), std::memory_order_relaxed);
  // For the call, too, which looks at this once more when a result may be here already.
  holds_.fetch_add(fetches + kUser, std::memory_order_relaxed);
}

void RoutingRendezvous::EndStarting() {
  AbortFetchesIfAborted();
  Drop(kUser);
}

void RoutingRendezvous::OnResults(absl::Status* first_error, absl::Span<Received> results) {
  for (Received& result : results) {
    if (result.tensor.dtype() != DType::kPacked) continue;
    UnpackInPlace(&result);
    KeepCause(first_error, result.status);
  }
  Drop(results.size());
}

// Whose holds were the last destroys it.
void RoutingRendezvous::Drop(uint64_t holds) {
  if (holds_.fetch_sub(holds, std::memory_order_acq_rel) == holds) delete this;
}

void RoutingRendezvous::Fetch(const TensorKey& key, const RecvArgs& args, DoneFn&& done) {
  if (table_->aborted()) {
    FailReceive(MarkDerived(table_->abort_cause()), args.executor, std::move(done));
    return;
  }
  if (args.cancellation != nullptr && args.cancellation->cancelled()) {
    FailReceive(MarkDerived(absl::CancelledError("RecvAsync is cancelled.")), args.executor,
                std::move(done));
    return;
  }
  StartFetching(1);
  FetchedFn fetched = std::move(done);
  fetched.RunBefore(this);
  fetcher_->Fetch(step_id_, key, args, std::move(fetched));
  EndStarting();
}

// A packed tensor cannot land in the caller's memory, so it is copied there. One that does not fit
// is kept for the next receive of its key, as the peer has let go of it.
void RoutingRendezvous::FetchInto(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  if (!args.destination.on_host()) {
    return FailReceive(
        absl::InvalidArgumentError(absl::StrCat(
            "The destination of ", key.text(), " has more than ",
            static_cast<int>(TensorShape::kMaxRank),
            " dimensions, which works only in host memory: receive it there, or in another shape")),
        args.executor, std::move(done));
  }
  if (KeepsAny()) {
    if (RecvKept(key, args, &done)) return;
    absl::Status room = Kept()->Admit({step_id_, key});
    if (!room.ok()) return FailReceive(std::move(room), args.executor, std::move(done));
  }
  RecvArgs anywhere = args;
  anywhere.destination = Tensor();
  anywhere.device_context = nullptr;  // It would be brought into memory of the device.
  Fetch(key, anywhere,
        [step = shared_from_this(), into = args.destination, key,
         done = std::move(done)](Received&& received) mutable {
          step->FirstOfKept(key, &received);
          if (received.status.ok() && !received.is_dead) {
            received.status = CopyInto(key, received.tensor, into);
            if (!received.status.ok()) {
              step->Kept()->Keep({step->step_id_, key}, {Apart(std::move(received.tensor))});
            }
            received.tensor = received.status.ok() ? std::move(into) : Tensor();
          }
          std::move(done)(std::move(received));
        });
}

KeptTensors* RoutingRendezvous::Kept() {
  KeptTensors* kept = kept_.load(std::memory_order_acquire);
  if (kept != nullptr) return kept;
  auto made = std::make_unique<KeptTensors>();
  if (!kept_.compare_exchange_strong(kept, made.get(), std::memory_order_acq_rel)) return kept;
  return made.release();
}

bool RoutingRendezvous::KeepsAny() const {
  const KeptTensors* const kept = kept_.load(std::memory_order_acquire);
  return kept != nullptr && !kept->empty();
}

bool RoutingRendezvous::KeepsOneOf(absl::Span<const TensorKey> keys) {
  if (ABSL_PREDICT_TRUE(!KeepsAny())) return false;
  for (const TensorKey& key : keys) {
    if (Kept()->Keeps({step_id_, key})) return true;
  }
  return false;
}

bool RoutingRendezvous::IsOver(const RecvArgs& args) const {
  return table_->aborted() || (args.cancellation != nullptr && args.cancellation->cancelled());
}

// Ends a receive with what is kept for the next one of its key. False, and nothing has happened:
// nothing is.
bool RoutingRendezvous::RecvKept(const TensorKey& key, const RecvArgs& args, DoneFn* done) {
  const KeptTensors::Place place(step_id_, key);
  KeptTensor kept = IsOver(args) ? KeptTensor() : Kept()->TakeFirst(place);
  if (!kept.valid()) return false;
  absl::Status fits;
  if (!kept.is_dead) fits = PutWhereWanted(key, args, &kept.tensor);
  if (!fits.ok()) {
    Kept()->Keep(place, std::move(kept));
    FailReceive(std::move(fits), args.executor, std::move(*done));
  } else {
    EndReceive(args.executor, {absl::OkStatus(), std::move(kept.tensor), kept.is_dead},
               std::move(*done));
  }
  return true;
}

// What has come for a receive lines up behind what is kept of its key.
void RoutingRendezvous::FirstOfKept(const TensorKey& key, Received* received) {
  if (!received->status.ok() || !KeepsAny()) return;
  KeptTensor first =
      Kept()->FirstBefore({step_id_, key}, {std::move(received->tensor), received->is_dead});
  received->tensor = std::move(first.tensor);
  received->is_dead = first.is_dead;
}

// Aborts the fetches again if the step has been aborted. A fetch that checked the cause before the
// abort and entered the fetcher's list after it would otherwise miss it.
void RoutingRendezvous::AbortFetchesIfAborted() {
  if (table_->aborted()) fetcher_->AbortStep(step_id_, MarkDerived(table_->abort_cause()));
}

void RoutingRendezvous::FetchMany(absl::Span<const TensorKey> keys, const RecvArgs& args,
                                  ManyDoneFn done) {
  StartFetching(keys.size());
  ManyFetchedFn fetched = std::move(done);
  fetched.RunBefore(this);
  fetcher_->FetchMany(step_id_, keys, args, std::move(fetched));
  EndStarting();
}

void RoutingRendezvous::RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                                      ManyDoneFn done) {
  if (!done) done = [](absl::Status, absl::Span<Received>) {};
  size_t local = 0;
  size_t remote = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const TensorKey& key = keys[i];
    // Most keys of a call go between the same two devices.
    const bool as_first = i > 0 && remote == i && !key.empty() && key.HasEndsOf(keys[0]);
    const bool is_local = !as_first && !key.empty() && ProducedHere(key);
    if (!as_first && (!CheckReceive(key).ok() || (is_local && NeedsHandover(key, args)))) continue;
    if (!args.destinations.empty() &&
        (args.destinations[i].read_only() ||
         args.destinations[i].shape().rank() > TensorShape::kMaxRank)) {
      continue;
    }
    ++(is_local ? local : remote);
  }
  const bool alive =
      !table_->aborted() && (args.cancellation == nullptr || !args.cancellation->cancelled());
  if (local == keys.size()) {
    table_->RecvManyAsync(keys, args, std::move(done));
  } else if (remote == keys.size() && alive && !KeepsOneOf(keys)) {
    FetchMany(keys, args, std::move(done));
  } else {
    ReceiveEach(keys, args, std::move(done));
  }
}

// A RecvMany whose keys go different ways, with one callback.
struct RoutingRendezvous::Mixed {
  std::vector<Received> results;
  std::atomic<size_t> remaining;
  ManyDoneFn done;
};

void RoutingRendezvous::ReceiveEach(absl::Span<const TensorKey> keys, const RecvArgs& args,
                                    ManyDoneFn done) {
  auto mixed = std::make_shared<Mixed>();
  mixed->results.resize(keys.size());
  mixed->remaining = keys.size();
  mixed->done = std::move(done);
  ArgsOfEach each(args);
  for (size_t i = 0; i < keys.size(); ++i) {
    RecvAsync(keys[i], each.At(i), [mixed, i](Received&& received) {
      mixed->results[i] = std::move(received);
      if (mixed->remaining.fetch_sub(1) != 1) return;
      absl::Status first_error;
      for (const Received& result : mixed->results) KeepCause(&first_error, result.status);
      std::move(mixed->done)(std::move(first_error), absl::MakeSpan(mixed->results));
    });
  }
}

void RoutingRendezvous::StartAbort(const absl::Status& status) {
  const std::shared_ptr<RoutingRendezvous> self = shared_from_this();
  AllRun all;
  all.Run([&] { table_->StartAbort(status); });
  if (fetcher_ != nullptr) AbortFetchesIfAborted();
  all.ThrowFirst();
}

void RoutingRendezvous::WhenRoom(int64_t bytes, absl::AnyInvocable<void(absl::Status) &&> ready) {
  table_->WhenRoom(bytes, std::move(ready));
}

RendezvousCounters RoutingRendezvous::counters() const {
  RendezvousCounters counters = table_->counters();
  counters.fetches = fetches_.load(std::memory_order_relaxed);
  counters.waiting_fetches =
      static_cast<int64_t>(holds_.load(std::memory_order_relaxed) & (kUser - 1));
  return counters;
}

void RoutingRendezvous::ListWaiting(WaitingItems* items) const {
  table_->ListWaiting(step_id_, items);
}

}  // namespace tryst
