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

// The consumer's side of a link: sends requests to a producer, in batches. While two batches are
// under way, the next one gathers. Tensors arrive under TensorFlow's names in lanes: a lane is a
// step of Tryst for each fetch of one key that is under way, so that the same few names repeat.
class ProducerLink : public std::enable_shared_from_this<ProducerLink> {
 public:
  // The callee owns `tensor`. `failed` is valid during the call only.
  using Done = std::function<void(const tryst_status* failed, tryst_tensor* tensor, bool is_dead)>;

  // `worker` outlives it.
  ProducerLink(Worker* worker, const Peer& producer, uint32_t number);
  ~ProducerLink();

  // Runs `done` once, on a thread of the library. False: Tryst cannot express the key, and nothing
  // happens.
  bool Fetch(int64_t step, std::string_view key, Done done);
  // The consumer no longer waits in the step; its fetches will be answered soon.
  void Cancel(int64_t step);

  const Peer& producer() const { return producer_; }
  uint32_t number() const { return number_; }
  // Whether a fetch has failed because of the link.
  bool broken() const { return broken_; }
  int64_t batches() const { return batches_; }

 private:
  struct Key {
    uint32_t id = 0;
    std::string name;  // Tryst's name for it.
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
  uint32_t first_lane_ = 0;  // The first lane for new keys: lower ones belong to forgotten keys.
  uint32_t lanes_ = 0;
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_PRODUCER_LINK_H_
