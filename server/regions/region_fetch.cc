#include "server/regions/region_fetch.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "server/regions/region_asks.h"

namespace tryst {
namespace {

// Asks that are out for one fetch: one is on its way while another is copied at each end.
constexpr size_t kAsksOut = 4;

absl::Status Refused(const TensorKey& key, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("The fetch of ", key.edge(), ": ", why));
}

// One fetch, until `done` has run. What is out keeps it.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  Fetch(Server* server, std::shared_ptr<Rendezvous> step, int64_t step_id, const TensorKey& key,
        const Selection& wanted, const RecvArgs& args, const Selection& landing, uint64_t bytes,
        DoneFn done)
      : steps_(server->steps()),
        step_(std::move(step)),
        step_id_(step_id),
        is_own_(key.src().worker == server->worker()),
        key_(key),
        wanted_(wanted),
        landing_(landing),
        args_(args),
        into_(args.destination),
        lists_(wanted_.view(), TensorKey::kMaxBytes - key.text().size()),
        left_(bytes),
        done_(std::move(done)) {
    args_.destination = Tensor();
    args_.destinations = {};
    args_.by_reference = true;  // It is read once, in here.
    args_.recurring = false;
    args_.device_context = nullptr;
    args_.cancellation = &own_;
    if (args_.executor == nullptr) args_.executor = server->executor();
  }

  // REQUIRES: called once.
  void Begin(const CancellationRef& cancellation) {
    if (cancellation != nullptr) {
      cancellation_ = cancellation;
      of_caller_ = cancellation->Register([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->own_.StartCancel();
      });
      if (of_caller_ == Cancellation::kNoToken) own_.StartCancel();
    }
    Go();
  }

 private:
  // Asks for as much as may be out. One thread at a time is in here.
  void Go() {
    for (;;) {
      std::string list;
      uint64_t bytes = 0;
      SelectionPlace place;
      {
        MutexLock lock(&mu_);
        if (going_) return;  // That thread looks again.
        if (left_ > 0 && status_.ok() && own_.cancelled()) {
          status_ = absl::CancelledError("the fetch from the region was cancelled");
        }
        if (left_ == 0 || !status_.ok() || out_ == kAsksOut) break;
        going_ = true;
        ++out_;
        list = lists_.Next(left_, &bytes);
        left_ -= bytes;
        place = landed_;
        SkipBytes(landing_.view(), bytes, &landed_);
      }
      Ask(list, bytes, place);
      MutexLock lock(&mu_);
      going_ = false;
    }
    EndIfOver();
  }

  void Ask(const std::string& list, uint64_t bytes, const SelectionPlace& place) {
    const absl::StatusOr<TensorKey> key = key_.WithEdge(absl::StrCat(key_.edge(), list));
    if (!key.ok()) return OnEnd({key.status()}, bytes, place);
    DoneFn ended = [self = shared_from_this(), bytes, place](Received&& received) {
      self->OnEnd(std::move(received), bytes, place);
    };
    if (is_own_) return steps_->Take(step_id_, *key, args_, std::move(ended));
    step_->RecvAsync(*key, args_, std::move(ended));
  }

  void OnEnd(Received&& received, uint64_t bytes, SelectionPlace place) {
    absl::Status status = std::move(received.status);
    if (status.ok() && (received.is_dead || received.tensor.dtype() == DType::kString ||
                        !received.tensor.on_host() || received.tensor.bytes() != bytes)) {
      status = absl::DataLossError(absl::StrCat(
          "the owner of ", key_.edge(),
          " answered with other bytes than it was asked for: run the same release on both"));
    }
    if (status.ok()) {
      Scatter(landing_.view(), received.tensor.data(), into_.mutable_data(), bytes, &place);
    }
    received.tensor.Reset();  // Before it is told that the ask is over.
    bool first_failure = false;
    {
      MutexLock lock(&mu_);
      --out_;
      first_failure = status_.ok() && !status.ok();
      if (first_failure) status_ = std::move(status);
    }
    if (first_failure) own_.StartCancel();
    Go();
  }

  void EndIfOver() {
    Received received;
    DoneFn done;
    {
      MutexLock lock(&mu_);
      if (ended_ || going_ || out_ > 0 || (left_ > 0 && status_.ok())) return;
      ended_ = true;
      received.status = status_;
      if (status_.ok()) received.tensor = into_;
      done = std::move(done_);
    }
    if (of_caller_ != Cancellation::kNoToken) cancellation_->TryDeregister(of_caller_);
    std::move(done)(std::move(received));
  }

  StepRegistry* const steps_;
  const std::shared_ptr<Rendezvous> step_;
  const int64_t step_id_;
  const bool is_own_;
  const TensorKey key_;
  const OwnSelection wanted_, landing_;
  RecvArgs args_;  // Each ask has them.
  const Tensor into_;
  Cancellation own_;
  CancellationRef cancellation_;  // The caller's.
  Cancellation::Token of_caller_ = Cancellation::kNoToken;

  Mutex mu_;
  ListWriter lists_ ABSL_GUARDED_BY(mu_);
  SelectionPlace landed_ ABSL_GUARDED_BY(mu_);  // The next ask begins there.
  uint64_t left_ ABSL_GUARDED_BY(mu_);          // Bytes that were not asked for.
  size_t out_ ABSL_GUARDED_BY(mu_) = 0;
  bool going_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // The first failure.
  DoneFn done_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<uint64_t> CheckFetch(const TensorKey& key, const Selection& wanted,
                                    const RecvArgs& args, const Selection& landing) {
  if (key.empty() || RegionNameOf(key.edge()).empty() ||
      RegionEdge(RegionNameOf(key.edge())) != key.edge()) {
    return absl::InvalidArgumentError(
        "the key of a fetch from a region has the edge |region|NAME|, with nothing behind it");
  }
  if (key.text().size() + kMinListText > TensorKey::kMaxBytes) {
    return Refused(key, "the names of its devices leave no room for what is wanted");
  }
  if (wanted.kind == Selection::Kind::kWhole) {
    return Refused(key, "say which bytes of the region are wanted");
  }
  const Tensor& into = args.destination;
  if (!into.valid() || into.dtype() == DType::kString || !into.on_host() || into.read_only()) {
    return Refused(key, "it needs a destination in memory of the host that may be written");
  }
  const auto lands = CheckSelection(landing, into.bytes(), SelectionUse::kWrite);
  if (!lands.ok()) return Refused(key, lands.status().message());
  // How large the region is, its owner knows.
  const auto comes = CheckSelection(wanted, INT64_MAX, SelectionUse::kRead);
  if (!comes.ok()) return Refused(key, comes.status().message());
  if (*comes != *lands) {
    return Refused(key,
                   absl::StrCat("of the region ", *comes, " bytes are wanted, and the ",
                                "destination's selection has ", *lands, ": they must be as many"));
  }
  return *comes;
}

}  // namespace

void FetchRegion(Server* server, int64_t step, const TensorKey& key, const Selection& wanted,
                 const RecvArgs& args, const Selection& landing, DoneFn done) {
  if (!done) done = [](Received&&) {};
  if (server->steps() == nullptr) {
    return FailReceive(absl::FailedPreconditionError("the server has not started: start it first"),
                       args.executor, std::move(done));
  }
  const auto bytes = CheckFetch(key, wanted, args, landing);
  if (!bytes.ok()) return FailReceive(bytes.status(), args.executor, std::move(done));
  auto begun = server->steps()->StartStep(step);
  if (!begun.ok()) return FailReceive(begun.status(), args.executor, std::move(done));
  std::make_shared<Fetch>(server, *std::move(begun), step, key, wanted, args, landing, *bytes,
                          std::move(done))
      ->Begin(args.cancellation);
}

}  // namespace tryst
