#include "examples/parameter_server/shard.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// A number in [-1, 1) that depends only on the parameter's place.
float Initial(uint64_t matrix, uint64_t row, uint64_t column) {
  uint64_t x = (matrix << 60) ^ (row << 24) ^ column;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * (2.0f / (1 << 24)) - 1;
}

struct Header {
  char magic[8] = {'T', 'R', 'Y', 'S', 'T', 'P', 'S', '1'};
  int64_t sparse = 0;
  int64_t dense = 0;
  int64_t updates = 0;
};

}  // namespace

Shard::Shard(const Layout& layout, int server, float rate)
    : layout_(layout), server_(server), rate_(rate) {
  for (int r = server; r < layout.vocabulary; r += layout.servers) {
    for (int c = 0; c < layout.embedding; ++c) {
      sparse_.values.push_back(0.5f * Initial(0, r, c));
    }
  }
  const float scale = 1 / std::sqrt(static_cast<float>(layout.input()));
  for (int r = server; r < layout.hidden_rows(); r += layout.servers) {
    const float row_scale = r == layout.input() ? 0 : scale;
    for (int c = 0; c < layout.hidden; ++c) dense_.values.push_back(row_scale * Initial(1, r, c));
  }
  for (int r = server; r < layout.vocabulary; r += layout.servers) {
    for (int c = 0; c < layout.hidden; ++c) dense_.values.push_back(0.05f * Initial(2, r, c));
    dense_.values.push_back(0);
  }
  sparse_.squares.resize(sparse_.values.size());
  dense_.squares.resize(dense_.values.size());
}

Tensor Shard::Rows(absl::Span<const int32_t> ids) const {
  const int width = layout_.embedding;
  Tensor rows = *Tensor::Allocate(DType::kFloat, {static_cast<int64_t>(ids.size()), width});
  float* into = static_cast<float*>(rows.mutable_data());
  for (int32_t id : ids) {
    std::memcpy(into, &sparse_.values[static_cast<size_t>(id) * width], width * sizeof(float));
    into += width;
  }
  return rows;
}

Tensor Shard::Dense() {
  if (!published_.valid()) {
    published_ = *Tensor::Allocate(DType::kFloat, {dense_elements()});
    std::memcpy(published_.mutable_data(), dense_.values.data(), published_.bytes());
  }
  return published_;
}

void Shard::Learned::Apply(float rate, size_t at, const float* gradients, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float gradient = gradients[i];
    squares[at + i] += gradient * gradient;
    values[at + i] -= rate * gradient / (std::sqrt(squares[at + i]) + 1e-6f);
  }
}

void Shard::ApplyRows(absl::Span<const int32_t> ids, const float* gradients) {
  const size_t width = static_cast<size_t>(layout_.embedding);
  for (size_t i = 0; i < ids.size(); ++i) {
    sparse_.Apply(rate_, static_cast<size_t>(ids[i]) * width, gradients + i * width, width);
  }
}

void Shard::ApplyDense(const float* gradients) {
  dense_.Apply(rate_, 0, gradients, dense_.values.size());
  published_ = Tensor();
}

absl::Status Shard::Save(const std::string& path) const {
  const std::string next = absl::StrCat(path, ".next");
  Header header;
  header.sparse = static_cast<int64_t>(sparse_.values.size());
  header.dense = static_cast<int64_t>(dense_.values.size());
  header.updates = updates_;
  std::ofstream out(next, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Learned* part : {&sparse_, &dense_}) {
    for (const std::vector<float>* floats : {&part->values, &part->squares}) {
      out.write(reinterpret_cast<const char*>(floats->data()),
                static_cast<std::streamsize>(floats->size() * sizeof(float)));
    }
  }
  out.close();
  if (!out || std::rename(next.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

absl::Status Shard::Restore(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) return absl::NotFoundError(absl::StrCat("no ", path));
  Header header;
  const Header expected;
  in.read(reinterpret_cast<char*>(&header), sizeof(header));
  Learned sparse = sparse_;
  Learned dense = dense_;
  if (!in || std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0 ||
      header.sparse != static_cast<int64_t>(sparse.values.size()) ||
      header.dense != static_cast<int64_t>(dense.values.size())) {
    return absl::DataLossError(absl::StrCat(path, " is not a snapshot of this shard"));
  }
  for (Learned* part : {&sparse, &dense}) {
    for (std::vector<float>* floats : {&part->values, &part->squares}) {
      in.read(reinterpret_cast<char*>(floats->data()),
              static_cast<std::streamsize>(floats->size() * sizeof(float)));
    }
  }
  if (!in) return absl::DataLossError(absl::StrCat(path, " is cut short"));
  sparse_ = std::move(sparse);
  dense_ = std::move(dense);
  updates_ = header.updates;
  published_ = Tensor();
  return absl::OkStatus();
}

}  // namespace tryst
