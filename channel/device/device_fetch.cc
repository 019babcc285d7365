#include "channel/device/device_fetch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"

namespace tryst {
namespace {

// Whether a fetch that ended in this way says nothing of the tensor, so that another may have it.
bool StaysWhole(const absl::Status& why) {
  return absl::IsCancelled(why) || absl::IsDeadlineExceeded(why) || absl::IsInvalidArgument(why);
}

}  // namespace

void DeviceFetcher::Op::Start() {
  if (args.cancellation != nullptr) {
    // Runs on any thread; the operation may be over when the poller gets to it.
    token_ = args.cancellation->Register([this, owner = owner_, alive = alive_] {
      owner->poller_->PostFn([this, alive] {
        if (*alive && !committed_) Fail(Cancelled());
      });
    });
    if (token_ == Cancellation::kNoToken) {
      return Fail(Cancelled());
    }
  }
  if (!args.deadline.is_never()) owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
  owner_->lines_.Join(step, key, this);
}

void DeviceFetcher::Op::OnTurn(const DeviceManifest* met) {
  owner_->poller_->CancelTimer(&late_timer_);
  if (met != nullptr) {
    manifest = *met;
    return BringTransfer();
  }
  asked_ns_ = owner_->poller_->clock().NowNs();
  Tensor kept = owner_->kept_.TakeFirst({step, key}).tensor;
  was_kept_ = kept.valid();
  if (was_kept_) return OnManifest(absl::OkStatus(), std::move(kept), false);
  const absl::Status room = owner_->kept_.Admit({step, key});
  if (!room.ok()) return Fail(room);
  FetchPart(ManifestKey(key, owner_->options_.use_ipc ? owner_->host_ : 0, args.destination),
            Tensor(), false, [this](absl::Status status, Tensor answer, bool is_dead) {
              OnManifest(std::move(status), std::move(answer), is_dead);
            });
}

RecvArgs DeviceFetcher::Op::InnerArgs(Tensor destination, bool prefers_view) {
  RecvArgs inner;
  inner.prefers_view = prefers_view;
  inner.destination = std::move(destination);
  inner.cancellation = &inner_;
  inner.deadline = args.deadline;
  inner.leaves_at_once = args.leaves_at_once;
  return inner;
}

void DeviceFetcher::Op::FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination,
                                  bool prefers_view,
                                  absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done) {
  if (!part.ok()) return Fail(part.status());
  ++pending_;
  owner_->fetcher_->Fetch(
      step, *part, InnerArgs(std::move(destination), prefers_view),
      [this, done = std::move(done)](Received&& part) mutable {
        owner_->OnPoller([this, done = std::move(done), part = std::move(part)]() mutable {
          --pending_;
          std::move(done)(std::move(part.status), std::move(part.tensor), part.is_dead);
        });
      });
}

void DeviceFetcher::Op::OnManifest(absl::Status status, Tensor answer, bool is_dead) {
  if (!status.ok()) return Fail(status_.ok() ? status : status_);
  // The fetch was cancelled while its tensor came. A whole tensor is delivered; otherwise it goes
  // back.
  const absl::Status cancelled = std::exchange(status_, absl::OkStatus());
  if (is_dead || answer.dtype() == DType::kString) {
    started_ = true;
    Report(absl::OkStatus(), std::move(answer), is_dead);
    return EndIfDone();
  }
  auto decoded = DecodeManifest(answer);
  if (!decoded.ok()) return Fail(decoded.status());
  manifest = *decoded;
  manifest.asked_ns = asked_ns_;
  if (!cancelled.ok() && !manifest.inside) return Fail(cancelled);
  if (manifest.in_reach() && owner_->InThisProcess(manifest) && !IsOfThisProcess(key, manifest)) {
    // A copy from an address of its choice could end our context with all that is in it.
    TRYST_REACHED("rare: a manifest of a process that is not its own");
    return Fail(absl::DataLossError(absl::StrCat(
        key.src().worker,
        " broke the protocol: it says that a tensor lies in this process, which did not make it: ",
        key.text())));
  }
  if (manifest.dtype == DType::kPacked) return Fail(PackedOnDevice(key));
  status = FitsLimit(manifest.bytes, owner_->options_.max_tensor_bytes);
  if (!status.ok()) return Fail(status);
  if (manifest.inside && manifest.bytes > engine->slot_bytes()) {
    return Fail(absl::DataLossError(absl::StrCat(
        "the producer broke the protocol: it sent ", manifest.bytes,
        " bytes of a tensor inside a message, and a staging slot holds ", engine->slot_bytes())));
  }
  if (manifest.inside) {
    status = ChooseDestination();
    if (status.ok()) return BringInside(answer);
    // It is not like the destination that the producer was told of: nothing honest is lost.
    if (args.destination.valid() && !was_kept_) return Fail(status);
    return FailAndKeep(answer, status);
  }
  BringTransfer();
}

