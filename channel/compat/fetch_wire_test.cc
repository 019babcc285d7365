#include "channel/compat/fetch_wire.h"

#include <grpcpp/support/slice.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/guards_reached.h"
#include "base/memory_bound.h"
#include "channel/string_codec.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

rpc::TensorMetadata Floats(int64_t elements) {
  rpc::TensorMetadata metadata;
  metadata.set_dtype(static_cast<uint32_t>(DType::kFloat));
  metadata.add_dims(elements);
  metadata.set_bytes(static_cast<uint64_t>(elements) * sizeof(float));
  return metadata;
}

rpc::FetchHeader HeaderOf(const rpc::TensorMetadata& metadata, absl::StatusCode code) {
  rpc::FetchHeader header;
  *header.mutable_tensor() = metadata;
  header.set_code(static_cast<int>(code));
  return header;
}

// As a peer that keeps to no rule may write it.
grpc::ByteBuffer Said(const rpc::FetchHeader* header, const std::string& chunk) {
  rpc::FetchResponse response;
  if (header != nullptr) *response.mutable_header() = *header;
  response.set_chunk(chunk);
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

Tensor Counting(int64_t elements) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, {elements});
  auto* const values = static_cast<float*>(tensor.mutable_data());
  for (int64_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i);
  return tensor;
}

TEST(FetchWireTest, StringsForWhichThereIsNoMemoryAreRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends a process that has no more memory";
#endif
  constexpr uint64_t kText = 64 << 20;
  rpc::TensorMetadata metadata;
  metadata.set_dtype(static_cast<uint32_t>(DType::kString));
  metadata.add_dims(1);
  metadata.set_bytes(8 + kText);
  const rpc::FetchHeader header = HeaderOf(metadata, absl::StatusCode::kOk);
  grpc::ByteBuffer message = Said(&header, std::string(kText, 'x'));
  const auto take = [&] {
    const MemoryBound bound(kText / 2);
    IncomingTensor incoming(Tensor(), 2 * kText);
    _exit(absl::IsResourceExhausted(incoming.Take(&message)) ? 0 : 1);
  };
  EXPECT_EXIT(take(), testing::ExitedWithCode(0), "");
  // Each empty string needs four times what its length does.
  constexpr int64_t kStrings = 4 << 20;
  const std::string lengths(8 * kStrings, '\0');
  const auto decode = [&] {
    const MemoryBound bound(kText);
    _exit(absl::IsResourceExhausted(DecodeStrings(lengths, {kStrings}).status()) ? 0 : 1);
  };
  EXPECT_EXIT(decode(), testing::ExitedWithCode(0), "");
}

TEST(FetchWireTest, TensorInTwoMessagesWithDigests) {
  const Tensor sent = Counting(100);
  const OutgoingTensor out = *OutgoingTensor::Make(sent, false);
  const rpc::FetchHeader header = HeaderOf(out.metadata(), absl::StatusCode::kOk);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  grpc::ByteBuffer first = out.Message(&header, 0, 300, true);
  grpc::ByteBuffer second = out.Message(nullptr, 300, 100, true);
  ASSERT_TRUE(incoming.Take(&first).ok());
  EXPECT_FALSE(incoming.complete());
  ASSERT_TRUE(incoming.Take(&second).ok());
  ASSERT_TRUE(incoming.complete());
  const absl::StatusOr<Tensor> got = incoming.Finish();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(0, memcmp(got->data(), sent.data(), 400));
}

