#include "gpu/gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gpu/gather_ptx.h"

namespace tryst {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kStandbyThreads = 1024;
constexpr unsigned kStridedThreads = 256;
// A block for each piece: the device's scheduler is better at it than a loop over pieces.
constexpr unsigned kMostBlocks = 1u << 20;

}  // namespace

absl::Status GatherList::Reserve(const Gpu* gpu, uint32_t count) {
  if (count <= room_) return absl::OkStatus();
  const uint32_t room = std::max<uint32_t>(count + count / 2, 1024);
  const uint64_t bytes = uint64_t{room} * sizeof(GatherPiece);
  auto pinned = PinnedMemory::Allocate(gpu, bytes);
  if (!pinned.ok()) return pinned.status();
  auto table = DeviceMemory::Allocate(gpu, bytes);
  if (!table.ok()) return table.status();
  std::copy_n(static_cast<GatherPiece*>(pinned_.data()), count_,
              static_cast<GatherPiece*>(pinned->data()));
  pinned_ = *std::move(pinned);
  table_ = *std::move(table);
  room_ = room;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GatherKernel>> GatherKernel::Load(const Gpu* gpu) {
  const GpuDevice& device = gpu->device();
  if (device.compute_major * 10 + device.compute_minor < 75) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", device.ordinal, " is too old: it has a compute capability below 7.5"));
  }
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  std::unique_ptr<GatherKernel> kernel(new GatherKernel(gpu));
  const CudaDriver& driver = gpu->driver();
  status =
      driver.Check("cuModuleLoadData", gpu->calls().cuModuleLoadData(&kernel->module_, kGatherPtx));
  if (!status.ok()) return status;
  const struct {
    cuda::Function* function;
    const char* name;
  } functions[] = {{&kernel->gather_, "tryst_gather"},
                   {&kernel->copy_, "tryst_copy"},
                   {&kernel->standby_, "tryst_standby"},
                   {&kernel->strided_, "tryst_strided"}};
  for (const auto& wanted : functions) {
    status = driver.Check(
        "cuModuleGetFunction",
        gpu->calls().cuModuleGetFunction(wanted.function, kernel->module_, wanted.name));
    if (!status.ok()) return status;
  }
  return kernel;
}

GatherKernel::~GatherKernel() {
  if (module_ != nullptr && gpu_->Use().ok()) gpu_->calls().cuModuleUnload(module_);
}

absl::Status GatherKernel::Launch(const GatherList& list, cuda::Stream stream) const {
  if (list.count() == 0) return absl::OkStatus();
  cuda::Address table = list.table_.address();
  unsigned count = list.count();
  absl::Status status = gpu_->driver().Check(
      "cuMemcpyAsync",
      gpu_->calls().cuMemcpyAsync(table, reinterpret_cast<cuda::Address>(list.pinned_.data()),
                                  uint64_t{count} * sizeof(GatherPiece), stream));
  if (!status.ok()) return status;
  void* parameters[] = {&table, &count};
  return gpu_->driver().Check(
      "cuLaunchKernel",
      gpu_->calls().cuLaunchKernel(gather_, std::min(kMostBlocks, count), 1, 1, kThreads, 1, 1, 0,
                                   stream, parameters, nullptr));
}

absl::Status GatherKernel::LaunchCopy(const GatherPiece& piece, uint64_t* flag, uint64_t value,
                                      cuda::Stream stream) const {
  GatherPiece copied = piece;
  void* parameters[] = {&copied, &flag, &value};
  const uint64_t units = std::max<uint64_t>(piece.bytes / 16, 1);
  const unsigned threads =
      static_cast<unsigned>(std::min<uint64_t>(kThreads, (units + 31) / 32 * 32));
  return gpu_->driver().Check(
      "cuLaunchKernel",
      gpu_->calls().cuLaunchKernel(copy_, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr));
}

absl::Status GatherKernel::LaunchStrided(const StridedRuns& runs, cuda::Stream stream) const {
  TRYST_CHECK(runs.runs * runs.units <= StridedRuns::kMostUnits);
  const uint64_t blocks = (runs.runs * runs.units + kStridedThreads - 1) / kStridedThreads;
  if (blocks == 0) return absl::OkStatus();
  StridedRuns copied = runs;
  void* parameters[] = {&copied};
  return gpu_->driver().Check(
      "cuLaunchKernel",
      gpu_->calls().cuLaunchKernel(strided_,
                                   static_cast<unsigned>(std::min<uint64_t>(kMostBlocks, blocks)),
                                   1, 1, kStridedThreads, 1, 1, 0, stream, parameters, nullptr));
}

absl::Status GatherKernel::LaunchStandby(const StandbyLaunch& launch, unsigned blocks,
                                         cuda::Stream stream) const {
  StandbyLaunch told = launch;
  void* parameters[] = {&told.words,  &told.blocks,    &told.next,
                        &told.launch, &told.linger_ns, &told.life_ns};
  return gpu_->driver().Check(
      "cuLaunchKernel", gpu_->calls().cuLaunchKernel(standby_, blocks, 1, 1, kStandbyThreads, 1, 1,
                                                     0, stream, parameters, nullptr));
}

}  // namespace tryst
