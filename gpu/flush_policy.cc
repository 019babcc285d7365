#include "gpu/flush_policy.h"

#include "absl/strings/str_cat.h"

namespace tryst {

FlushPolicy ChooseFlush(const GpuDevice& device, GpuLink data, bool control_by_c2c) {
  if (control_by_c2c && data == GpuLink::kPcie) {
    return {true, "completions come by C2C and may overtake the data, which comes by PCIe"};
  }
  if (device.compute_major >= 9) {
    return {false, absl::StrCat("compute capability ", device.compute_major, ".",
                                device.compute_minor, " keeps a NIC's writes in order")};
  }
  if (device.writes_ordered) {
    return {false, "the driver says that a NIC's writes are seen in order"};
  }
  return {true, absl::StrCat("below compute capability 9.0 (", device.compute_major, ".",
                             device.compute_minor,
                             ") a completion may be seen before the data that it stands for")};
}

}  // namespace tryst