// It is not fetched again as if bits had flipped on the way.
TEST(FetchWireTest, AMessageThatIsCutIsNoWrongDigest) {
  const OutgoingTensor out = *OutgoingTensor::Make(Counting(100), false);
  const rpc::FetchHeader header = HeaderOf(out.metadata(), absl::StatusCode::kOk);
  const grpc::ByteBuffer whole = out.Message(&header, 0, 400, true);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(whole.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  for (const size_t missing : {1u, 399u}) {
    const grpc::Slice cut(bytes.substr(0, bytes.size() - missing));
    grpc::ByteBuffer message(&cut, 1);
    IncomingTensor incoming(Tensor(), kMaxBytes);
    const absl::Status taken = incoming.Take(&message);
    EXPECT_TRUE(
        absl::StrContains(taken.message(), "it ends in the middle of a field or of the tensor"))
        << taken;
    EXPECT_FALSE(incoming.digest_wrong());
  }
}

TEST(FetchWireTest, AttemptGoesOnWhereTheBytesWereGood) {
  const Tensor sent = Counting(100);
  const OutgoingTensor out = *OutgoingTensor::Make(sent, false);
  const rpc::FetchHeader header = HeaderOf(out.metadata(), absl::StatusCode::kOk);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  grpc::ByteBuffer first = out.Message(&header, 0, 300, false);
  ASSERT_TRUE(incoming.Take(&first).ok());
  incoming.StartAttempt();
  grpc::ByteBuffer rest = out.Message(&header, incoming.received(), 100, false);
  ASSERT_TRUE(incoming.Take(&rest).ok());
  ASSERT_TRUE(incoming.complete());
  EXPECT_EQ(0, memcmp(incoming.Finish()->data(), sent.data(), 400));
}

// For the tensor that a failure names nothing was allocated.
// Bytes that have begun to land stay in their place, which another receive's memory is not.
TEST(FetchWireTest, ItGoesToAnotherReceiveUntilItsBytesHaveBegunToLand) {
  const Tensor sent = Counting(100);
  const OutgoingTensor out = *OutgoingTensor::Make(sent, false);
  const rpc::FetchHeader header = HeaderOf(out.metadata(), absl::StatusCode::kOk);
  const Tensor old = *Tensor::Allocate(DType::kFloat, {100});
  const Tensor other = *Tensor::Allocate(DType::kFloat, {100});
  IncomingTensor incoming(old, kMaxBytes);
  EXPECT_TRUE(incoming.Redirect(other));
  grpc::ByteBuffer first = out.Message(&header, 0, 300, false);
  ASSERT_TRUE(incoming.Take(&first).ok());
  EXPECT_FALSE(incoming.Redirect(old));
  EXPECT_FALSE(incoming.Redirect(Tensor()));
  grpc::ByteBuffer second = out.Message(nullptr, 300, 100, false);
  ASSERT_TRUE(incoming.Take(&second).ok());
  EXPECT_EQ(incoming.Finish()->data(), other.data());

  // What lands in memory of ours is whoever's it is to be.
  IncomingTensor unbound(Tensor(), kMaxBytes);
  grpc::ByteBuffer again = out.Message(&header, 0, 300, false);
  ASSERT_TRUE(unbound.Take(&again).ok());
  EXPECT_TRUE(unbound.Redirect(Tensor()));
  EXPECT_FALSE(unbound.Redirect(old));
}

TEST(FetchWireTest, BytesAfterAFailureHaveNowhereToGo) {
  IncomingTensor incoming(Tensor(), kMaxBytes);
  const rpc::FetchHeader header = HeaderOf(Floats(16), absl::StatusCode::kAborted);
  grpc::ByteBuffer message = Said(&header, std::string(8, 'x'));
  EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&message).code());
}

// A later release may have more to say.
TEST(FetchWireTest, FieldsOfALaterReleaseArePassedOver) {
  rpc::FetchResponse response;
  *response.mutable_header() = HeaderOf(Floats(16), absl::StatusCode::kOk);
  const std::string said = std::string("\xa0\x06\x07", 3) + response.SerializeAsString() +
                           std::string("\xaa\x06\x02hi", 5);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  const absl::Status taken = incoming.TakeParcel(said);
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_TRUE(incoming.header_seen());
}

TEST(FetchWireTest, HeaderOfAFailureIsNeverATensor) {
  IncomingTensor incoming(Tensor(), kMaxBytes);
  const rpc::FetchHeader header =
      HeaderOf(rpc::TensorMetadata(), absl::StatusCode::kDeadlineExceeded);
  grpc::ByteBuffer message = HeaderMessage(header);
  ASSERT_TRUE(incoming.Take(&message).ok());
  EXPECT_FALSE(incoming.complete());
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kDeadlineExceeded), incoming.header().code());
}

// An attempt that fails and names a larger tensor must not make room for the one after it.
TEST(FetchWireTest, FailureBetweenAttemptsDoesNotWidenTheTensor) {
  const rpc::FetchHeader small = HeaderOf(Floats(16), absl::StatusCode::kOk);
  const rpc::FetchHeader failed = HeaderOf(Floats(10000), absl::StatusCode::kAborted);
  const rpc::FetchHeader large = HeaderOf(Floats(10000), absl::StatusCode::kOk);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  grpc::ByteBuffer first = Said(&small, std::string(32, 'x'));
  ASSERT_TRUE(incoming.Take(&first).ok());
  incoming.StartAttempt();
  grpc::ByteBuffer failure = Said(&failed, "");
  ASSERT_TRUE(incoming.Take(&failure).ok());
  incoming.StartAttempt();
  grpc::ByteBuffer wider = Said(&large, std::string(4096, 'x'));
  EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&wider).code());
}

