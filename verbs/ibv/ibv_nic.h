#ifndef TRYST_VERBS_IBV_IBV_NIC_H_
#define TRYST_VERBS_IBV_IBV_NIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "verbs/ibv/device_choice.h"
#include "verbs/ibv/ibv_calls.h"
#include "verbs/ibv/rdma_settings.h"
#include "verbs/nic.h"

namespace tryst {

struct IbvNicOptions {
  // Which device and port, and how to use them. ParseRdmaSettings() reads the user's settings.
  IbvChoiceOptions choice;
  // The library to use; empty: LoadIbvCalls().
  absl::optional<IbvCalls> calls;
  // Returns each queue pair's first packet number; empty: the kernel's random numbers. Thread-safe.
  std::function<uint32_t()> random;
};

// Opens the RDMA device with the best port (device_choice.h). Ports() lists that port first; queue
// pairs may be made on the others, too. kNotFound: libibverbs is not installed. kUnavailable: no
// port is usable; the message has a line with the reason for every candidate. kInvalidArgument:
// `settings` name what is not there, or is iWARP. kPermissionDenied or kResourceExhausted: the
// device refused.
absl::StatusOr<std::unique_ptr<Nic>> OpenIbvNic(const IbvNicOptions& options);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_NIC_H_