// The channel has accepted the tensor, so the producer does not have it any more.
void DeviceFetcher::Op::FailAndKeep(const Tensor& answer, const absl::Status& why) {
  if (!aborted_ && !reported_) owner_->kept_.Keep({step, key}, {Apart(answer)});
  Fail(why);
}

void DeviceFetcher::Op::BringTransfer() {
  // If the tensor can be read in place, a view needs no destination.
  is_view_ = args.by_reference && !args.destination.valid() && manifest.in_reach();
  if (!is_view_) {
    const absl::Status status = ChooseDestination();
    if (!status.ok()) return Fail(status);
  }
  BringBestWay();
}

absl::Status DeviceFetcher::Op::ChooseDestination() {
  if (args.destination.valid()) {
    into_ = args.destination;
    if (into_.dtype() == manifest.dtype && into_.shape() == manifest.shape) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the receive's destination is ", DTypeName(into_.dtype()), into_.shape().ToString(),
        " and the tensor that came is ", DTypeName(manifest.dtype), manifest.shape.ToString()));
  }
  auto made = context->Allocate(manifest.dtype, manifest.shape, args.alloc_attrs);
  if (made.ok()) into_ = *std::move(made);
  return made.status();
}

void DeviceFetcher::Op::CopyIn(Copier::Direction direction, uint64_t at, const void* from,
                               uint64_t bytes, Copier::Done done) {
  ++pending_;
  // The caller's memory is written after the moment of its context, the pool's after its last use.
  engine->Copy(direction, static_cast<char*>(into_.mutable_data()) + at, from, bytes,
               args.destination.valid() ? context->moment() : nullptr, LastUse(into_),
               [this, done = std::move(done)](absl::Status status) mutable {
                 --pending_;
                 std::move(done)(std::move(status));
               });
}

// ---- Waiting for a proof ----

// The proof has a patience of its own, which may be longer than the fetch's.
DeviceWay::State DeviceFetcher::Op::StateOf(bool direct) {
  DeviceWay* const way = WayOf(direct);
  const DeviceWay::State state = owner_->ways_.StateOf(way, step, key, engine);
  if (state != DeviceWay::State::kProbing) return state;
  ++pending_;
  probed_ = way;
  way->waiting.push_back(this);
  if (!args.deadline.is_never()) {
    owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
  }
  return state;
}

void DeviceFetcher::Op::StopWaitingForProof() {
  std::vector<ProofWaiter*>* const waiting = &std::exchange(probed_, nullptr)->waiting;
  waiting->erase(std::find(waiting->begin(), waiting->end(), static_cast<ProofWaiter*>(this)));
  owner_->poller_->CancelTimer(&late_timer_);
  --pending_;
}

void DeviceFetcher::Op::LateTimer::OnTimer() {
  const std::string why =
      op->probed_ != nullptr
          ? absl::StrCat("waits for the proof of a way to the memory of ", op->key.src().worker)
      : !op->slot_waits_.empty()         ? "waits for a staging slot"
      : op->destination_wait_ != nullptr ? "waits for the destination's stream"
                                         : "waits behind another fetch of its key";
  op->Fail(absl::DeadlineExceededError(
      absl::StrCat("not received in time: ", why, ": ", op->key.text())));
}

// ---- Ending ----

