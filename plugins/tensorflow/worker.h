#ifndef TRYST_PLUGINS_TENSORFLOW_WORKER_H_
#define TRYST_PLUGINS_TENSORFLOW_WORKER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugins/tensorflow/library.h"

namespace tryst_tensorflow {

// What another worker of the job says of itself.
struct Peer {
  std::string name;     // "/job:ps/replica:0/task:0"
  std::string address;  // Its Tryst port's.
  uint64_t incarnation = 0;
};

// The Tryst worker beside one TensorFlow server. It has a port of its own and is in an open
// cluster, whose members TensorFlow's peers introduce. Thread-safe.
class Worker {
 public:
  // When it returns, it listens on a free port of `host`. Null and `why`: it cannot.
  static std::unique_ptr<Worker> Start(const Library* library, const std::string& job, int task,
                                       const std::string& host, std::string* why);
  // Stops it. REQUIRES: no received tensor is held.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& library() const { return *library_; }
  tryst_server* server() const { return server_; }
  const Peer& self() const { return self_; }

  // Tells the library where the peer is, and waits until it answers there. Runs `known` on a thread
  // of its own, with "" or with why it did not answer.
  void Introduce(const Peer& peer, std::function<void(const std::string& why_not)> known);
  // Runs `run` on a thread of its own after that time; never, if it stops before.
  void RunLater(std::chrono::milliseconds after, std::function<void()> run);
  // Fails what waits, and gives what is under way a moment to land.
  void Stop();
  bool stopped() const { return stopped_; }
  std::string Explain() const;
  std::string StatsJson() const;  // The counters of Tryst.

 private:
  struct Introduction {
    Peer peer;
    std::function<void(const std::string&)> known;
    std::chrono::steady_clock::time_point until;
    std::string why = "it did not answer";
  };

  Worker(const Library* library, std::string folder) : library_(library), folder_(folder) {}
  bool WriteAddresses();
  struct Later {
    std::chrono::steady_clock::time_point when;
    std::function<void()> run;
  };

  void Run();
  void RunWhatIsDue();
  // Tries all of them, so that one that does not answer delays no other.
  void Reach(std::vector<Introduction>* under_way);
  bool Answers(Introduction* introduction);

  const Library* const library_;
  const std::string folder_;  // Holds the cluster's file.
  tryst_server* server_ = nullptr;
  Peer self_;

  std::atomic<bool> stopped_{false};
  std::mutex mu_;
  std::condition_variable more_;
  std::vector<Introduction> introductions_;       // New ones; guarded by mu_.
  std::vector<Later> later_;                      // Guarded by mu_.
  std::map<std::string, std::string> addresses_;  // Worker -> address; only the thread uses it.
  std::thread introducer_;
};

// Takes over the status; "" if it is null.
std::string TakeMessage(const Library& library, tryst_status* status);

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_WORKER_H_