TEST(FetchWireTest, MoreBytesThanStated) {
  const rpc::FetchHeader header = HeaderOf(Floats(16), absl::StatusCode::kOk);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  grpc::ByteBuffer message = Said(&header, std::string(65, 'x'));
  EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&message).code());
}

TEST(FetchWireTest, AnAttemptBringsTheTensorOfTheOneBefore) {
  IncomingTensor incoming(Tensor(), kMaxBytes);
  const rpc::FetchHeader header = HeaderOf(Floats(16), absl::StatusCode::kOk);
  grpc::ByteBuffer first = Said(&header, std::string(32, 'x'));
  ASSERT_TRUE(incoming.Take(&first).ok());
  incoming.StartAttempt();
  const rpc::FetchHeader other = HeaderOf(Floats(12), absl::StatusCode::kOk);
  grpc::ByteBuffer second = Said(&other, std::string(8, 'x'));
  EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&second).code());
  EXPECT_EQ(32u, incoming.received());
}

TEST(FetchWireTest, BytesThatNoHeaderOfTheAttemptAnnouncesAreNotTaken) {
  IncomingTensor incoming(Tensor(), kMaxBytes);
  const rpc::FetchHeader header = HeaderOf(Floats(16), absl::StatusCode::kOk);
  grpc::ByteBuffer first = Said(&header, std::string(32, 'x'));
  ASSERT_TRUE(incoming.Take(&first).ok());
  incoming.StartAttempt();
  grpc::ByteBuffer second = Said(nullptr, std::string(8, 'x'));
  EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&second).code());
  EXPECT_EQ(32u, incoming.received());
}

TEST(FetchWireTest, BytesThatTheShapeHasNot) {
  for (const uint64_t bytes : {0, 63, 65, 128}) {
    rpc::TensorMetadata metadata = Floats(16);
    metadata.set_bytes(bytes);
    const rpc::FetchHeader header = HeaderOf(metadata, absl::StatusCode::kOk);
    IncomingTensor incoming(Tensor(), kMaxBytes);
    grpc::ByteBuffer message = Said(&header, "");
    EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&message).code()) << bytes;
  }
}

// Whatever byte is flipped, the digest shows it, and the next attempt begins before that byte.
TEST(FetchWireTest, AByteThatIsFlippedOnItsWayIsFound) {
  const Tensor sent = Counting(100);
  const OutgoingTensor out = *OutgoingTensor::Make(sent, false);
  const rpc::FetchHeader header = HeaderOf(out.metadata(), absl::StatusCode::kOk);
  for (const size_t from_the_end : {1, 60, 100}) {
    IncomingTensor incoming(Tensor(), kMaxBytes);
    grpc::ByteBuffer first = out.Message(&header, 0, 300, true);
    ASSERT_TRUE(incoming.Take(&first).ok());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(out.Message(nullptr, 300, 100, true).Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    bytes[bytes.size() - from_the_end] ^= 0x10;
    const grpc::Slice flipped(bytes);
    grpc::ByteBuffer second(&flipped, 1);
    EXPECT_EQ(absl::StatusCode::kDataLoss, incoming.Take(&second).code()) << from_the_end;
    EXPECT_TRUE(incoming.digest_wrong());
    EXPECT_EQ(300u, incoming.received());
    incoming.StartAttempt();
    grpc::ByteBuffer again = out.Message(&header, 300, 100, true);
    ASSERT_TRUE(incoming.Take(&again).ok());
    EXPECT_EQ(0, memcmp(incoming.Finish()->data(), sent.data(), 400));
  }
}

TEST(FetchWireTest, LimitIsNamed) {
  const rpc::FetchHeader header = HeaderOf(Floats(kMaxBytes), absl::StatusCode::kOk);
  IncomingTensor incoming(Tensor(), kMaxBytes);
  grpc::ByteBuffer message = Said(&header, "");
  const absl::Status status = incoming.Take(&message);
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, status.code());
  EXPECT_NE(std::string::npos, status.message().find("1048576")) << status;
}

const auto* const kReached = ::testing::AddGlobalTestEnvironment(new GuardsReached("grpc: ", 5));

}  // namespace
}  // namespace tryst
