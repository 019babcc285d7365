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
  // What the producer sends lies in virtual memory that is mapped in chunks, and begins and ends
  // inside of them.
  bool in_chunks = false;
  // What has to hold of the way that tensors took, at the end.
  std::function<void(const DeviceFetcherCounters&)> check;
};

// Puts a device under every tensor of a pool world: what the producer's steps send from
// host memory is brought onto its GPU before it is served, and what the consumer fetches
// lands on its GPU and is brought back, so that tests written for host memory exercise
// device tensors.
void PutDevicesUnder(const DeviceWorldOptions& options, PoolWorldOptions* world);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_DEVICE_WORLD_H_
