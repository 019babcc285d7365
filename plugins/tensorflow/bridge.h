#ifndef TRYST_PLUGINS_TENSORFLOW_BRIDGE_H_
#define TRYST_PLUGINS_TENSORFLOW_BRIDGE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/tensorflow/consumer_link.h"
#include "plugins/tensorflow/counts.h"
#include "plugins/tensorflow/producer_link.h"
#include "plugins/tensorflow/worker.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"

namespace tryst_tensorflow {

// Asks `producer`'s server over TensorFlow's own gRPC who it is, and tells it who we are. Runs
// `heard` once, with the reason for a failure, or "" and the answer.
using Greet = std::function<void(const std::string& greeting,
                                 std::function<void(std::string why_not, std::string answer)>)>;

// All that one TensorFlow server has of Tryst: its worker, and a link to each other worker that has
// the plug-in. It first contacts another worker when TensorFlow wants a tensor of its, so no worker
// has to be up before another. Thread-safe.
class Bridge {
 public:
  // `env` outlives it.
  Bridge(const tensorflow::WorkerEnv* env, std::unique_ptr<Worker> worker);
  ~Bridge();

  // A worker that tensors come from. It lives as long as the bridge.
  struct Producer {
    enum State { kUnknown, kMeeting, kMet, kWithout };
    State state = kUnknown;  // This and the next three: guarded by mu_.
    // TensorFlow's incarnation of each device. Another number means that the worker restarted.
    std::map<std::string, uint64_t, std::less<>> incarnations;
    std::string why;                              // For kWithout, as the next.
    std::chrono::steady_clock::time_point again;  // When it will be greeted again.
    std::shared_ptr<ProducerLink> link;
    Counts counts;
  };

  // The link to the producer of the key, if the two have met; otherwise null, and why. Greets the
  // producer unless it was greeted.
  std::shared_ptr<ProducerLink> LinkTo(const tensorflow::Rendezvous::ParsedKey& key,
                                       const Greet& greet, Producer** known, Why* why);

  // Whether a key's edge is a greeting, which is answered with who we are.
  static bool IsGreeting(absl::string_view edge);
  // Runs `answer` with who we are, once we listen to the worker that greets; or with why we do not.
  void AnswerGreeting(absl::string_view edge, std::function<void(std::string)> answer);

  const Worker& worker() const { return *worker_; }
  const tensorflow::WorkerEnv* env() const { return env_; }
  std::string Explain();
  std::string StatsJson();
  // Afterwards nothing travels by Tryst.
  void Stop();

 private:
  struct Consumer {
    std::shared_ptr<ConsumerLink> link;
    Counts counts;
  };

  void OnAnswer(const std::string& producer, uint32_t number, const std::string& why_not,
                const std::string& answer);
  void SettleProducer(const std::string& producer, const std::string& why_not,
                      std::shared_ptr<ProducerLink> link);
  void Meet(const Peer& consumer, uint32_t number);
  void Serve(Counts* counts, ConsumerLink::Wanted wanted);
  void Deliver(Counts* counts, const ConsumerLink::Wanted& wanted,
               const tensorflow::Rendezvous::ParsedKey& key, const absl::Status& status,
               const tensorflow::Rendezvous::Args& send_args, const tensorflow::Tensor& tensor,
               bool is_dead);
  absl::Status CheckDevice(const tensorflow::Rendezvous::ParsedKey& key) const;
  void AbortLater(int64_t step);

  const tensorflow::WorkerEnv* const env_;
  const std::unique_ptr<Worker> worker_;
  std::mutex mu_;
  std::map<std::string, std::unique_ptr<Producer>> producers_;
  std::map<std::string, std::unique_ptr<Consumer>> consumers_;
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_BRIDGE_H_
