// Two workers, each a process of its own; docs/tutorials/embedding.md leads through it.
//
//   two_processes --job=producer [--SETTING=VALUE ...]          prints its name and address, sends
//   two_processes --job=consumer --join=NAME@ADDRESS [...]      receives, and says what came
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/server.h"

constexpr char kProducer[] = "/job:producer/replica:0/task:0";
constexpr char kConsumer[] = "/job:consumer/replica:0/task:0";
constexpr int64_t kStep = 1;  // One for each run of your graph.
constexpr absl::Duration kPatience = absl::Seconds(30);

// The name of a tensor: who makes it, in which of its lives, who takes it, and which edge it is.
absl::StatusOr<tryst::TensorKey> Key(uint64_t incarnation, const char* edge) {
  auto prefix = tryst::TensorKeyPrefix::Make(std::string(kProducer) + "/device:CPU:0", incarnation,
                                             std::string(kConsumer) + "/device:CPU:0", edge);
  if (!prefix.ok()) return prefix.status();
  return prefix->At(0, 0);
}

absl::Status Produce(tryst::Server* server) {
  std::printf("%s@%s\n", server->worker().c_str(), server->address().c_str());
  auto step = server->steps()->StartStep(kStep);
  auto weights = tryst::Tensor::Allocate(tryst::DType::kFloat, {1 << 20});
  auto key = Key(server->incarnation(), "weights");
  if (!step.ok()) return step.status();
  if (!weights.ok()) return weights.status();
  if (!key.ok()) return key.status();
  float* values = static_cast<float*>(weights->mutable_data());
  for (int i = 0; i < 1 << 20; ++i) values[i] = static_cast<float>(i);
  absl::Status sent = (*step)->Send(*key, {}, *weights, /*is_dead=*/false);  // Does not wait.
  if (!sent.ok()) return sent;
  std::puts("Enter ends it");
  std::fflush(stdout);
  std::getchar();
  return absl::OkStatus();
}

absl::Status Consume(tryst::Server* server) {
  auto producer = server->calls()->Ping(kProducer, kPatience);  // Which life it is in.
  if (!producer.ok()) return producer.status();
  auto step = server->steps()->StartStep(kStep);
  auto key = Key(producer->self.incarnation, "weights");
  if (!step.ok()) return step.status();
  if (!key.ok()) return key.status();
  auto got =
      (*step)->Recv(*key, {}, kPatience);  // RecvAsync() takes a callback in place of waiting.
  if (!got.ok()) return got.status();
  const float* values = got->tensor.data_as<float>();
  std::printf("%lld floats, the last one is %g\n",
              static_cast<long long>(got->tensor.shape().elements()), values[(1 << 20) - 1]);
  std::printf("%s", server->Explain(kProducer).c_str());
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& settings) {
  std::vector<std::string> rest;
  auto config = tryst::LoadConfig(settings, {}, &rest);
  if (!config.ok()) return config.status();
  auto server = tryst::ServerBuilder().Build(*config);
  if (!server.ok()) return server.status();
  absl::Status status = (*server)->Start();
  if (!status.ok()) return status;
  status = config->job == "producer" ? Produce(server->get()) : Consume(server->get());
  const absl::Status stopped = (*server)->Stop(absl::Seconds(5));
  return status.ok() ? stopped : status;
}

int main(int argc, char** argv) {
  const absl::Status status = Run(std::vector<std::string>(argv + 1, argv + argc));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
