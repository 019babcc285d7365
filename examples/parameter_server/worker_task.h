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

// A worker's link to one parameter server, whichever incarnation of it is up. Used by one thread.
class ServerLink {
 public:
  // The server's dense part lands in `into`. `stop` ends waiting for a server.
  ServerLink(Server* worker, const Layout& layout, int server, const std::atomic<bool>* stop);
  ~ServerLink();

  // Asks for the rows of `ids` (which this server holds) and its dense part. Pulled() waits for
  // them; if the server ends meanwhile, it asks the next incarnation. kCancelled: told to stop.
  // kUnavailable: the server does not come back.
  void StartPull(std::vector<int32_t> ids);
  absl::Status Pulled();
  const float* rows() const { return rows_.data_as<float>(); }
  const float* dense() const { return dense_.data_as<float>(); }
  // Answers a pull. When the server ends before it has applied them, the gradients are lost.
  // Invalid tensors mean that we only evaluated.
  void Push(Tensor rows, Tensor dense);

  int64_t bytes_moved() const { return bytes_moved_; }
  const std::string& server() const { return name_; }
  // Whether another incarnation has answered since the last call.
  bool TakeIsNew() { return std::exchange(is_new_, false); }

 private:
  struct Pull;  // What the callbacks write; they keep it alive.

  absl::Status Connect();  // Waits for an incarnation that is not the last one.
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
  bool is_new_ = false;
  int64_t step_ = 0;
  std::shared_ptr<Rendezvous> rendezvous_;  // Null: not connected.
  uint64_t iteration_ = 0;
  std::vector<int32_t> ids_;
  std::shared_ptr<Pull> pull_;  // The one under way.
  Tensor rows_;
  Tensor dense_;
  int64_t bytes_moved_ = 0;
};

// Trains until `stop`. Prints how it goes, for people (with `detailed`, all that is known of each
// connection) and (progress.h) for the launcher. Evaluates only with `held_out`.
absl::Status Work(Server* worker, const Layout& layout, std::vector<Example> examples,
                  std::vector<Example> held_out, bool detailed, const std::atomic<bool>* stop);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_WORKER_TASK_H_
