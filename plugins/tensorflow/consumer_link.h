#ifndef TRYST_PLUGINS_TENSORFLOW_CONSUMER_LINK_H_
#define TRYST_PLUGINS_TENSORFLOW_CONSUMER_LINK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/tensorflow/asks.h"
#include "plugins/tensorflow/worker.h"

namespace tryst_tensorflow {

// The producer's side of a link: receives a consumer's requests and sends the tensors.
class ConsumerLink : public std::enable_shared_from_this<ConsumerLink> {
 public:
  struct Key {
    std::string text;  // TensorFlow's text.
    std::string name;  // Tryst's name for it.
  };
  // A requested tensor, to be answered once.
  struct Wanted {
    std::shared_ptr<ConsumerLink> link;
    std::shared_ptr<const Key> key;
    int64_t step = 0;
    uint32_t lane = 0;
  };
  using OnWanted = std::function<void(Wanted)>;
  using OnCancel = std::function<void(int64_t step)>;

  // `worker` outlives it. The callbacks run one after another, in the order of the requests.
  ConsumerLink(Worker* worker, const Peer& consumer, uint32_t number, OnWanted on_wanted,
               OnCancel on_cancel);
  ~ConsumerLink();

  // Call it once. The link lives until the consumer is gone, or until Close(). A consumer that was
  // paused, so that it could not be reached, is listened to again.
  void Listen();
  void Close();  // What it has asked for is not sent any more.

  // Null: a dead tensor. Takes over the reference.
  void Send(const Wanted& wanted, tryst_tensor* tensor);
  void Send(const Wanted& wanted, const Answer& answer);

  const Peer& consumer() const { return consumer_; }
  uint32_t number() const { return number_; }

 private:
  struct Listening {
    std::shared_ptr<ConsumerLink> link;
    uint64_t n = 0;
    std::chrono::steady_clock::time_point since;
  };

  static void OnBatch(void* listening, const tryst_status* failed, tryst_tensor* tensor,
                      int is_dead);
  void ListenFor(uint64_t n);
  bool MayReturn(const tryst_status* failed, std::chrono::steady_clock::time_point since);
  void Hear(uint64_t n, std::string batch);
  void Heed(const std::string& batch);
  void HeedOne(const Ask& ask);
  void CleanUpLanes();

  Worker* const worker_;
  const Peer consumer_;
  const uint32_t number_;
  const OnWanted on_wanted_;
  const OnCancel on_cancel_;
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> lanes_{0};
  std::atomic<int> failures_{0};  // How many receives of batches have failed in a row.

  std::mutex mu_;
  std::map<uint64_t, std::string> early_;  // Batches that arrived before an earlier one.
  uint64_t next_ = 0;
  bool heeding_ = false;  // Set by the thread that handles batches; only that one uses keys_.
  std::vector<std::shared_ptr<const Key>> keys_;
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_CONSUMER_LINK_H_
