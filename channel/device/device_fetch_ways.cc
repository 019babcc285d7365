// How a tensor is brought, once the producer has said what it is.

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "channel/device/device_fetch.h"

namespace tryst {
namespace {

std::string ChunksOwner(const DeviceWay& way, const TensorKey& key) {
  return absl::StrCat(key.src().worker, ";", way.exporter);
}

}  // namespace

void DeviceFetcher::Op::BringBestWay() {
  if (!status_.ok()) return EndIfDone();
  if (manifest.in_reach()) {
    DeviceWay& way = *WayOf(false);
    if (owner_->InThisProcess(manifest) && way.state == DeviceWay::State::kUnknown) {
      way.state = DeviceWay::State::kProved;
      way.worker = std::string(key.src().worker);
      way.why = "it is this process";
    }
    const DeviceWay::State state = StateOf(false);
    if (state == DeviceWay::State::kProbing) return;
    if (state == DeviceWay::State::kProved) return BringIpc();
  }
  if (manifest.on_device && owner_->options_.use_direct &&
      manifest.bytes >= owner_->options_.direct_bytes) {
    const DeviceWay::State state = StateOf(true);
    if (state == DeviceWay::State::kProbing) return;
    if (state == DeviceWay::State::kProved) return BringDirect();
  }
  BringStaged();
}

void DeviceFetcher::Op::BringInside(const Tensor& answer) {
  ++owner_->counters_.inside;
  committed_ = true;
  if (manifest.bytes == 0) {
    AllStarted();
    return EndIfDone();
  }
  Tensor bytes = answer;
  if (answer.space().kind == MemorySpace::Kind::kShared) {
    // It lies in a slot of the producer's. That slot must not wait for one of ours, because ours
    // may wait for the producer.
    const char* const there = answer.data_as<char>() + DeviceManifest::kBytes;
    if (engine->ReadsPeer(there, manifest.bytes)) {
      ++owner_->counters_.read_in_peer;
      CopyIn(Copier::Direction::kToDevice, 0, there, manifest.bytes,
             [this, answer](const absl::Status& status) {
               if (!status.ok()) return FailAndKeep(answer, status);
               EndIfDone();
             });
      return AllStarted();
    }
    auto copy = Tensor::Allocate(answer.dtype(), answer.shape());
    if (!copy.ok()) return FailAndKeep(answer, copy.status());
    memcpy(copy->mutable_data(), answer.data(), answer.bytes());
    bytes = *std::move(copy);
  }
  WhenSlot([this, bytes = std::move(bytes)](StorageRef slot) {
    void* const data = slot->data();
    memcpy(data, bytes.data_as<char>() + DeviceManifest::kBytes, manifest.bytes);
    CopyIn(Copier::Direction::kToDevice, 0, data, manifest.bytes,
           [this, bytes, slot = std::move(slot)](const absl::Status& status) {
             if (!status.ok()) return FailAndKeep(bytes, status);
             EndIfDone();
           });
    AllStarted();
  });
}

// ---- Out of the producer's memory ----

// Virtual memory of another GPU needs its own mapping for ours.
bool DeviceFetcher::Op::InThisProcess() const {
  return owner_->InThisProcess(manifest) &&
         (manifest.has_ipc || manifest.ordinal == engine->gpu()->ordinal());
}

void DeviceFetcher::Op::BringIpc() {
  if (InThisProcess()) {
    const bool reached =
        manifest.ordinal == engine->gpu()->ordinal() || engine->has_peer(manifest.ordinal);
    if (!reached && is_view_) {  // No kernel could read the view.
      is_view_ = false;
      const absl::Status status = ChooseDestination();
      if (!status.ok()) return Fail(status);
    }
    return CopyFrom(reinterpret_cast<const void*>(manifest.address),
                    reached ? Copier::Direction::kOnDevice : Copier::Direction::kFromPeer);
  }
  DeviceWay& way = *WayOf(false);
  if (way.forgotten != manifest.forgotten) {
    way.forgotten = manifest.forgotten;
    engine->mappings()->Forget(way.exporter);
    engine->mappings()->Forget(ChunksOwner(way, key));
  }
  if (manifest.has_chunks) return BringChunks();
  auto mapping = engine->mappings()->Open(way.exporter, manifest.reference);
  if (absl::IsDataLoss(mapping.status())) return Fail(mapping.status());
  if (!mapping.ok()) return StageForOnce(mapping.status());
  mapping_ = *mapping;  // With peer access, where that is needed.
  CopyFrom(reinterpret_cast<const void*>(mapping_->base() + manifest.reference.offset),
           Copier::Direction::kOnDevice);
}

// This allocation cannot be mapped, so the tensor is staged; the next one is tried again.
void DeviceFetcher::Op::StageForOnce(const absl::Status& why) {
  DeviceWay& way = *WayOf(false);
  if (way.staged++ == 0) {
    TRYST_LOG(Warning) << "a GPU's tensor of " << way.worker
                       << " is copied through host memory, which is slower (logged once): "
                       << why.message();
  }
  way.why = absl::StrCat(way.staged,
                         " were copied through host memory, the last because: ", why.message());
  BringStaged();
}

void DeviceFetcher::Op::CopyFrom(const void* from, Copier::Direction direction) {
  ++owner_->counters_.ipc;
  if (is_view_ && MayBeGone()) {
    return AskWhetherKept([this, from] {
      if (!status_.ok()) return EndIfDone();
      BringView(from);
    });
  }
  if (is_view_) return BringView(from);
  auto done = [this](absl::Status status) { OnIpcCopied(std::move(status)); };
  if (direction == Copier::Direction::kOnDevice && IsSmallAndFar()) {
    started_ = CopyInSmall(from, std::move(done));  // No stream can wait for it.
    return started_ ? void() : AllStarted();
  }
  CopyIn(direction, 0, from, manifest.bytes, std::move(done));
  AllStarted();
}

// ---- Out of the chunks of its virtual memory ----

// The chunks are mapped already, or the producer hands them on first. Their names include the
// producer's, so no other process can say what lies in them.
void DeviceFetcher::Op::BringChunks() {
  mapping_ = engine->mappings()->FindChunks(ChunksOwner(*WayOf(false), key), manifest.reference);
  if (mapping_ == nullptr) return AskForChunks();
  ++owner_->counters_.in_chunks;
  CopyFrom(reinterpret_cast<const void*>(mapping_->base() + manifest.reference.offset),
           Copier::Direction::kOnDevice);
}

void DeviceFetcher::Op::AskForChunks() {
  auto mailbox = ChunkMailbox::Open();
  if (!mailbox.ok()) return StageForOnce(mailbox.status());
  handed_.mailbox = *std::move(mailbox);
  FetchPart(ChunksKey(key, manifest.transfer, handed_.chunks.size(), handed_.mailbox->name(),
                      handed_.mailbox->token()),
            Tensor(), false,
            [this](const absl::Status& status, const Tensor&, bool) { OnChunksAnswered(status); });
}

void DeviceFetcher::Op::OnChunksAnswered(const absl::Status& status) {
  if (!status_.ok()) return EndIfDone();
  absl::Status handed = status;
  if (handed.ok()) {
    handed = handed_.mailbox->Collect(manifest.reference.allocation_id, &handed_.chunks);
    if (handed.ok() && handed_.chunks.size() < manifest.reference.chunks) return AskForChunks();
  } else if (absl::IsAborted(handed) || absl::IsCancelled(handed) ||
             absl::IsDeadlineExceeded(handed)) {
    return Fail(handed);
  }
  const Handed all = std::exchange(handed_, Handed());
  if (!handed.ok()) return StageForOnce(handed);
  auto mapping = engine->mappings()->OpenChunks(ChunksOwner(*WayOf(false), key), manifest.reference,
                                                all.chunks);
  if (!mapping.ok()) return StageForOnce(mapping.status());
  mapping_ = *mapping;
  ++owner_->counters_.in_chunks;
  CopyFrom(reinterpret_cast<const void*>(mapping_->base() + manifest.reference.offset),
           Copier::Direction::kOnDevice);
}

// Another process on the same GPU can run only when our kernel has ended, so no kernel may stand
// by.
bool DeviceFetcher::Op::IsSmallAndFar() const {
  const cuda::Uuid& ours = engine->gpu()->device().uuid;
  return manifest.bytes > 0 && manifest.bytes <= Standby::kMostWideBytes &&
         memcmp(manifest.uuid.bytes, ours.bytes, sizeof(ours.bytes)) != 0;
}

// True: the standby kernel makes the copy.
bool DeviceFetcher::Op::CopyInSmall(const void* from, Copier::Done done) {
  ++pending_;
  return engine->CopySmall(into_.mutable_data(), from, manifest.bytes,
                           args.destination.valid() ? context->moment() : nullptr, LastUse(into_),
                           [this, done = std::move(done)](absl::Status status) mutable {
                             --pending_;
                             std::move(done)(std::move(status));
                           });
}

void DeviceFetcher::Op::BringView(const void* from) {
  ++owner_->counters_.views;
  auto view = owner_->views_.Make(engine, std::exchange(mapping_, nullptr), const_cast<void*>(from),
                                  step, key, manifest);
  if (!view.ok()) return Fail(view.status());
  into_ = *std::move(view);
  started_ = true;
  EndIfDone();
}

void DeviceFetcher::Op::OnIpcCopied(absl::Status status) {
  if (mapping_ != nullptr) engine->mappings()->Close(std::exchange(mapping_, nullptr));
  // Also where the fetch has failed meanwhile: the next in line would get the tensor.
  if (status.ok() && MayBeGone()) return AskWhetherKept([this] { EndIfDone(); });
  if (!status.ok()) return Fail(status);
  EndIfDone();
}

void DeviceFetcher::Op::AskWhetherKept(absl::AnyInvocable<void() &&> kept) {
  ++pending_;
  const int64_t asked_ns = owner_->poller_->clock().NowNs();
  owner_->FetchAside(
      step, TransferKey(key, manifest.transfer, "alive"), Tensor(),
      [this, asked_ns, kept = std::move(kept)](absl::Status status, const Tensor&) mutable {
        --pending_;
        if (!status.ok()) {
          is_gone_ = true;
          return Fail(status);
        }
        manifest.asked_ns = asked_ns;  // A new lease has begun since.
        std::move(kept)();
      });
}

// ---- By the NICs alone ----

// A NIC waits for no stream, so all earlier users of the destination must have ended.
void DeviceFetcher::Op::BringDirect() {
  ++pending_;
  destination_wait_ = std::make_shared<Op*>(this);
  if (!args.deadline.is_never()) owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
  const GpuEvent* const moment = args.destination.valid() ? context->moment() : nullptr;
  // What it refers to lasts as long as the wait, also if the fetch ends before.
  engine->copier()->WhenThere(moment, [wait = destination_wait_, context = context, into = into_,
                                       copier = engine->copier()](const absl::Status& ended) {
    if (*wait == nullptr) return;
    if (!ended.ok()) return (*wait)->OnDestinationFree(ended);
    copier->WhenThere(LastUse(into), [wait, into](const absl::Status& also) {
      if (*wait != nullptr) (*wait)->OnDestinationFree(also);
    });
  });
}

void DeviceFetcher::Op::OnDestinationFree(const absl::Status& status) {
  destination_wait_ = nullptr;
  --pending_;
  owner_->poller_->CancelTimer(&late_timer_);
  if (!status.ok()) return Fail(status);
  FetchDirect();
}

void DeviceFetcher::Op::FetchDirect() {
  if (!status_.ok()) return EndIfDone();
  auto into = Tensor::FromStorage(into_.storage(), into_.storage_offset(), DType::kUint8,
                                  {static_cast<int64_t>(manifest.bytes)});
  if (!into.ok()) return Fail(into.status());
  FetchPart(
      TransferKey(key, manifest.transfer, "whole"), *std::move(into), false,
      [this](const absl::Status& status, const Tensor& landed, bool) { OnDirect(status, landed); });
}

void DeviceFetcher::Op::OnDirect(const absl::Status& status, const Tensor& landed) {
  if (!status_.ok()) return EndIfDone();
  const bool refused = absl::IsUnimplemented(status) || absl::IsInvalidArgument(status) ||
                       absl::IsResourceExhausted(status);
  if (refused || (status.ok() && !landed.SharesBytesWith(into_))) {
    // It is another channel than in the probe, or has no room for so much at once.
    DeviceWay& way = *WayOf(true);
    if (!absl::IsResourceExhausted(status)) {
      way.state = DeviceWay::State::kRefused;
      way.refused_at_ns = owner_->poller_->now_ns();
    }
    ++way.staged;
    way.why = status.ok() ? "it came into host memory" : std::string(status.message());
    return BringStaged();
  }
  if (!status.ok()) return Fail(status);
  ++owner_->counters_.direct;
  AllStarted();
  EndIfDone();
}
void DeviceFetcher::Op::BringStaged() {
  if (!into_.valid()) {  // It was to be a view.
    is_view_ = false;
    const absl::Status status = ChooseDestination();
    if (!status.ok()) return Fail(status);
  }
  ++owner_->counters_.staged;
  chunks_ = (manifest.bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes;
  if (manifest.chunk_bytes > engine->slot_bytes()) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "the producer sends pieces of ", manifest.chunk_bytes, " bytes, and this worker takes ",
        engine->slot_bytes(), ": run the same release on both")));
  }
  if (chunks_ == 0) AllStarted();
  MoreChunks();
  EndIfDone();
}
void DeviceFetcher::Op::MoreChunks() {
  ++pending_;  // What fails in here must not end us in here.
  while (status_.ok() && next_chunk_ < chunks_ && in_flight_ < owner_->options_.chunks_in_flight) {
    const uint64_t chunk = next_chunk_++;
    ++in_flight_;
    WhenSlot([this, chunk](StorageRef slot) {
      if (!status_.ok()) return EndIfDone();
      const uint64_t bytes =
          std::min(manifest.chunk_bytes, manifest.bytes - chunk * manifest.chunk_bytes);
      auto into = Tensor::FromStorage(slot, 0, DType::kUint8, {static_cast<int64_t>(bytes)});
      if (!into.ok()) return Fail(into.status());
      FetchPart(ChunkKey(key, manifest.transfer, chunk), *std::move(into), true,
                [this, chunk, bytes, slot = std::move(slot)](absl::Status status, Tensor landed,
                                                             bool) mutable {
                  OnChunk(chunk, bytes, std::move(slot), std::move(status), std::move(landed));
                });
    });
  }
  --pending_;
}

void DeviceFetcher::Op::OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot,
                                absl::Status status, Tensor landed) {
  if (!status_.ok()) return EndIfDone();
  if (!status.ok()) return Fail(status);
  if (landed.bytes() != bytes) {
    return Fail(absl::DataLossError(
        "the producer broke the protocol: a piece of a GPU's tensor has the wrong size"));
  }
  // A view of the producer's memory is read in place, if our GPU can do that.
  if (landed.storage().get() != slot.get()) {
    if (engine->ReadsPeer(landed.data(), bytes)) {
      ++owner_->counters_.read_in_peer;
      slot = landed.storage();
    } else {
      memcpy(slot->data(), landed.data(), bytes);
      landed = Tensor();
    }
  }
  const void* const data = landed.valid() ? landed.data() : slot->data();
  CopyIn(Copier::Direction::kToDevice, chunk * manifest.chunk_bytes, data, bytes,
         [this, slot = std::move(slot)](absl::Status copied) mutable {
           slot = StorageRef();
           --in_flight_;
           if (!copied.ok()) return Fail(copied);
           MoreChunks();
           EndIfDone();
         });
  if (++copies_begun_ == chunks_) AllStarted();
}

}  // namespace tryst
