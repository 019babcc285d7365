#include "channel/device/gdr_check.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "gpu/device_memory.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kBulkBytes = 1 << 20;
constexpr int kBulks = 256;
constexpr int kSmalls = 101;

absl::StatusOr<std::vector<std::string>> DeviceNames(const IbvCalls& calls) {
  int count = 0;
  ibv_device** list = calls.get_device_list(&count);
  if (list == nullptr || count == 0) {
    if (list != nullptr) calls.free_device_list(list);
    return absl::NotFoundError(
        "there is no RDMA device: ls /sys/class/infiniband is empty; install the NIC and its "
        "driver");
  }
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(list[i]->name);
  calls.free_device_list(list);
  return names;
}

// One transfer after the other, `in_flight` of them posted at a time.
class Measure {
 public:
  Measure(Nic* nic, const Gpu& gpu, DirectWay way) : nic_(nic), gpu_(gpu), way_(way) {}

  absl::Status Prepare() {
    auto memory = DeviceMemory::Allocate(&gpu_, kBulkBytes);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    auto region = RegisterGpuMemory(nic_, gpu_, way_, memory_.address(), kBulkBytes,
                                    kRemoteWrite | kRemoteRead);
    if (!region.ok()) return region.status();
    region_ = *std::move(region);
    host_.resize(kBulkBytes);
    auto host = nic_->RegisterRegion(host_.data(), kBulkBytes, kLocalWrite);
    if (!host.ok()) return host.status();
    host_region_ = *std::move(host);
    auto queue = nic_->CreateCompletionQueue(LoopBack::kCompletions);
    if (!queue.ok()) return queue.status();
    queue_ = *std::move(queue);
    auto loop = LoopBack::Open(nic_, queue_.get());
    if (!loop.ok()) return loop.status();
    loop_ = *std::move(loop);
    return absl::OkStatus();
  }

  // How long `count` transfers take, in ns.
  absl::StatusOr<int64_t> Run(SendOp op, uint64_t bytes, int count, int in_flight) {
    const int64_t begin = clock_.NowNs();
    const Deadline until = Deadline::After(clock_, absl::Seconds(5));
    for (int posted = 0, ended = 0; ended < count;) {
      if (posted < count && posted - ended < in_flight) {
        const Entry entry{host_region_->address(), bytes, host_region_->local_key()};
        SendWork work;
        work.op = op;
        work.entries = absl::MakeConstSpan(&entry, 1);
        work.remote_address = region_->address();
        work.remote_key = region_->remote_key();
        absl::Status status = loop_.near->PostSend(absl::MakeConstSpan(&work, 1));
        if (!status.ok()) return status;
        ++posted;
        continue;
      }
      Completion done[4];
      auto polled = queue_->Poll(absl::MakeSpan(done));
      if (!polled.ok()) return polled.status();
      for (size_t i = 0; i < *polled; ++i) {
        if (done[i].status == CompletionStatus::kOk) continue;
        return absl::UnavailableError(CompletionStatusName(done[i].status));
      }
      ended += static_cast<int>(*polled);
      if (until.Passed(clock_.NowNs()))
        return absl::DeadlineExceededError("the NIC completed nothing within the time of the test");
    }
    return clock_.NowNs() - begin;
  }

 private:
  Nic* const nic_;
  const Gpu& gpu_;
  const DirectWay way_;
  const SteadyClock clock_;
  DeviceMemory memory_;
  std::vector<uint8_t> host_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<Region> host_region_;
  std::unique_ptr<CompletionQueue> queue_;
  LoopBack loop_;  // Destroyed first.
};

absl::Status Fill(Nic* nic, const Gpu& gpu, GdrFinding* finding) {
  Measure measure(nic, gpu, finding->reach.way);
  absl::Status status = measure.Prepare();
  if (!status.ok()) return status;
  for (auto [op, rate] : {std::make_pair(SendOp::kWrite, &finding->write_gb_per_s),
                          std::make_pair(SendOp::kRead, &finding->read_gb_per_s)}) {
    auto ns = measure.Run(op, kBulkBytes, kBulks, 4);
    if (!ns.ok()) return ns.status();
    *rate =
        static_cast<double>(kBulkBytes) * kBulks / static_cast<double>(std::max<int64_t>(*ns, 1));
  }
  std::vector<int64_t> times;
  for (int i = 0; i < kSmalls; ++i) {
    auto ns = measure.Run(SendOp::kRead, 8, 1, 1);
    if (!ns.ok()) return ns.status();
    times.push_back(*ns);
  }
  std::nth_element(times.begin(), times.begin() + kSmalls / 2, times.end());
  finding->flush_us = static_cast<double>(times[kSmalls / 2]) / 1000;
  return absl::OkStatus();
}

}  // namespace

std::string GdrFinding::ToText() const {
  if (reach.way == DirectWay::kStaging) return reach.ToText();
  return absl::StrCat(reach.ToText(),
                      absl::StrFormat("; written at %.1f GB/s, read at %.1f GB/s, a flush takes "
                                      "%.1f us",
                                      write_gb_per_s, read_gb_per_s, flush_us));
}

absl::StatusOr<std::vector<GdrFinding>> CheckGdr(const GdrCheckOptions& options) {
  auto driver = CudaDriver::Load(options.cuda_library);
  if (!driver.ok()) return driver.status();
  auto devices = (*driver)->Devices();
  if (!devices.ok()) return devices.status();
  if (devices->empty()) return absl::NotFoundError("the CUDA driver shows no GPU");
  absl::StatusOr<IbvCalls> calls =
      options.ibv.has_value() ? absl::StatusOr<IbvCalls>(*options.ibv) : LoadIbvCalls();
  if (!calls.ok()) return calls.status();
  auto names = DeviceNames(*calls);
  if (!names.ok()) return names.status();
  std::vector<GdrFinding> findings;
  std::string unusable;
  for (const std::string& name : *names) {
    IbvNicOptions nic_options;
    nic_options.calls = *calls;
    nic_options.choice.settings.device = name;
    nic_options.choice.sysfs_root = options.direct.sysfs_root;
    auto nic = OpenIbvNic(nic_options);
    if (!nic.ok()) {
      absl::StrAppend(&unusable, name, ": ", nic.status().message(), "; ");
      continue;
    }
    for (const GpuDevice& device : *devices) {
      auto gpu = Gpu::Open(driver->get(), device.ordinal);
      if (!gpu.ok()) return gpu.status();
      GdrFinding finding;
      finding.reach = ProveReach(nic->get(), **gpu, options.direct);
      if (options.measure && finding.reach.way != DirectWay::kStaging) {
        absl::Status measured = Fill(nic->get(), **gpu, &finding);
        if (!measured.ok()) {
          absl::StrAppend(&finding.reach.proof, ", but measuring failed: ", measured.message());
        }
      }
      findings.push_back(std::move(finding));
    }
  }
  if (findings.empty())
    return absl::UnavailableError(absl::StrCat("no RDMA port is usable: ", unusable));
  return findings;
}

}  // namespace tryst
