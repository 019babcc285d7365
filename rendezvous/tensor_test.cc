#include "rendezvous/tensor.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <limits>
#include <thread>

namespace tryst {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(DType, EveryFixedSizeTypeHasItsSize) {
  const std::pair<DType, uint32_t> rows[] = {
      {DType::kBool, 1},        {DType::kInt4, 1},         {DType::kUint4, 1},
      {DType::kInt8, 1},        {DType::kUint8, 1},        {DType::kInt16, 2},
      {DType::kUint16, 2},      {DType::kInt32, 4},        {DType::kUint32, 4},
      {DType::kInt64, 8},       {DType::kUint64, 8},       {DType::kHalf, 2},
      {DType::kBfloat16, 2},    {DType::kFloat8E4m3fn, 1}, {DType::kFloat8E5m2, 1},
      {DType::kFloat, 4},       {DType::kDouble, 8},       {DType::kComplex64, 8},
      {DType::kComplex128, 16}, {DType::kQint8, 1},        {DType::kQuint8, 1},
      {DType::kQint16, 2},      {DType::kQuint16, 2},      {DType::kQint32, 4},
      {DType::kPacked, 1}};
  for (const auto& [dtype, bytes] : rows) {
    EXPECT_EQ(DTypeBytes(dtype), bytes) << DTypeName(dtype);
    EXPECT_TRUE(DTypeValid(dtype));
  }
  EXPECT_TRUE(DTypeValid(DType::kString));
  int valid = 0;
  for (int number = 0; number < 256; ++number) valid += DTypeValid(static_cast<DType>(number));
  EXPECT_EQ(valid, 26) << "whatever a peer sends is one of these or refused";
  EXPECT_EQ(DTypeName(static_cast<DType>(200)), "invalid");
}

TEST(TensorShape, RefusesWhatDoesNotFit) {
  EXPECT_EQ(TensorShape::Make({kMax, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorShape::Make({0, kMax, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorShape::Make({kMax, 2, 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorShape::Make({2, -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorShape::Make(std::vector<int64_t>(255, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorShape::Make({kMax})->elements(), kMax);
  EXPECT_EQ(TensorShape::Make({})->elements(), 1);
  EXPECT_EQ(TensorShape({2, 0, 3}).elements(), 0);
  EXPECT_EQ(TensorShape({2, 3}).ToString(), "[2,3]");
  EXPECT_NE(TensorShape({2, 3}), TensorShape({3, 2}));
  EXPECT_NE(TensorShape({}), TensorShape({1}));
}

TEST(DType, QuantisedTypesHaveTensorFlowsNumbersAndNames) {
  const std::pair<int, const char*> rows[] = {
      {11, "qint8"}, {12, "quint8"}, {13, "qint32"}, {15, "qint16"}, {16, "quint16"}};
  for (const auto& [number, name] : rows) EXPECT_EQ(DTypeName(static_cast<DType>(number)), name);
}

TEST(TensorShape, HasUpTo254Dimensions) {
  static_assert(sizeof(TensorShape) == 80, "small shapes have not grown");
  std::vector<int64_t> dims(254, 1);
  dims[253] = 3;
  TensorShape large = *TensorShape::Make(dims);
  EXPECT_EQ(large.rank(), 254);
  EXPECT_EQ(large.elements(), 3);
  EXPECT_EQ(large.dim(253), 3);
  TensorShape copy = large;
  const TensorShape small({2, 3});
  large = small;
  EXPECT_EQ(large, small);
  EXPECT_EQ(copy.dims(), absl::MakeConstSpan(dims)) << "the copy has them still";
  large = copy;
  copy = TensorShape(copy);
  EXPECT_EQ(large, copy);
  copy = *TensorShape::Make(std::vector<int64_t>(9, 1));
  EXPECT_NE(large, copy);
  large = *&large;
  EXPECT_EQ(large.dim(253), 3);
  EXPECT_EQ(large.ToString().size(), 254u * 2 + 1);
  Tensor tensor = *Tensor::Allocate(DType::kQint32, large);
  EXPECT_EQ(tensor.bytes(), 12u);
  const Tensor moved = std::move(tensor);
  EXPECT_EQ(moved.shape(), large);
  EXPECT_EQ(moved.Reshape({3})->shape().rank(), 1);
  dims[0] = -1;
  EXPECT_FALSE(TensorShape::Make(dims).ok());
}

TEST(TensorBytes, RefusesWhatDoesNotFit) {
  const TensorShape large = *TensorShape::Make({kMax / 4});
  EXPECT_EQ(*TensorBytes(DType::kFloat, *TensorShape::Make({kMax / 4})),
            static_cast<uint64_t>(kMax / 4 * 4));
  EXPECT_EQ(TensorBytes(DType::kDouble, large).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorBytes(DType::kString, {1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorBytes(static_cast<DType>(99), {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Tensor, AllocatesAlignedMemory) {
  for (const int64_t n : {0, 1, 63, 4097}) {
    absl::StatusOr<Tensor> tensor = Tensor::Allocate(DType::kUint8, {n});
    ASSERT_TRUE(tensor.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data()) % Tensor::kAlignment, 0u);
    EXPECT_EQ(tensor->bytes(), static_cast<uint64_t>(n));
    EXPECT_TRUE(tensor->space().host_readable());
  }
}

TEST(Tensor, SaysThatThereIsNoMemory) {
  EXPECT_EQ(Tensor::Allocate(DType::kUint8, *TensorShape::Make({kMax})).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (const int64_t strings : {int64_t{1} << 40, kMax}) {
    EXPECT_EQ(Tensor::Allocate(DType::kString, *TensorShape::Make({strings})).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Tensor::Allocate(DType::kInvalid, {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Tensor, GivesItsMemoryBack) {
  const auto heap_bytes = [] {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  };
  const size_t before = heap_bytes();
  if (before == 0) GTEST_SKIP() << "needs glibc's heap: a sanitizer's does not count";
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Tensor::Allocate(DType::kUint8, {1 << 20}).ok());
  EXPECT_LT(heap_bytes(), before + (10 << 20));
}

TEST(Tensor, AdoptedMemoryIsDeletedOnceWhenTheLastShareGoes) {
  int deleted = 0;
  float memory[6] = {0, 1, 2, 3, 4, 5};
  {
    absl::StatusOr<Tensor> tensor =
        Tensor::Adopt(memory, DType::kFloat, {3, 2}, MemorySpace(), [&deleted] { ++deleted; });
    ASSERT_TRUE(tensor.ok());
    EXPECT_EQ(tensor->data(), memory);
    absl::StatusOr<Tensor> rows = tensor->Slice(1, 3);
    ASSERT_TRUE(rows.ok());
    *tensor = Tensor();
    EXPECT_EQ(deleted, 0);
    EXPECT_EQ(rows->data_as<float>()[0], 2);
    absl::StatusOr<Tensor> flat = rows->Reshape({4});
    ASSERT_TRUE(flat.ok());
    EXPECT_TRUE(flat->SharesBytesWith(*rows));
    EXPECT_EQ(flat->data_as<float>()[3], 5);
  }
  EXPECT_EQ(deleted, 1);
}

TEST(Tensor, AdoptDeletesWhenItRefuses) {
  int deleted = 0;
  const auto deleter = [&deleted] { ++deleted; };
  char byte;
  EXPECT_EQ(Tensor::Adopt(&byte, DType::kString, {1}, MemorySpace(), deleter).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tensor::Adopt(nullptr, DType::kUint8, {1}, MemorySpace(), deleter).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(deleted, 2);
  EXPECT_TRUE(Tensor::Adopt(nullptr, DType::kUint8, {0}, MemorySpace(), deleter).ok());
  EXPECT_EQ(deleted, 3);
}

TEST(Tensor, MovingLeavesAnInvalidTensorBehind) {
  Tensor a = *Tensor::Allocate(DType::kInt32, {4});
  Tensor b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(b.valid());
  a = std::move(b);
  EXPECT_TRUE(a.valid());
  EXPECT_FALSE(b.valid());  // NOLINT(bugprone-use-after-move)
}

TEST(Tensor, SlicesStayInside) {
  const Tensor tensor = *Tensor::Allocate(DType::kInt32, {4, 3});
  EXPECT_EQ(tensor.Slice(-1, 2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tensor.Slice(3, 2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tensor.Slice(0, 5).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tensor.Slice(4, 4)->bytes(), 0u);
  EXPECT_EQ(tensor.Slice(1, 3)->Slice(1, 2)->storage_offset(), 24u);
  EXPECT_EQ(Tensor::Allocate(DType::kInt32, {})->Slice(0, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tensor().Slice(0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tensor.Reshape({5}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Tensor, ASliceKnowsItsPlaceInASegment) {
  MemorySpace space;
  space.kind = MemorySpace::Kind::kShared;
  space.segment_id = 7;
  space.segment_offset = 4096;
  char memory[64];
  const Tensor tensor = *Tensor::Adopt(memory, DType::kInt64, {8}, space, nullptr);
  const Tensor slice = *tensor.Slice(3, 8);
  EXPECT_EQ(slice.space().segment_offset, 4096u + 24);
  EXPECT_EQ(slice.space().segment_id, 7u);
}

TEST(Tensor, WindowsOfAStorageAreChecked) {
  const Tensor whole = *Tensor::Allocate(DType::kUint8, {100});
  EXPECT_TRUE(Tensor::FromStorage(whole.storage(), 92, DType::kInt64, {1}).ok());
  EXPECT_EQ(Tensor::FromStorage(whole.storage(), 93, DType::kInt64, {1}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Tensor::FromStorage(whole.storage(), UINT64_MAX, DType::kInt64, {1}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Tensor::FromStorage(StorageRef(), 0, DType::kInt64, {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Tensor, StringsHoldElements) {
  absl::StatusOr<Tensor> tensor = Tensor::FromStrings({"a", "", std::string(100, 'x')}, {3});
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->bytes(), 101u);
  EXPECT_EQ(tensor->Slice(1, 3)->strings()[1].size(), 100u);
  EXPECT_EQ(Tensor::FromStrings({"a"}, {2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tensor::Allocate(DType::kString, {2, 2})->strings().size(), 4u);
}

class PoolSlot final : public Storage {
 public:
  explicit PoolSlot(int* given_back)
      : Storage(bytes_, sizeof(bytes_), {}), given_back_(given_back) {}
  ~PoolSlot() override = default;
  void OnUnused() override { ++*given_back_; }
  StorageRef Take() {
    Reuse();
    return StorageRef::Own(this);
  }

 private:
  char bytes_[64];
  int* const given_back_;
};

TEST(Storage, APoolTakesItsSlotBackAndUsesItAgain) {
  int given_back = 0;
  PoolSlot slot(&given_back);
  for (int i = 1; i <= 3; ++i) {
    {
      Tensor a = *Tensor::FromStorage(slot.Take(), 0, DType::kUint8, {64});
      Tensor b = a;
      EXPECT_FALSE(slot.unique());
    }
    EXPECT_EQ(given_back, i);
  }
}

TEST(Storage, CountsFromManyThreads) {
  std::atomic<int> deleted{0};
  char memory[8];
  absl::StatusOr<Tensor> tensor =
      Tensor::Adopt(memory, DType::kUint8, {8}, MemorySpace(), [&deleted] { ++deleted; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([copy = *tensor] {
      for (int i = 0; i < 10000; ++i) Tensor another = copy;
    });
  }
  *tensor = Tensor();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace tryst
