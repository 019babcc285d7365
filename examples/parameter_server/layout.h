#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_LAYOUT_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_LAYOUT_H_

#include <cstdint>

namespace tryst {

// The model's parameters, and which server holds which. The model guesses the next word from the
// `context` words before it: their embeddings side by side, one hidden layer, and a softmax over
// the vocabulary. Server r % servers holds row r of each matrix, as its row r / servers.
struct Layout {
  int vocabulary = 0;
  int context = 3;
  int embedding = 24;
  int hidden = 48;
  int servers = 1;

  int input() const { return context * embedding; }
  // The embedding is sparse: vocabulary x embedding. The other two matrices are dense; their last
  // row or column holds the biases.
  int hidden_rows() const { return input() + 1; }    // x hidden
  int output_columns() const { return hidden + 1; }  // vocabulary x

  int ShardRows(int rows, int server) const { return (rows - server + servers - 1) / servers; }
  int sparse_rows(int server) const { return ShardRows(vocabulary, server); }
  // A server's dense part: its rows of the hidden matrix, then of the output matrix.
  int64_t dense_elements(int server) const {
    return int64_t{1} * ShardRows(hidden_rows(), server) * hidden +
           int64_t{1} * ShardRows(vocabulary, server) * output_columns();
  }
};

// The edges on which a worker and a server talk in turn, in one step of their own. Iteration i of
// each edge is its i-th use.
inline constexpr char kIdsEdge[] = "ids";                     // To the server: int32 [n].
inline constexpr char kRowsEdge[] = "rows";                   // To the worker: [n, embedding].
inline constexpr char kDenseEdge[] = "dense";                 // To the worker: [dense_elements].
inline constexpr char kRowGradientsEdge[] = "row_gradients";  // To the server; both are dead
inline constexpr char kDenseGradientsEdge[] = "dense_gradients";  // when the worker only evaluated.

// The step that this incarnation of a worker and this incarnation of a server share.
inline int64_t SessionStep(uint64_t worker_incarnation, uint64_t server_incarnation) {
  const uint64_t mixed = worker_incarnation ^ (server_incarnation * 0x9e3779b97f4a7c15u);
  return static_cast<int64_t>(mixed >> 1) | 1;
}

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_LAYOUT_H_
