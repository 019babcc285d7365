#ifndef TRYST_BENCH_INSTANT_NIC_H_
#define TRYST_BENCH_INSTANT_NIC_H_

#include <memory>

#include "verbs/nic.h"

namespace tryst {

// A NIC whose wire is memcpy: a write has landed when PostSend returns. For two ends in one thread
// that count what is not the NIC's. It writes, with and without immediate, and does nothing else;
// it believes every address and key. All such NICs of a process are one network.
std::unique_ptr<Nic> OpenInstantNic();

}  // namespace tryst

#endif  // TRYST_BENCH_INSTANT_NIC_H_
