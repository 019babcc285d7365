#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_WORKER_TASK_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_WORKER_TASK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/parameter_server/model.h"
#include "server/server.h"

namespace tryst {

// A worker's way to one parameter server, over all of that server's lives. One thread.
class ServerLink {
 public:
  // `into` is where the server's dense part is to land. `stop` ends waiting for a server.
  ServerLink(Server* worker, const Layout& layout, int server, const std::atomic<bool>* stop);
  ~ServerLink();

  // Asks for the rows of `ids` (of this server) and its dense part; Pulled() waits for
  // them. When the server ends on the way its next life is asked. kCancelled: told to
  // stop. kUnavailable: it does not come back.
  void StartPull(std::vector<int32_t> ids);
  absl::Status Pulled();
  const float* rows() const { return rows_.data_as<float>(); }
  const float* dense() const { return dense_.data_as<float>(); }
  // In answer to each pull. What a server loses by ending is lost. Invalid tensors: only looked.
  void Push(Tensor rows, Tensor dense);

  int64_t bytes_moved() const { return bytes_moved_; }

 private:
  struct Pull;  // What callbacks write, kept by them.

  absl::Status Connect();  // Waits for a life that is not the last one.
  void Ask();
  void Give(const char* edge, Tensor tensor);
  absl::Status WaitForAnswer();
  TensorKey To(const char* edge) const;
  TensorKey From(const char* edge) const;

  Server* const worker_;
  const Layout layout_;
  const std::atomic<bool>* const stop_;
  const std::string name_;

  uint64_t incarnation_ = 0;
  int64_t step_ = 0;
  std::shared_ptr<Rendezvous> rendezvous_;  // Null: not connected.
  uint64_t iteration_ = 0;
  std::vector<int32_t> ids_;
  std::shared_ptr<Pull> pull_;  // Under way.
  Tensor rows_;
  Tensor dense_;
  int64_t bytes_moved_ = 0;
};

// Trains until `stop`, and prints how it goes for people and (progress.h) for the launcher. Without
// `held_out` it only trains.
absl::Status Work(Server* worker, const Layout& layout, std::vector<Example> examples,
                  std::vector<Example> held_out, const std::atomic<bool>* stop);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_WORKER_TASK_H_
