#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_SHARD_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_SHARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "examples/parameter_server/layout.h"
#include "rendezvous/tensor.h"

namespace tryst {

// What one parameter server holds: its rows of every matrix, and Adagrad's sums of squares. Not
// thread-safe.
class Shard {
 public:
  // Begins with initial values that do not depend on the number of servers.
  Shard(const Layout& layout, int server, float rate);

  int64_t updates() const { return updates_; }
  int sparse_rows() const { return layout_.sparse_rows(server_); }
  int64_t dense_elements() const { return static_cast<int64_t>(dense_.values.size()); }

  // Returns a copy, which does not change later. REQUIRES: ids in [0, sparse_rows()).
  Tensor Rows(absl::Span<const int32_t> ids) const;
  Tensor Dense();  // All who ask between two updates share one copy.

  // REQUIRES: ids as above, with `embedding` floats for each; dense_elements() floats.
  void ApplyRows(absl::Span<const int32_t> ids, const float* gradients);
  void ApplyDense(const float* gradients);
  void CountUpdate() { ++updates_; }

  // Writes a snapshot of all this into one file, which is replaced as a whole.
  absl::Status Save(const std::string& path) const;
  // kNotFound: there is no such file. kDataLoss: it belongs to another model, or is cut short. On
  // an error nothing changes.
  absl::Status Restore(const std::string& path);

 private:
  struct Learned {
    std::vector<float> values;
    std::vector<float> squares;
    void Apply(float rate, size_t at, const float* gradients, size_t count);
  };

  const Layout layout_;
  const int server_;
  const float rate_;
  Learned sparse_;
  Learned dense_;
  int64_t updates_ = 0;
  Tensor published_;  // Invalid after an update.
};

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_SHARD_H_
