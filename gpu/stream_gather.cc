#include "gpu/stream_gather.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr size_t kReapedByCall = 4;

}  // namespace

StreamGather::~StreamGather() { TRYST_CHECK(idle()) << "a stream has yet to copy"; }

bool StreamGather::idle() {
  size_t running;
  {
    MutexLock lock(&mu_);
    running = running_.size();
  }
  Reap(running);
  MutexLock lock(&mu_);
  return listed_ == 0;
}

// Asks of at most so many launches whether they have ended.
void StreamGather::Reap(size_t most) {
  for (; most > 0; --most) {
    std::unique_ptr<Launch> launch;
    {
      MutexLock lock(&mu_);
      if (running_.empty()) return;
      launch = std::move(running_.front());
      running_.pop_front();
    }
    const absl::StatusOr<bool> ended = launch->end.Done();
    if (!ended.ok() || *ended) {  // When a GPU has failed, nothing moves.
      Keep(std::move(launch));
      continue;
    }
    MutexLock lock(&mu_);
    running_.push_back(std::move(launch));
  }
}

// Keeps a list that no launch reads, in the place of older ones.
void StreamGather::Keep(std::unique_ptr<Launch> launch) {
  const uint32_t room = launch->list.room();
  std::deque<std::unique_ptr<Launch>> dropped;  // Freed without the lock.
  MutexLock lock(&mu_);
  listed_ -= launch->pieces;
  if (room > kMostKept) return dropped.push_back(std::move(launch));
  while (kept_room_ + room > kMostKept) {
    kept_room_ -= kept_.front()->list.room();
    dropped.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
  kept_room_ += room;
  kept_.push_back(std::move(launch));
}

absl::StatusOr<std::unique_ptr<StreamGather::Launch>> StreamGather::Take(uint32_t pieces) {
  Reap(kReapedByCall);
  auto launch = std::make_unique<Launch>();
  {
    MutexLock lock(&mu_);
    if (listed_ + pieces > kMostListed) {
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", gpu_->ordinal(), " has yet to copy ", listed_,
                       " spans that were sent before: wait until the streams have come so far"));
    }
    listed_ += pieces;
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if ((*kept)->list.room() < pieces) continue;
      launch = std::move(*kept);
      kept_room_ -= launch->list.room();
      kept_.erase(kept);
      break;
    }
  }
  launch->pieces = pieces;
  absl::Status made = launch->list.Reserve(gpu_, pieces);
  if (made.ok() && !launch->end.valid()) {
    auto event = gpu_->MakeEvent();
    made = event.status();
    if (event.ok()) launch->end = *std::move(event);
  }
  if (made.ok()) return launch;
  Keep(std::move(launch));
  return made;
}

absl::Status StreamGather::Put(absl::Span<const GatherPiece> pieces, Launch* launch,
                               cuda::Stream stream) const {
  launch->list.Clear();
  for (const GatherPiece& piece : pieces) {
    if (kernel_ != nullptr) {
      launch->list.Add(piece);
      continue;
    }
    const absl::Status copied = gpu_->driver().Check(
        "cuMemcpyAsync", gpu_->calls().cuMemcpyAsync(piece.to, piece.from, piece.bytes, stream));
    if (!copied.ok()) return copied;
  }
  const absl::Status launched =
      kernel_ == nullptr ? absl::OkStatus() : kernel_->Launch(launch->list, stream);
  return launched.ok() ? launch->end.Record(stream) : launched;
}

absl::Status StreamGather::Copy(absl::Span<const GatherPiece> pieces, cuda::Stream stream) {
  if (pieces.empty()) return absl::OkStatus();
  TRYST_CHECK(pieces.size() <= kMostCopies);
  const absl::Status runs = gpu_->CheckNotCapturing(stream);
  if (!runs.ok()) return runs;
  auto launch = Take(static_cast<uint32_t>(pieces.size()));
  if (!launch.ok()) return launch.status();
  absl::Status put = gpu_->Use();
  if (put.ok()) put = Put(pieces, launch->get(), stream);
  if (put.ok()) {
    MutexLock lock(&mu_);
    running_.push_back(*std::move(launch));
    return put;
  }
  (void)gpu_->WaitFor(stream);  // What was put there reads the list.
  Keep(*std::move(launch));
  return put;
}

}  // namespace tryst
