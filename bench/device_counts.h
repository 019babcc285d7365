#ifndef TRYST_BENCH_DEVICE_COUNTS_H_
#define TRYST_BENCH_DEVICE_COUNTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "bench/device_pair.h"

namespace tryst {

// What one end of a pull costs, in calls of the pretend driver by their names and in tasks that
// other threads handed to the poller ("tasks"). Empty with a real driver, which does not count.
std::map<std::string, uint64_t> DeviceCounts(const std::string& driver, DeviceEnd* end, int gpu);

}  // namespace tryst

#endif  // TRYST_BENCH_DEVICE_COUNTS_H_
