#ifndef TRYST_CHANNEL_RAIL_H_
#define TRYST_CHANNEL_RAIL_H_

#include <memory>
#include <string>
#include <vector>

#include "channel/rdma/landing_pool.h"
#include "channel/rdma/queue_hub.h"
#include "verbs/async_event_thread.h"
#include "verbs/nic.h"

namespace tryst {

// A NIC that peers may be reached by.
struct NicPath {
  std::string path;  // "rdma/soft", "rdma/ibv": both ends must have one of that name.
  std::shared_ptr<Nic> nic;
  // Payloads carry a CRC-32C, as LinkOptions::digests says; false: never, because the link
  // has a checksum of its own on every hop and between its ends.
  bool digests = true;
};

// One NIC on the poller, with what all channels over it share.
struct Rail {
  NicPath path;
  std::unique_ptr<QueueHub> hub;
  std::shared_ptr<LandingPool> landings;
  std::unique_ptr<AsyncEventThread> events;  // Null where time is virtual.
};

using Rails = std::vector<std::unique_ptr<Rail>>;  // The best first.

}  // namespace tryst

#endif  // TRYST_CHANNEL_RAIL_H_
