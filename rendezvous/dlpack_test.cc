#include "rendezvous/dlpack.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace tryst {
namespace {

using dlpack::DLManagedTensorVersioned;

// A foreign program's tensor, which counts its deletions.
struct Foreign {
  DLManagedTensorVersioned managed = {};
  float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  int64_t shape[9] = {3, 4, 1, 1, 1, 1, 1, 1, 1};
  int64_t strides[9] = {4, 1};
  int deleted = 0;

  Foreign() {
    managed.version = {1, 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deleted;
    };
    managed.dl_tensor.data = data;
    managed.dl_tensor.device = {dlpack::kDLCPU, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {dlpack::kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.dl_tensor.strides = nullptr;
  }
  absl::StatusCode Refusal() {
    const absl::StatusCode code = FromDLPack(&managed).status().code();
    EXPECT_EQ(deleted, 0) << "a refused tensor stays the caller's";
    return code;
  }
};

TEST(DLPack, ImportsWithoutACopy) {
  Foreign foreign;
  {
    absl::StatusOr<Tensor> tensor = FromDLPack(&foreign.managed);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->data(), foreign.data);
    EXPECT_EQ(tensor->dtype(), DType::kFloat);
    EXPECT_EQ(tensor->shape(), TensorShape({3, 4}));
    Tensor slice = *tensor->Slice(1, 2);
    *tensor = Tensor();
    EXPECT_EQ(slice.data_as<float>()[0], 4);
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPack, HonoursTheByteOffset) {
  Foreign foreign;
  foreign.managed.dl_tensor.byte_offset = 16;
  foreign.shape[0] = 2;
  absl::StatusOr<Tensor> tensor = FromDLPack(&foreign.managed);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->data_as<float>()[0], 4);
}

TEST(DLPack, RefusesWhatIsNotAlignedToItsType) {
  Foreign foreign;
  foreign.shape[0] = 2;
  for (const uint64_t offset : {1, 2, 3, 5}) {
    foreign.managed.dl_tensor.byte_offset = offset;
    const absl::Status status = FromDLPack(&foreign.managed).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << offset << ": " << status;
    EXPECT_NE(status.message().find("aligned"), std::string::npos) << status;
  }
  foreign.managed.dl_tensor.byte_offset = 2;  // An offset of 2 is aligned for 16-bit floats.
  foreign.managed.dl_tensor.dtype = {dlpack::kDLFloat, 16, 1};
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
  EXPECT_EQ(foreign.deleted, 1);
  // A complex number is aligned as its halves are: 16 bytes at a multiple of 8.
  alignas(16) double pairs[5] = {};
  Foreign of_pairs;
  of_pairs.managed.dl_tensor.data = pairs;
  of_pairs.managed.dl_tensor.dtype = {dlpack::kDLComplex, 128, 1};
  of_pairs.managed.dl_tensor.ndim = 1;
  of_pairs.shape[0] = 2;
  of_pairs.managed.dl_tensor.byte_offset = 8;
  EXPECT_TRUE(FromDLPack(&of_pairs.managed).ok());
  // An empty tensor may have any offset, because no element of it is read.
  Foreign empty;
  empty.shape[0] = 0;
  empty.managed.dl_tensor.byte_offset = 3;
  EXPECT_TRUE(FromDLPack(&empty.managed).ok());
}

TEST(DLPack, HonoursTheReadOnlyFlag) {
  Foreign foreign;
  EXPECT_FALSE(FromDLPack(&foreign.managed)->read_only());
  foreign.managed.flags = dlpack::kFlagReadOnly;
  const Tensor tensor = *FromDLPack(&foreign.managed);
  EXPECT_TRUE(tensor.read_only());
  EXPECT_TRUE(tensor.Slice(1, 2)->read_only()) << "and so are parts of it";
  EXPECT_TRUE(tensor.Reshape({12})->read_only());
  EXPECT_FALSE(Tensor().read_only());
  EXPECT_FALSE(Tensor::Allocate(DType::kFloat, {1})->read_only());
}

TEST(DLPack, TakesCompactStridesOnly) {
  Foreign foreign;
  foreign.managed.dl_tensor.strides = foreign.strides;
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
  foreign.deleted = 0;
  foreign.strides[0] = 8;
  EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(FromDLPack(&foreign.managed).status().message().find("contiguous"), std::string::npos);
  foreign.shape[0] = 1;  // The stride of a dimension of one row has no meaning.
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
  foreign.deleted = 0;
  foreign.shape[0] = 0;  // Nor has that of a dimension of no rows.
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
}

TEST(DLPack, RefusesBadInput) {
  EXPECT_EQ(FromDLPack(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  {
    Foreign foreign;
    foreign.managed.version.major = 2;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kUnimplemented);
  }
  {
    Foreign foreign;
    foreign.managed.dl_tensor.dtype = {dlpack::kDLFloat, 24, 1};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
    foreign.managed.dl_tensor.dtype = {99, 32, 1};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
    foreign.managed.dl_tensor.dtype = {dlpack::kDLFloat, 32, 4};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kUnimplemented);
    foreign.managed.dl_tensor.dtype = {dlpack::kDLInt, 4, 1};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument) << "packed";
  }
  for (const int32_t ndim : {-1, 255, std::numeric_limits<int32_t>::max()}) {
    Foreign foreign;
    foreign.managed.dl_tensor.ndim = ndim;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument) << ndim;
  }
  for (const int64_t dim : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    Foreign foreign;
    foreign.shape[0] = dim;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument) << dim;
  }
  {
    Foreign foreign;
    foreign.managed.dl_tensor.shape = nullptr;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
    foreign.managed.dl_tensor.shape = foreign.shape;
    foreign.managed.dl_tensor.data = nullptr;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
  }
  {
    Foreign foreign;
    foreign.managed.dl_tensor.byte_offset = UINT64_MAX - 3;
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
    foreign.managed.dl_tensor.byte_offset = 0;
    foreign.managed.dl_tensor.device = {7, 0};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kUnimplemented);
    foreign.managed.dl_tensor.device = {dlpack::kDLCUDA, -1};
    EXPECT_EQ(foreign.Refusal(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DLPack, ImportsDevices) {
  Foreign foreign;
  foreign.managed.dl_tensor.device = {dlpack::kDLCUDA, 3};
  absl::StatusOr<Tensor> tensor = FromDLPack(&foreign.managed);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->space().kind, MemorySpace::Kind::kDevice);
  EXPECT_EQ(tensor->space().device_ordinal, 3);
  EXPECT_FALSE(tensor->space().host_readable());
}

