#ifndef TRYST_TESTS_CONTRACT_DEVICE_WORLD_H_
#define TRYST_TESTS_CONTRACT_DEVICE_WORLD_H_

#include <functional>
#include <memory>

#include "channel/device/device_proxy.h"
#include "tests/contract/pool_world.h"

namespace tryst {

struct DeviceWorldOptions {
  const Gpu* producer_gpu = nullptr;
  const Gpu* consumer_gpu = nullptr;
  DeviceProxyOptions proxy;
  // The producer's tensors lie in virtual memory that is mapped in chunks, and begin and end inside
  // chunks.
  bool in_chunks = false;
  // Checks, at the end, the counters of the ways that tensors took.
  std::function<void(const DeviceFetcherCounters&)> check;
};

// Puts a device under every tensor of a pool world: what the producer sends from host memory is
// copied to its GPU before it is served, and what the consumer fetches lands on its GPU and is
// copied back. So tests that were written for host memory test device tensors.
void PutDevicesUnder(const DeviceWorldOptions& options, PoolWorldOptions* world);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_DEVICE_WORLD_H_
