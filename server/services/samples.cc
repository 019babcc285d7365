#include "server/services/samples.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

uint8_t ByteAt(uint64_t at) { return static_cast<uint8_t>(at * 131 + (at >> 8)); }

absl::Status CheckLimits(int64_t step_id, uint64_t bytes, uint32_t count) {
  if (step_id < kFirstSampleStep || step_id > kLastSampleStep) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_id, " may belong to others: tryst bench must use one from ",
                     kFirstSampleStep, " to ", kLastSampleStep));
  }
  if (bytes == 0 || bytes > kMostSampleBytes || count == 0 || count > kMostSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("tryst bench may ask for at most ", kMostSamples, " samples of ",
                     kMostSampleBytes, " bytes each, and asked for ", count, " of ", bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorKeyPrefix> SampleKeys(const std::string& from, uint64_t from_incarnation,
                                           const std::string& to) {
  return TensorKeyPrefix::Make(absl::StrCat(from, "/device:CPU:0"), from_incarnation,
                               absl::StrCat(to, "/device:CPU:0"), "tryst/sample");
}

bool LooksLikeSample(const Tensor& tensor, uint64_t bytes) {
  if (!tensor.valid() || tensor.dtype() != DType::kUint8 || tensor.bytes() != bytes) return false;
  const uint8_t* const data = tensor.data_as<uint8_t>();
  return data[0] == ByteAt(0) && data[bytes - 1] == ByteAt(bytes - 1);
}

bool IsSample(const Tensor& tensor, uint64_t bytes) {
  if (!LooksLikeSample(tensor, bytes)) return false;
  const uint8_t* const data = tensor.data_as<uint8_t>();
  for (uint64_t at = 0; at < bytes; ++at) {
    if (data[at] != ByteAt(at)) return false;
  }
  return true;
}

absl::Status SampleSender::Send(const std::string& to, int64_t step_id, uint64_t bytes,
                                uint32_t count) {
  absl::Status fits = CheckLimits(step_id, bytes, count);
  if (!fits.ok()) return fits;
  const auto keys = SampleKeys(worker_, incarnation_, to);
  if (!keys.ok()) return keys.status();
  Sweep();
  Step before;
  {
    MutexLock lock(&mu_);
    if (steps_by_peer_.size() >= kMostSampledPeers && steps_by_peer_.count(to) == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(worker_, " is being measured by ", steps_by_peer_.size(),
                       " other workers already: try again in a minute"));
    }
    before =
        std::exchange(steps_by_peer_[to], Step{step_id, Deadline::After(*clock_, kSampleLife)});
  }
  if (before.id != 0) steps_->CleanupStep(before.id);
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
  if (!tensor.ok()) return tensor.status();
  auto* const data = static_cast<uint8_t*>(tensor->mutable_data());
  for (uint64_t at = 0; at < bytes; ++at) data[at] = ByteAt(at);
  const auto step = steps_->StartStep(step_id);
  if (!step.ok()) return step.status();
  for (uint32_t i = 0; i < count; ++i) {
    absl::Status sent = (*step)->Send(keys->At(0, i % kSampleKeys), SendArgs(), *tensor, false);
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

void SampleSender::Sweep() {
  const int64_t now_ns = clock_->NowNs();
  std::vector<int64_t> over;
  {
    MutexLock lock(&mu_);
    for (auto it = steps_by_peer_.begin(); it != steps_by_peer_.end();) {
      if (!it->second.ends.Passed(now_ns)) {
        ++it;
        continue;
      }
      over.push_back(it->second.id);
      it = steps_by_peer_.erase(it);
    }
  }
  for (int64_t step_id : over) steps_->CleanupStep(step_id);
}

}  // namespace tryst
