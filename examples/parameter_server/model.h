#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_MODEL_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_MODEL_H_

#include <cstdint>
#include <eigen3/Eigen/Core>
#include <vector>

#include "absl/types/span.h"
#include "examples/parameter_server/layout.h"

namespace tryst {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Example {
  const int32_t* context;  // Layout::context words, and after them the word to guess.
};
std::vector<Example> ExamplesOf(const std::vector<std::vector<int32_t>>& blocks, int context);

struct Batch {
  std::vector<int32_t> words;    // The words whose embeddings it needs, each once, ascending.
  std::vector<int32_t> context;  // Indices in `words`, Layout::context for each example.
  std::vector<int32_t> next;     // The word to guess.
};
Batch MakeBatch(absl::Span<const Example> examples, int context);

struct Parameters {
  explicit Parameters(const Layout& layout)
      : hidden(layout.hidden_rows(), layout.hidden),
        output(layout.vocabulary, layout.output_columns()) {}
  Matrix rows;    // For the batch's words only.
  Matrix hidden;  // See layout.h.
  Matrix output;
};

// The mean cross entropy, in nats for each word. Fills `gradients` unless it is null.
float Loss(const Layout& layout, const Batch& batch, const Parameters& parameters,
           Parameters* gradients);

// Copy between a server's dense tensor and the whole matrices.
void ReadDense(const Layout& layout, int server, const float* dense, Parameters* into);
void WriteDense(const Layout& layout, int server, const Parameters& from, float* dense);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_MODEL_H_