TEST(DLPack, AForeignTensorMayHaveNoDeleter) {
  Foreign foreign;
  foreign.managed.deleter = nullptr;
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
}

TEST(DLPack, ExportsPinnedMemoryAsWhatItIs) {
  char memory[64] = {};
  for (const auto& [ordinal, id] : {std::pair<int, int>{2, 2}, {-1, 0}}) {
    const MemorySpace pinned{MemorySpace::Kind::kPinned, ordinal};
    const auto managed = ToDLPack(*Tensor::Adopt(memory, DType::kUint8, {64}, pinned, nullptr));
    ASSERT_TRUE(managed.ok()) << managed.status();
    EXPECT_EQ((*managed)->dl_tensor.device.device_type, dlpack::kDLCUDAHost);
    EXPECT_EQ((*managed)->dl_tensor.device.device_id, id);
    (*managed)->deleter(*managed);
  }
}

TEST(DLPack, ExportsWithoutACopyAndKeepsTheBytes) {
  int deleted = 0;
  double memory[6] = {};
  absl::StatusOr<Tensor> tensor =
      Tensor::Adopt(memory, DType::kDouble, {2, 3}, MemorySpace(), [&deleted] { ++deleted; });
  absl::StatusOr<DLManagedTensorVersioned*> managed = ToDLPack(*tensor);
  ASSERT_TRUE(managed.ok());
  *tensor = Tensor();
  EXPECT_EQ(deleted, 0);
  const dlpack::DLTensor& out = (*managed)->dl_tensor;
  EXPECT_EQ(out.data, memory);
  EXPECT_EQ(out.ndim, 2);
  EXPECT_EQ(out.shape[1], 3);
  EXPECT_EQ(out.strides[0], 3);
  EXPECT_EQ(out.dtype.bits, 64);
  EXPECT_EQ((*managed)->version.major, 1u);
  EXPECT_NE((*managed)->flags & dlpack::kFlagReadOnly, 0u) << "sent bytes do not change";
  (*managed)->deleter(*managed);
  EXPECT_EQ(deleted, 1);
}

TEST(DLPack, EveryFixedSizeTypeComesBackAsItWent) {
  int types = 0;
  for (int number = 0; number < 256; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (DTypeBytes(dtype) == 0) continue;
    const Tensor tensor = *Tensor::Allocate(dtype, {2, 0, 5});
    absl::StatusOr<DLManagedTensorVersioned*> managed = ToDLPack(tensor);
    const absl::string_view name = DTypeName(dtype);
    if (name.find("qint") != name.npos || name.find("quint") != name.npos ||
        dtype == DType::kPacked) {
      EXPECT_EQ(managed.status().code(), absl::StatusCode::kInvalidArgument)
          << "DLPack has no quantised types, and nothing packed";
      continue;
    }
    ++types;
    ASSERT_TRUE(managed.ok()) << DTypeName(dtype);
    absl::StatusOr<Tensor> back = FromDLPack(*managed);
    ASSERT_TRUE(back.ok()) << DTypeName(dtype) << back.status();
    EXPECT_EQ(back->dtype(), dtype);
    EXPECT_EQ(back->shape(), tensor.shape());
  }
  EXPECT_EQ(types, 19);
}

TEST(DLPack, StringsAreNotExported) {
  EXPECT_EQ(ToDLPack(*Tensor::FromStrings({"a"}, {1})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ToDLPack(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tryst
