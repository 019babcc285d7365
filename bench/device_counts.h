#ifndef TRYST_BENCH_DEVICE_COUNTS_H_
#define TRYST_BENCH_DEVICE_COUNTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "bench/device_pair.h"

namespace tryst {

// The cost of a pull at one end: calls of the pretended driver, by name, and tasks that other
// threads posted to the poller ("tasks"). Empty with a real driver, which does not count.
std::map<std::string, uint64_t> DeviceCounts(const std::string& driver, DeviceEnd* end, int gpu);

}  // namespace tryst

#endif  // TRYST_BENCH_DEVICE_COUNTS_H_
