#include "channel/device/device_selections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// A block of the kernel takes one piece after the other, so a long span is several.
constexpr uint64_t kMostCopyBytes = 64 << 10;
// What the poller lists, in a fraction of a millisecond, before it does anything else.
constexpr size_t kCopiesOfTurn = 16 << 10;

absl::Status Stopping() { return absl::UnavailableError("this worker is stopping"); }

}  // namespace

// A scatter until `done` has run.
struct DeviceSelections::Scatter {
  Tensor dense;
  Tensor into;
  Selection selection;
  std::shared_ptr<const GpuEvent> after;
  absl::AnyInvocable<void(absl::Status) &&> done;
  SelectionPlace place;
  uint64_t at = 0;
};

DeviceSelections::DeviceSelections(DeviceEngine* engine, GpuStream own)
    : engine_(engine), own_(std::move(own)), gathers_(engine->gpu(), engine->copier()->kernel()) {}

// Counts what begins before it looks whether it may, as who closes looks at the count afterwards.
bool DeviceSelections::Begin() {
  under_way_.fetch_add(1);
  if (!closed_.load()) return true;
  End();
  return false;
}

bool DeviceSelections::Reaches(const Tensor& tensor) const {
  const int32_t there = tensor.space().device_ordinal;
  return !tensor.on_host() && (there == engine_->gpu()->ordinal() || engine_->has_peer(there));
}

absl::Status DeviceSelections::CheckHere(const Tensor& tensor) const {
  if (tensor.space().device_ordinal == engine_->gpu()->ordinal()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the selection is of memory of GPU ", tensor.space().device_ordinal,
                   ", and the call's stream is one of GPU ", engine_->gpu()->ordinal(),
                   ": give one of the same"));
}

absl::StatusOr<Tensor> DeviceSelections::Gather(const Tensor& tensor, const Selection& selection,
                                                uint64_t bytes, cuda::Stream stream) {
  const absl::Status here = CheckHere(tensor);
  if (!here.ok()) return here;
  if (!Begin()) return Stopping();
  struct Ends {
    ~Ends() { self->End(); }
    DeviceSelections* const self;
  } ends{this};
  absl::StatusOr<Tensor> row =
      engine_->Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(bytes)}), own_.get());
  if (!row.ok()) return row;
  const cuda::Address from = AddressOf(tensor.data()), to = AddressOf(row->data());
  std::vector<GatherPiece> pieces;
  SelectionPlace place;
  for (uint64_t at = 0; at < bytes;) {
    if (pieces.size() == StreamGather::kMostCopies) {
      return absl::InvalidArgumentError(
          absl::StrCat("the selection of a GPU's memory has more than ", StreamGather::kMostCopies,
                       " spans, or so many times 64 KiB: send it in several calls"));
    }
    const ByteSpan span = NextSpan(selection, std::min(kMostCopyBytes, bytes - at), &place);
    pieces.push_back({to + at, from + span.offset, span.bytes});
    at += span.bytes;
  }
  const GpuEvent* const last_use = LastUse(*row);
  if (last_use != nullptr) {
    const Gpu& gpu = *engine_->gpu();
    absl::Status waits = gpu.CheckNotCapturing(stream);
    if (waits.ok()) waits = gpu.Use();
    if (waits.ok()) {
      waits = gpu.driver().Check("cuStreamWaitEvent",
                                 gpu.calls().cuStreamWaitEvent(stream, last_use->get(), 0));
    }
    if (!waits.ok()) return waits;
  }
  const absl::Status copies = gathers_.Copy(pieces, stream);
  if (!copies.ok()) return copies;
  return row;
}

