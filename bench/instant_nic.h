#ifndef TRYST_BENCH_INSTANT_NIC_H_
#define TRYST_BENCH_INSTANT_NIC_H_

#include <memory>

#include "verbs/nic.h"

namespace tryst {

// A NIC whose wire is memcpy: a write has landed when PostSend() returns. With it a bench counts
// everything but a NIC, with both ends on one thread. It only writes, with or without immediate,
// and checks no address or key. All such NICs of a process form one network.
std::unique_ptr<Nic> OpenInstantNic();

}  // namespace tryst

#endif  // TRYST_BENCH_INSTANT_NIC_H_
