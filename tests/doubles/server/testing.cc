#include "tests/doubles/server/testing.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {

std::unique_ptr<Server> StartTestServer(const std::string& job, int task, const Server* seed,
                                        const std::string& resolver,
                                        const std::function<void(ServerConfig*)>& change,
                                        Executor* executor) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.task = task;
  config.protocol = "grpc";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.stop_deadline = absl::Seconds(5);
  if (!resolver.empty()) config.resolver = resolver;
  if (seed != nullptr) config.join = absl::StrCat(seed->worker(), "@", seed->address());
  if (change) change(&config);
  auto server = ServerBuilder().SetEnvironment({}).SetExecutor(executor).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  const absl::Status started = (*server)->Start();
  EXPECT_TRUE(started.ok()) << started;
  return *std::move(server);
}

}  // namespace tryst
