#include "examples/parameter_server/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace tryst {
namespace {

// Replaces the logits by the loss's gradient: probabilities, minus one for the true word, divided
// by the batch's size. Returns the loss.
float SoftmaxGradient(const std::vector<int32_t>& next, Matrix* logits) {
  float loss = 0;
  for (Eigen::Index i = 0; i < logits->rows(); ++i) {
    auto row = logits->row(i);
    row.array() = (row.array() - row.maxCoeff()).exp();
    row /= row.sum();
    loss -= std::log(std::max(row(next[i]), 1e-20f));
    row(next[i]) -= 1;
  }
  const float count = static_cast<float>(logits->rows());
  *logits /= count;
  return loss / count;
}

// Calls `copy(row of the matrix, its place in the tensor, columns)` for each row of a server.
template <typename Dense, typename Copy>
void ForEachRow(const Layout& layout, int server, Dense* dense, Copy copy) {
  for (int r = server; r < layout.hidden_rows(); r += layout.servers, dense += layout.hidden) {
    copy(/*output=*/false, r, dense, static_cast<size_t>(layout.hidden));
  }
  for (int r = server; r < layout.vocabulary; r += layout.servers) {
    copy(/*output=*/true, r, dense, static_cast<size_t>(layout.output_columns()));
    dense += layout.output_columns();
  }
}

}  // namespace

std::vector<Example> ExamplesOf(const std::vector<std::vector<int32_t>>& blocks, int context) {
  std::vector<Example> examples;
  for (const std::vector<int32_t>& block : blocks) {
    for (size_t i = static_cast<size_t>(context); i < block.size(); ++i) {
      examples.push_back({&block[i - static_cast<size_t>(context)]});
    }
  }
  return examples;
}

Batch MakeBatch(absl::Span<const Example> examples, int context) {
  Batch batch;
  for (const Example& example : examples) {
    batch.context.insert(batch.context.end(), example.context, example.context + context);
    batch.next.push_back(example.context[context]);
  }
  batch.words = batch.context;
  std::sort(batch.words.begin(), batch.words.end());
  batch.words.erase(std::unique(batch.words.begin(), batch.words.end()), batch.words.end());
  for (int32_t& word : batch.context) {
    word = static_cast<int32_t>(std::lower_bound(batch.words.begin(), batch.words.end(), word) -
                                batch.words.begin());
  }
  return batch;
}

float Loss(const Layout& layout, const Batch& batch, const Parameters& parameters,
           Parameters* gradients) {
  const Eigen::Index count = static_cast<Eigen::Index>(batch.next.size());
  const int width = layout.embedding;
  const auto weights = parameters.hidden.topRows(layout.input());
  const auto output = parameters.output.leftCols(layout.hidden);

  Matrix input(count, layout.input());
  for (Eigen::Index i = 0; i < count; ++i) {
    for (int c = 0; c < layout.context; ++c) {
      input.block(i, c * width, 1, width) =
          parameters.rows.row(batch.context[i * layout.context + c]);
    }
  }
  Matrix hidden = input * weights;
  hidden.rowwise() += parameters.hidden.row(layout.input());
  hidden = hidden.array().tanh();
  Matrix logits = hidden * output.transpose();
  logits.rowwise() += parameters.output.col(layout.hidden).transpose();
  const float loss = SoftmaxGradient(batch.next, &logits);
  if (gradients == nullptr) return loss;

  gradients->output.leftCols(layout.hidden).noalias() = logits.transpose() * hidden;
  gradients->output.col(layout.hidden) = logits.colwise().sum().transpose();
  Matrix inner = logits * output;
  inner.array() *= 1 - hidden.array().square();
  gradients->hidden.topRows(layout.input()).noalias() = input.transpose() * inner;
  gradients->hidden.row(layout.input()) = inner.colwise().sum();
  const Matrix outer = inner * weights.transpose();
  gradients->rows = Matrix::Zero(static_cast<Eigen::Index>(batch.words.size()), width);
  for (Eigen::Index i = 0; i < count; ++i) {
    for (int c = 0; c < layout.context; ++c) {
      gradients->rows.row(batch.context[i * layout.context + c]) +=
          outer.block(i, c * width, 1, width);
    }
  }
  return loss;
}

void ReadDense(const Layout& layout, int server, const float* dense, Parameters* into) {
  ForEachRow(layout, server, dense, [into](bool output, int r, const float* from, size_t columns) {
    std::memcpy((output ? into->output : into->hidden).row(r).data(), from,
                columns * sizeof(float));
  });
}

void WriteDense(const Layout& layout, int server, const Parameters& from, float* dense) {
  ForEachRow(layout, server, dense, [&from](bool output, int r, float* into, size_t columns) {
    std::memcpy(into, (output ? from.output : from.hidden).row(r).data(), columns * sizeof(float));
  });
}

}  // namespace tryst