void DeviceSelections::StartScatter(const Tensor& dense, const Tensor& into,
                                    const Selection& selection, cuda::Stream stream,
                                    std::shared_ptr<const GpuEvent> after,
                                    absl::AnyInvocable<void(absl::Status) &&> done) {
  absl::Status here = CheckHere(into);
  if (!here.ok()) return std::move(done)(std::move(here));
  if (!Begin()) return std::move(done)(Stopping());
  auto scatter = std::make_shared<Scatter>(
      Scatter{dense, into, selection, std::move(after), std::move(done), SelectionPlace()});
  if (Reaches(dense) || dense.bytes() == 0) {
    return engine_->poller()->PostFn([this, scatter] { Await(scatter); });
  }
  auto row =
      engine_->Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(dense.bytes())}), stream);
  if (!row.ok()) return EndScatter(scatter, row.status());
  engine_->StartCopy(dense, *row, nullptr, [this, scatter, row = *row](absl::Status came) {
    scatter->dense = row;
    came.ok() ? Await(scatter) : EndScatter(scatter, std::move(came));
  });
}

// Begins when nothing uses the destination any more.
void DeviceSelections::Await(const std::shared_ptr<Scatter>& scatter) {
  const auto step = [this, scatter](absl::Status status) {
    status.ok() ? Step(scatter) : EndScatter(scatter, std::move(status));
  };
  const GpuEvent* const last_use = LastUse(scatter->into);
  if (scatter->after == nullptr && last_use == nullptr) return step(absl::OkStatus());
  Copier* const copier = engine_->copier();
  copier->WhenThere(scatter->after.get(), [copier, last_use, step](absl::Status there) {
    if (!there.ok() || last_use == nullptr) return step(std::move(there));
    copier->WhenThere(last_use, step);
  });
}

void DeviceSelections::Step(const std::shared_ptr<Scatter>& scatter) {
  const uint64_t all = scatter->dense.bytes();
  if (scatter->at == all) return EndScatter(scatter, absl::OkStatus());
  const cuda::Address from = AddressOf(scatter->dense.data());
  const cuda::Address to = AddressOf(scatter->into.data());
  pieces_.clear();
  while (scatter->at < all && pieces_.size() < kCopiesOfTurn) {
    const ByteSpan span =
        NextSpan(scatter->selection, std::min(kMostCopyBytes, all - scatter->at), &scatter->place);
    pieces_.push_back({to + span.offset, from + scatter->at, span.bytes});
    scatter->at += span.bytes;
  }
  engine_->CopyMany(pieces_, [this, scatter](absl::Status status) {
    status.ok() ? Step(scatter) : EndScatter(scatter, std::move(status));
  });
}

void DeviceSelections::EndScatter(const std::shared_ptr<Scatter>& scatter, absl::Status status) {
  scatter->dense.Reset();
  scatter->into.Reset();
  std::move(scatter->done)(std::move(status));
  End();
}

// Strided runs until `done` has run.
struct DeviceSelections::Strided {
  StridedRuns runs;
  Tensor from;
  Tensor to;
  absl::AnyInvocable<void(absl::Status) &&> done;
};

void DeviceSelections::StartStrided(const StridedRuns& runs, const Tensor& from, const Tensor& to,
                                    absl::AnyInvocable<void(absl::Status) &&> done) {
  if (!Begin()) return std::move(done)(Stopping());
  auto strided = std::make_shared<Strided>(Strided{runs, from, to, std::move(done)});
  engine_->poller()->PostFn([this, strided] {
    engine_->copier()->WhenThere(LastUse(strided->to), [this, strided](absl::Status there) {
      const auto end = [this, strided](absl::Status status) {
        std::move(strided->done)(std::move(status));
        End();
      };
      there.ok() ? engine_->CopyStrided(strided->runs, end) : end(std::move(there));
    });
  });
}

void DeviceSelections::StartCopy(const Tensor& from, const Tensor& into,
                                 absl::AnyInvocable<void(absl::Status) &&> done) {
  if (!Begin()) return std::move(done)(Stopping());
  engine_->StartCopy(from, into, nullptr,
                     [this, done = std::move(done)](absl::Status copied) mutable {
                       std::move(done)(std::move(copied));
                       End();
                     });
}

}  // namespace tryst
