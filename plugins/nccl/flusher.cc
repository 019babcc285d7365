#include "plugins/nccl/flusher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/nccl/abi.h"

namespace tryst::nccl {

absl::StatusOr<std::unique_ptr<Flusher>> Flusher::Make(Nic* nic) {
  std::unique_ptr<Flusher> flusher(new Flusher());
  absl::StatusOr<std::unique_ptr<Region>> region =
      nic->RegisterRegion(flusher->landing_.data(), flusher->landing_.size(), kLocalWrite);
  if (!region.ok()) return region.status();
  flusher->region_ = *std::move(region);
  const uint32_t depth = kMaxRequests;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> completions =
      nic->CreateCompletionQueue(4 * depth);
  if (!completions.ok()) return completions.status();
  flusher->completions_ = *std::move(completions);
  const std::vector<NicPort> ports = nic->Ports();
  for (std::unique_ptr<QueuePair>& pair : flusher->pairs_) {
    QueuePairOptions options;
    options.completions = flusher->completions_.get();
    options.send_depth = depth;
    options.receive_depth = 1;
    if (!ports.empty()) options.port = ports[0].number;
    absl::StatusOr<std::unique_ptr<QueuePair>> made = nic->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    pair = *std::move(made);
  }
  for (size_t i = 0; i < 2; ++i) {
    const absl::Status connected =
        flusher->pairs_[i]->Connect(flusher->pairs_[1 - i]->LocalAddress());
    if (!connected.ok()) return connected;
  }
  return flusher;
}

absl::Status Flusher::Start(uint64_t address, uint32_t key) {
  Entry entry;
  entry.address = reinterpret_cast<uint64_t>(landing_.data());
  entry.bytes = 1;
  entry.local_key = region_->local_key();
  SendWork work;
  work.op = SendOp::kRead;
  work.entries = absl::Span<const Entry>(&entry, 1);
  work.remote_address = address;
  work.remote_key = key;
  const absl::Status posted = pairs_[0]->PostSend(absl::Span<const SendWork>(&work, 1));
  if (posted.ok()) ++started_;
  return posted;
}

absl::StatusOr<uint64_t> Flusher::Ended() {
  Completion done[8];
  const absl::StatusOr<size_t> count = completions_->Poll(absl::MakeSpan(done));
  if (!count.ok()) return count.status();
  for (size_t i = 0; i < *count; ++i) {
    if (done[i].status != CompletionStatus::kOk) {
      return absl::InternalError(absl::StrCat(
          "a NIC could not flush its writes to GPU memory: the RDMA read that does it ended with ",
          CompletionStatusName(done[i].status)));
    }
    ++ended_;
  }
  return ended_;
}

}  // namespace tryst::nccl
