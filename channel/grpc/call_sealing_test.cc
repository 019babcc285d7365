#include "channel/grpc/call_sealing.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "channel/grpc/byte_buffers.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kToken[] = "0123456789abcdef";

// In slices of `step` bytes, as gRPC may hand them over.
grpc::ByteBuffer InSlices(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += step) slices.emplace_back(bytes.substr(at, step));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(CallSealingTest, OnlyThisCallOpensItsAnswersAndInOrder) {
  CallSealing producer(kToken, "statement 1");
  const std::string first = BytesOf(producer.Seal(BufferOf("the first of two answers")));
  const std::string second = BytesOf(producer.Seal(BufferOf("the second")));
  EXPECT_EQ(first.find("first"), std::string::npos);
  for (size_t step : {1, 7, 15, 16, 17, 100}) {
    CallSealing consumer(kToken, "statement 1");
    for (const auto& [sealed, text] : {std::make_pair(first, "the first of two answers"),
                                       std::make_pair(second, "the second")}) {
      grpc::ByteBuffer message = InSlices(sealed, step);
      ASSERT_TRUE(consumer.Open(&message).ok());
      EXPECT_EQ(BytesOf(message), text);
    }
  }
  // Whoever plays a statement again gets nothing under a key that he has seen used.
  CallSealing again(kToken, "statement 1");
  const std::string other = BytesOf(again.Seal(BufferOf("the first of two answers")));
  EXPECT_NE(other, first);
  EXPECT_NE(other.substr(16), first.substr(16));
  const auto opens = [](const char* token, const char* statement, const std::string& sealed) {
    grpc::ByteBuffer message = BufferOf(sealed);
    return CallSealing(token, statement).Open(&message).ok();
  };
  EXPECT_TRUE(opens(kToken, "statement 1", first));
  EXPECT_FALSE(opens(kToken, "statement 1", second)) << "out of order";
  EXPECT_FALSE(opens(kToken, "statement 2", first)) << "for another call";
  EXPECT_FALSE(opens("fedcba9876543210", "statement 1", first));
  EXPECT_FALSE(opens(kToken, "statement 1", first.substr(1)));
  EXPECT_FALSE(opens(kToken, "statement 1", "short"));
  EXPECT_FALSE(opens(kToken, "statement 1", ""));
  for (size_t i = 0; i < first.size(); ++i) {
    std::string edited = first;
    edited[i] = static_cast<char>(edited[i] ^ 1);
    EXPECT_FALSE(opens(kToken, "statement 1", edited)) << i;
  }
}

}  // namespace
}  // namespace tryst
