#include "rendezvous/packed_tensor.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "rendezvous/testing.h"

namespace tryst {
namespace {

Tensor Numbers(const std::vector<int64_t>& dims) {
  const Tensor tensor = *Tensor::Allocate(DType::kInt32, *TensorShape::Make(dims));
  for (int64_t i = 0; i < tensor.shape().elements(); ++i) {
    static_cast<int32_t*>(tensor.mutable_data())[i] = static_cast<int32_t>(i);
  }
  return tensor;
}

TEST(PackedTensor, ComesOutAsItWentIn) {
  std::vector<std::vector<int64_t>> shapes = {{}, {7}, std::vector<int64_t>(254, 1)};
  shapes.push_back({1, 2, 1, 3, 1, 1, 2, 1, 2, 1});
  shapes.push_back({1, 2, 1, 3, 0, 1, 2, 1, 2, 1});
  for (const auto& dims : shapes) {
    const Tensor tensor = Numbers(dims);
    const auto packed = Pack(tensor);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->shape().rank(), 1);
    const auto out = Unpack(*packed);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->dtype(), tensor.dtype());
    EXPECT_EQ(out->shape(), tensor.shape());
    EXPECT_TRUE(out->SharesBytesWith(*packed));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(out->data()) % Tensor::kAlignment, 0u);
    if (tensor.bytes() > 0) {
      EXPECT_EQ(memcmp(out->data(), tensor.data(), tensor.bytes()), 0);
    }
  }
}

TEST(PackedTensor, WhatAPeerMadeUpIsRefused) {
  const Tensor good = *Pack(Numbers({1, 2, 1, 3, 1, 1, 2, 1, 2, 1}));
  // Each byte of the description in turn, as each value: never more bytes than there are.
  for (size_t at = 0; at < 8 + 10 * 8; ++at) {
    for (int value = 0; value < 256; ++value) {
      Tensor packed = *Tensor::Allocate(DType::kPacked, good.shape());
      memcpy(packed.mutable_data(), good.data(), good.bytes());
      static_cast<uint8_t*>(packed.mutable_data())[at] = static_cast<uint8_t>(value);
      const auto out = Unpack(packed);
      if (!out.ok()) continue;
      EXPECT_LE(out->storage_offset() + out->bytes(), packed.bytes());
      EXPECT_NE(out->dtype(), DType::kPacked);
    }
  }
  for (int64_t bytes = 0; bytes < good.shape().dim(0); ++bytes) {
    const Tensor cut = *Tensor::FromStorage(good.storage(), 0, DType::kPacked, {bytes});
    EXPECT_EQ(Unpack(cut).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
  EXPECT_FALSE(Unpack(Numbers({100})).ok());
}

TEST(PackedTensor, StringsAndDevicesStay) {
  EXPECT_EQ(Pack(*Tensor::FromStrings({"s"}, {1})).status().code(),
            absl::StatusCode::kInvalidArgument);
  MemorySpace device;
  device.kind = MemorySpace::Kind::kDevice;
  char memory[8] = {};
  EXPECT_EQ(Pack(*Tensor::Adopt(memory, DType::kInt64, {1}, device, nullptr)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PackedTensor, WhatHasComeIntoADevicesMemoryIsNotRead) {
  const auto out = Unpack(OnDevice(DType::kPacked, {4096}));
  EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << out.status();
}

}  // namespace
}  // namespace tryst
