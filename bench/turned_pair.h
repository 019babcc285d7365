#ifndef TRYST_BENCH_TURNED_PAIR_H_
#define TRYST_BENCH_TURNED_PAIR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/thread_alarms.h"
#include "verbs/nic.h"

namespace tryst {

class ChannelPool;

struct TurnedPairOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;  // Null: shared memory.
  uint64_t bytes = 8;                              // The size of each tensor.
  int keys = 64;
  // If not 0, `bytes` are selected, in so many spans that lie anywhere at both ends.
  size_t spans = 0;
  // One operation in this many is traced; a server's default is the same. 0: the trace counts
  // nothing.
  uint32_t sample_every = 16;
};

// A producer and a consumer without their servers, both on this thread. So a measurement has the
// cost of a pull at both ends, but neither the time of a cache line from core to core nor the noise
// of a busy machine. Each stage of a pull is a function, so that callgrind counts it by itself.
class TurnedPair {
 public:
  explicit TurnedPair(const TurnedPairOptions& options);
  ~TurnedPair();
  TurnedPair(const TurnedPair&) = delete;
  TurnedPair& operator=(const TurnedPair&) = delete;

  // The stages: Send, ask, answer, deliver, and then turns that find nothing to do.
  void Send(int key);
  void SendMany(int first, int count);  // By one call.
  void SendSelected(int key);           // REQUIRES: options.spans > 0. As AskSelected().
  void Ask(int key);  // Fetches into the caller's memory. Over a NIC it includes the turn that
                      // sends the request.
  void AskSelected(int key);
  void Answer();   // The producer's turn.
  void Deliver();  // The consumer's turn.
  void TurnIdle();

  // The keys from `first` in one RecvManyAsync.
  void AskMany(int first, int count);
  // Turns both until `count` tensors have been delivered since the last call.
  void WaitFor(int count);
  const TensorKey& key(int i) const { return keys_[static_cast<size_t>(i)]; }
  const Tensor& source() const { return source_; }
  Alarms* alarms() { return &alarms_; }
  ChannelPool* producer();
  ChannelPool* consumer();

 private:
  struct Worker;
  class Hellos;

  const bool asks_in_its_turn_;
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  std::unique_ptr<Hellos> hellos_;
  std::unique_ptr<Worker> producer_, consumer_;
  std::shared_ptr<Rendezvous> sends_, receives_;
  std::vector<TensorKey> keys_;
  std::vector<SendItem> items_;
  Tensor source_;
  RecvArgs args_;
  std::vector<uint32_t> blocks_there_, blocks_here_;  // They are selected.
  uint64_t block_bytes_ = 0;
  int landed_ = 0;
};

}  // namespace tryst

#endif  // TRYST_BENCH_TURNED_PAIR_H_
