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
  const int32_t* context;  // Layout::context words, and the one to guess behind them.
};
std::vector<Example> ExamplesOf(const std::vector<std::vector<int32_t>>& blocks, int context);

struct Batch {
  std::vector<int32_t> words;    // Whose embeddings it needs, each once, ascending.
  std::vector<int32_t> context;  // Indices in `words`, Layout::context for each example.
  std::vector<int32_t> next;     // The word itself.
};
Batch MakeBatch(absl::Span<const Example> examples, int context);

struct Parameters {
  explicit Parameters(const Layout& layout)
      : hidden(layout.hidden_rows(), layout.hidden),
        output(layout.vocabulary, layout.output_columns()) {}
  Matrix rows;    // Of the batch's words only.
  Matrix hidden;  // layout.h
  Matrix output;
};

// Mean cross entropy, in nats a word. Fills `gradients` unless it is null.
float Loss(const Layout& layout, const Batch& batch, const Parameters& parameters,
           Parameters* gradients);

// Between a server's dense tensor and the whole matrices.
void ReadDense(const Layout& layout, int server, const float* dense, Parameters* into);
void WriteDense(const Layout& layout, int server, const Parameters& from, float* dense);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_MODEL_H_