void DeviceFetcher::Op::AllStarted() {
  started_ = true;
  if (!context->complete_on_stream() || reported_ || !status_.ok()) return;
  for (Copier::Direction direction :
       {Copier::Direction::kToDevice, Copier::Direction::kOnDevice, Copier::Direction::kFromPeer}) {
    absl::StatusOr<bool> joined = engine->copier()->JoinStream(direction, context->stream());
    if (!joined.ok() || !*joined) return;  // It ends when the copies have.
  }
  Report(absl::OkStatus(), into_, false);
}

void DeviceFetcher::Op::Fail(const absl::Status& status) {
  if (status_.ok()) {
    status_ = status;
    if (reported_) {
      TRYST_LOG(Error) << "do not trust the tensor " << key.text()
                       << ": it was reported as received on a GPU's stream, and has failed since: "
                       << status;
    }
    inner_.StartCancel();
  }
  if (probed_ != nullptr) StopWaitingForProof();
  StopWaitingForSlots();
  if (destination_wait_ != nullptr) {
    *std::exchange(destination_wait_, nullptr) = nullptr;
    --pending_;
  }
  EndIfDone();
}

// ---- Waiting for a slot ----

// No fetch that it makes ends it meanwhile. What has come whole is not given up for being late: the
// producer does not have it any more.
void DeviceFetcher::Op::WhenSlot(DeviceEngine::WithSlot fn) {
  ++pending_;
  auto wait = std::make_shared<uint64_t>(0);
  *wait = engine->WhenFetchSlot([this, wait, fn = std::move(fn)](StorageRef slot) mutable {
    --pending_;
    const auto at = std::find(slot_waits_.begin(), slot_waits_.end(), *wait);
    if (at != slot_waits_.end()) slot_waits_.erase(at);
    if (slot_waits_.empty()) owner_->poller_->CancelTimer(&late_timer_);
    std::move(fn)(std::move(slot));
  });
  if (*wait == 0) return;
  slot_waits_.push_back(*wait);
  if (args.deadline.is_never() || committed_) return;
  owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
}

void DeviceFetcher::Op::StopWaitingForSlots() {
  for (const uint64_t wait : std::exchange(slot_waits_, {})) {
    engine->StopWaitingForSlot(wait);
    --pending_;
  }
}

void DeviceFetcher::Op::EndIfDone() {
  if (pending_ > 0 || ended_ || (status_.ok() && !started_)) return;
  ended_ = true;
  if (mapping_ != nullptr) engine->mappings()->Close(std::exchange(mapping_, nullptr));
  if (status_.ok()) owner_->counters_.bytes += manifest.bytes;
  // The caller first, because the producer can wait.
  Report(status_, status_.ok() ? std::move(into_) : Tensor(), false);
  if (manifest.transfer != 0 && status_.ok() && !is_view_) {
    owner_->LetGo(key, manifest.transfer, "done", [] {});
  }
  DeviceFetcher* const owner = owner_;
  const std::unique_ptr<Op> ended = std::move(*self);
  owner->ops_.erase(self);
  owner->poller_->CancelTimer(&late_timer_);
  const bool left = manifest.transfer != 0 && !status_.ok();
  owner->lines_.Leave(this, left ? &manifest : nullptr, is_gone_ || !StaysWhole(status_));
}

void DeviceFetcher::Op::EndCancellation() {
  *alive_ = false;
  if (token_ != Cancellation::kNoToken) args.cancellation->Deregister(token_);
  token_ = Cancellation::kNoToken;
}

void DeviceFetcher::Op::Report(absl::Status status, Tensor tensor, bool is_dead) {
  if (reported_) return;
  reported_ = true;
  EndCancellation();
  ++(status.ok() ? owner_->counters_.ended_ok : owner_->counters_.ended_failed);
  Received received{std::move(status), std::move(tensor), is_dead};
  if (args.executor == nullptr) return std::move(done_)(std::move(received));
  owner_->Deliver(args.executor,
                  [done = std::move(done_), received = std::move(received)]() mutable {
                    std::move(done)(std::move(received));
                  });
}

}  // namespace tryst
