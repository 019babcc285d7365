#ifndef TRYST_PLUGINS_TENSORFLOW_PRODUCER_LINK_H_
#define TRYST_PLUGINS_TENSORFLOW_PRODUCER_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plugins/tensorflow/asks.h"
#include "plugins/tensorflow/worker.h"

namespace tryst_tensorflow {

// The way from a producer, at the consumer. What is fetched is asked for in batches: while two
// are under way, the next one gathers. Tensors come under TensorFlow's names, in lanes: a step of
// Tryst's for each fetch of one key that is out at once, so that the same few names recur.
class ProducerLink : public std::enable_shared_from_this<ProducerLink> {
 public:
  // `tensor` is the callee's. Of a failure the status lasts for the call.
  using Done = std::function<void(const tryst_status* failed, tryst_tensor* tensor, bool is_dead)>;

  // `worker` outlives it.
  ProducerLink(Worker* worker, const Peer& producer, uint32_t number);
  ~ProducerLink();

  // Runs `done` once, on a thread of the library's. False when the key is not one that Tryst
  // can say: nothing happens then.
  bool Fetch(int64_t step, std::string_view key, Done done);
  // The consumer does not wait in the step any more: what is out of it is answered soon.
  void Cancel(int64_t step);

  const Peer& producer() const { return producer_; }
  uint32_t number() const { return number_; }
  // Once a fetch has failed for the link's own sake.
  bool broken() const { return broken_; }
  int64_t batches() const { return batches_; }

 private:
  struct Key {
    uint32_t id = 0;
    std::string name;  // Tryst's.
    std::vector<uint32_t> free_lanes;
    uint32_t next_lane = 0;
  };
  struct Fetching {
    std::shared_ptr<ProducerLink> link;
    std::shared_ptr<Key> key;
    uint32_t lane = 0;
    Done done;
  };

  static void OnTensor(void* fetching, const tryst_status* failed, tryst_tensor* tensor,
                       int is_dead);
  // REQUIRES: mu_ is held.
  std::shared_ptr<Key> KeyFor(std::string_view text, bool* is_new);
  void SendAsks();

  Worker* const worker_;
  const Peer producer_;
  const uint32_t number_;
  std::atomic<bool> broken_{false};
  std::atomic<int64_t> batches_{0};

  std::mutex mu_;
  std::unordered_map<std::string, std::shared_ptr<Key>> keys_;  // By TensorFlow's text.
  std::string gathered_;
  int64_t last_cancelled_ = 0;
  int batches_out_ = 0;
  uint64_t next_batch_ = 0;
  uint32_t first_lane_ = 0;  // Of keys that are new: lanes below belong to forgotten ones.
  uint32_t lanes_ = 0;
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_PRODUCER_LINK_H_
