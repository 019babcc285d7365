#include "tests/process/faults/canary_buffers.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr int kSmallestBits = 12;

uint64_t* Words(const StorageRef& storage) { return static_cast<uint64_t*>(storage->data()); }

}  // namespace

size_t CanaryBuffers::ClassOf(uint64_t bytes) {
  const int bits = static_cast<int>(absl::bit_width(std::max<uint64_t>(bytes, 1) - 1));
  return static_cast<size_t>(std::max(bits - kSmallestBits, 0));
}

Tensor CanaryBuffers::Take(uint64_t elements) {
  const uint64_t bytes = elements * sizeof(uint64_t);
  const size_t size_class = ClassOf(bytes);
  if (size_class >= resting_.size()) resting_.resize(size_class + 1);
  StorageRef storage;
  if (resting_[size_class].empty()) {
    const int64_t room = int64_t{1} << (kSmallestBits + size_class);
    storage = Tensor::Allocate(DType::kUint8, {room})->storage();
  } else {
    const Block block = std::move(resting_[size_class].back());
    resting_[size_class].pop_back();
    Check(block);
    if (watch_.use) watch_.use(block.storage->data(), block.used_bytes);
    storage = block.storage;
    ++reused_;
  }
  std::fill_n(Words(storage), elements, kFresh);
  auto tensor =
      Tensor::FromStorage(std::move(storage), 0, DType::kUint64, {static_cast<int64_t>(elements)});
  TRYST_CHECK(tensor.ok()) << tensor.status();
  return *std::move(tensor);
}

void CanaryBuffers::Give(Tensor tensor) {
  Block block;
  block.storage = tensor.storage();
  block.used_bytes = tensor.bytes();
  std::fill_n(Words(block.storage), block.used_bytes / sizeof(uint64_t), kCanary);
  if (watch_.rest) watch_.rest(block.storage->data(), block.used_bytes);
  resting_[ClassOf(block.used_bytes)].push_back(std::move(block));
}

void CanaryBuffers::Check(const Block& block) {
  const uint64_t* const words = Words(block.storage);
  const uint64_t count = block.used_bytes / sizeof(uint64_t);
  late_words_ += count - static_cast<uint64_t>(std::count(words, words + count, kCanary));
}

void CanaryBuffers::CheckAll() {
  for (const auto& blocks : resting_) {
    for (const Block& block : blocks) Check(block);
  }
}

}  // namespace tryst
