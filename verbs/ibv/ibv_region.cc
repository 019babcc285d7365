#include "verbs/ibv/ibv_region.h"

#include <sys/resource.h>

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

std::string LockedMemoryAdvice() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return absl::StrCat("; RLIMIT_MEMLOCK is ", limit.rlim_cur >> 10,
                      " KiB: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit "
                      "memlock=-1)");
}

// The kernel returns ENOMEM both for "no more room to lock" and for "no more keys".
absl::Status WithAdvice(const absl::Status& status, uint64_t bytes) {
  std::string text = absl::StrCat("registering ", bytes, " bytes: ", status.message());
  if (absl::IsResourceExhausted(status)) absl::StrAppend(&text, LockedMemoryAdvice());
  return absl::Status(status.code(), text);
}

absl::Status CheckRange(uint64_t address, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("the memory to register has no bytes");
  if (bytes > std::numeric_limits<uint64_t>::max() - address) {
    return absl::InvalidArgumentError(
        "the memory to register reaches beyond the end of the address space");
  }
  return absl::OkStatus();
}

}  // namespace

unsigned VerbsAccess(uint32_t access, const NicLimits& limits) {
  unsigned verbs = 0;
  // Verbs does not allow remote writing without local writing.
  if (access & (kLocalWrite | kRemoteWrite)) verbs |= IBV_ACCESS_LOCAL_WRITE;
  if (access & kRemoteWrite) verbs |= IBV_ACCESS_REMOTE_WRITE;
  if (access & kRemoteRead) verbs |= IBV_ACCESS_REMOTE_READ;
  if ((access & kRelaxedOrdering) && limits.relaxed_ordering) verbs |= IBV_ACCESS_RELAXED_ORDERING;
  return verbs;
}

IbvRegion::IbvRegion(IbvDevice* device, ibv_mr* region, uint64_t address, uint64_t bytes)
    : device_(device), region_(region), address_(address), bytes_(bytes) {
  device_->OnMade();
}

IbvRegion::~IbvRegion() {
  const absl::Status status = FromReturned(device_->calls().dereg_mr(region_), "ibv_dereg_mr");
  if (!status.ok())
    TRYST_LOG(Error) << "memory stays registered with the NIC until the process ends: " << status;
  device_->OnGone();
}

absl::StatusOr<std::unique_ptr<Region>> IbvRegion::Register(IbvDevice* device, void* address,
                                                            uint64_t bytes, uint32_t access) {
  const uint64_t base = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr) return absl::InvalidArgumentError("the memory to register is at null");
  const absl::Status range = CheckRange(base, bytes);
  if (!range.ok()) return range;
  const unsigned rights = VerbsAccess(access, device->limits());
  const IbvCalls& calls = device->calls();
  // The old function passes optional rights on to kernels that refuse them; the new one removes
  // them first.
  const absl::StatusOr<ibv_mr*> region =
      calls.reg_mr_iova2 != nullptr
          ? FromPointer(calls.reg_mr_iova2(device->domain(), address, bytes, base, rights),
                        "ibv_reg_mr_iova2")
          : FromPointer(calls.reg_mr(device->domain(), address, bytes, static_cast<int>(rights)),
                        "ibv_reg_mr");
  if (!region.ok()) return WithAdvice(region.status(), bytes);
  return std::unique_ptr<Region>(new IbvRegion(device, *region, base, bytes));
}

absl::StatusOr<std::unique_ptr<Region>> IbvRegion::RegisterDmaBuf(IbvDevice* device, int fd,
                                                                  uint64_t offset, uint64_t bytes,
                                                                  uint64_t remote_base,
                                                                  uint32_t access) {
  if (!device->limits().dma_buf) {
    return absl::UnimplementedError(
        absl::StrCat(device->name(),
                     " cannot register a dma-buf: install kernel 5.12, libibverbs 1.12 (rdma-core "
                     "34) and a driver that supports it, or later ones"));
  }
  if (fd < 0) return absl::InvalidArgumentError("the dma-buf to register has no file descriptor");
  for (uint64_t start : {offset, remote_base}) {
    const absl::Status range = CheckRange(start, bytes);
    if (!range.ok()) return range;
  }
  const int rights = static_cast<int>(VerbsAccess(access, device->limits()));
  const absl::StatusOr<ibv_mr*> region = FromPointer(
      device->calls().reg_dmabuf_mr(device->domain(), offset, bytes, remote_base, fd, rights),
      "ibv_reg_dmabuf_mr");
  if (!region.ok()) return WithAdvice(region.status(), bytes);
  return std::unique_ptr<Region>(new IbvRegion(device, *region, remote_base, bytes));
}

}  // namespace tryst
