#include "channel/grpc/hello_wire.h"

#include <string>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

// Anybody may send one, before anything is known of him.
TEST(HelloWireTest, EachFieldMayBeSoLongAndNoLonger) {
  using Set = absl::FunctionRef<void(int, rpc::HelloRequest*)>;
  const auto bounded = [](const char* what, int most, Set set) {
    rpc::HelloRequest hello;
    set(most, &hello);
    EXPECT_TRUE(HelloFromProto(hello).ok()) << what;
    hello.Clear();
    set(most + 1, &hello);
    EXPECT_TRUE(absl::IsInvalidArgument(HelloFromProto(hello).status())) << what;
  };
  const auto text = [](int bytes) { return std::string(static_cast<size_t>(bytes), 'x'); };
  bounded("worker", 512, [&](int n, rpc::HelloRequest* hello) { hello->set_worker(text(n)); });
  bounded("path", 512, [&](int n, rpc::HelloRequest* hello) { hello->set_path(text(n)); });
  bounded("parameters", 64 * 1024,
          [&](int n, rpc::HelloRequest* hello) { hello->set_parameters(text(n)); });
  bounded("a queue pair", 4096,
          [&](int n, rpc::HelloRequest* hello) { hello->add_queue_pairs(text(n)); });
  bounded("queue pairs", 256, [&](int n, rpc::HelloRequest* hello) {
    for (int i = 0; i < n; ++i) hello->add_queue_pairs("x");
  });
}

}  // namespace
}  // namespace tryst
