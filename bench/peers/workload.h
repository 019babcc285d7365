#ifndef TRYST_BENCH_PEERS_WORKLOAD_H_
#define TRYST_BENCH_PEERS_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "bench/peers/harness.h"

namespace tryst {

struct Workload {
  std::string name;
  std::vector<size_t> sizes;  // The producer's tensors.
  int slots = 1;              // The most keys outstanding.
  int64_t warm_up = 0;        // Tensors.
  int64_t at_least = 1;       // Tensors in a round, at least,
  double seconds = 0.3;       // and at least so many seconds.
  int producers = 1;
  bool exact = false;          // A round never ends early, even if it is slow.
  bool keeps_nothing = false;  // Bytes are not read again after they were reported.
  bool checks_all = false;     // Checks every byte as it lands, and not only three words.
  size_t max_bytes() const;
};

// Ends the process if there is no such workload.
Workload MakeWorkload(const std::string& name, size_t bytes, double seconds);

// Requests a workload's keys from one consumer end, in rounds.
class Puller {
 public:
  Puller(const Workload& workload, bool threads);
  // Call it first. The end reports tensors to Landed().
  void SetEnd(ConsumerEnd* end) { end_ = end; }

  // Starts a round of `count` tensors. 0: as many as the workload says.
  void Start(int64_t count);
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  void WaitFinished();  // Waits for the end of a round; for an end with threads.
  void Landed(int slot, const char* data);

  int64_t landed() const { return landed_; }
  int64_t bytes_landed() const { return bytes_landed_; }
  int64_t began_ns() const { return began_ns_; }
  int64_t ended_ns() const { return ended_ns_; }
  // The times of the last round, sorted. Empty if several keys were outstanding.
  const std::vector<uint32_t>& SortedNs();
  // Checks every byte in every slot. Ends the process if one is wrong.
  void CheckAll() const;  // Does nothing for a workload that keeps nothing.

 private:
  struct Slot {
    int key = -1;
    char* into = nullptr;
    const char* data = nullptr;
    int64_t asked_ns = 0;
  };
  void Ask(int slot);
  bool More();
  void Finish();

  const Workload workload_;
  const bool threads_;
  const bool timed_;
  std::vector<std::string> keys_;
  ConsumerEnd* end_ = nullptr;

  Mutex mu_;
  CondVar finished_changed_;
  std::atomic<bool> finished_{true};
  // Guarded by mu_ when the end has threads.
  std::vector<Slot> slots_;
  int next_key_ = 0;
  int64_t limit_ = 0, asked_ = 0, landed_ = 0, bytes_landed_ = 0;
  int64_t began_ns_ = 0, ended_ns_ = 0, now_ns_ = 0, deadline_ns_ = 0, late_ns_ = 0;
  std::vector<uint32_t> taken_ns_;
};

}  // namespace tryst

#endif  // TRYST_BENCH_PEERS_WORKLOAD_H_
