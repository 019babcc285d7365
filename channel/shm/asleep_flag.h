#ifndef TRYST_CHANNEL_SHM_ASLEEP_FLAG_H_
#define TRYST_CHANNEL_SHM_ASLEEP_FLAG_H_

#include <atomic>
#include <cstdint>

#include "channel/shm/wire.h"

namespace tryst {

// Whether one side of a link sleeps, in memory that both sides share. The side that falls asleep
// raises the flag and then looks once more for messages; the other side publishes a message and
// then looks at the flag. All of them are read-modify-writes of the flag, so that the later one
// sees what came before the earlier one: either the sleeper sees the message, or the sender sees
// the flag. A load in place of one may come before the message is seen, and then both sides wait.
//
// Who returns memory (HeldReferences::Return) does only load the flag, since many threads do that
// and often. So all four are sequentially consistent there: its store and its load, Raise(), and
// the load after that (GivenReferences::HasReturned). In their one order either the flag is loaded
// after it was raised, or what was returned is seen. An exchange with acquire and release is not
// enough: a processor that makes it of a load and a store (ARM without LSE) may do the next load
// between the two.
class AsleepFlag {
 public:
  explicit AsleepFlag(std::atomic<uint32_t>* flag) : flag_(flag) {}

  // ---- The side that sleeps ----
  // `wakes` says what the other side must wake it for.
  void Raise(shm_wire::Asleep wakes) { flag_->exchange(wakes, std::memory_order_seq_cst); }
  // True: the other side saw it raised, so its wake-up packet has been read or will come.
  bool Lower() {
    return flag_->exchange(shm_wire::kAwake, std::memory_order_acq_rel) == shm_wire::kAwake;
  }

  // ---- The side that has published a message ----
  // True: the caller, and nobody else, must send a wake-up packet.
  bool TakeDown() {
    return flag_->fetch_add(0, std::memory_order_acq_rel) != shm_wire::kAwake &&
           flag_->exchange(shm_wire::kAwake) != shm_wire::kAwake;
  }

 private:
  std::atomic<uint32_t>* const flag_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_ASLEEP_FLAG_H_
