// What a runtime adds to send its own tensors: its memory, its threads, its names. Both ends run in
// this one process, so that they can be read together; between two processes only the place of each
// half would change. See docs/examples/embedding.md.
#include <cstdio>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/mutex.h"
#include "server/server.h"

// ---- The runtime, as it was before it knew of Tryst ----

struct Array {  // The runtime's tensor: it is counted and owns its memory.
  explicit Array(size_t n) : values(n) {}
  std::vector<float> values;
};

// The runtime's thread, which also runs callbacks.
class Scheduler final : public tryst::Executor {
 public:
  ~Scheduler() override {
    Run(nullptr);
    thread_.join();
  }
  bool TryRun(Work* work) override {
    tryst::MutexLock lock(&mu_);
    work_.push_back(std::move(*work));
    ready_.NotifyOne();
    return true;
  }
  void Run(Work work) override { (void)TryRun(&work); }

 private:
  void Loop() {
    for (;;) {
      mu_.Lock();
      while (work_.empty()) ready_.Wait(&mu_);
      Work work = std::move(work_.front());
      work_.pop_front();
      mu_.Unlock();
      if (!work) return;
      std::move(work)();
    }
  }
  tryst::Mutex mu_;
  tryst::CondVar ready_;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);
  std::thread thread_{[this] { Loop(); }};
};

// ---- What it adds ----

// Shows the bytes as a tensor. The array lives until nothing uses the tensor any more: neither this
// code, nor the transport, nor a NIC.
tryst::Tensor Wrap(std::shared_ptr<Array> array) {
  std::vector<float>& values = array->values;
  return *tryst::Tensor::Adopt(values.data(), tryst::DType::kFloat,
                               {static_cast<int64_t>(values.size())}, {},
                               [array = std::move(array)] {});
}

absl::StatusOr<std::unique_ptr<tryst::Server>> Join(const char* job, const std::string& seed,
                                                    Scheduler* scheduler) {
  tryst::ServerConfig config;  // LoadConfig() would read flags, a file and the environment.
  config.job = job;
  config.listen = "127.0.0.1:0";
  // Between processes of one machine only. Elsewhere use certificates or a token.
  config.insecure = true;
  config.open_cluster = true;
  config.join = seed;
  config.nic = "soft";
  auto server = tryst::ServerBuilder().SetExecutor(scheduler).Build(config);
  if (!server.ok()) return server;
  absl::Status started = (*server)->Start();
  if (!started.ok()) return started;
  return server;
}

absl::Status Exchange(Scheduler* scheduler) {
  auto producer = Join("producer", "", scheduler);
  if (!producer.ok()) return producer.status();
  const std::string seed = absl::StrCat((*producer)->worker(), "@", (*producer)->address());
  auto consumer = Join("consumer", seed, scheduler);
  if (!consumer.ok()) return consumer.status();

  // The producer's device and its incarnation, the consumer's device, and the edge. For a peer in
  // another process calls()->Ping() returns the incarnation.
  auto key = tryst::TensorKeyPrefix::Make((*producer)->worker() + "/device:CPU:0",
                                          (*producer)->incarnation(),
                                          (*consumer)->worker() + "/device:CPU:0", "activations");
  if (!key.ok()) return key.status();
  constexpr int64_t kStep = 1;  // One step for each run of the graph; it is cleaned up at the end.

  // The consumer asks first, and gives memory of its own for the NIC to write into.
  auto into = std::make_shared<Array>(1 << 20);
  auto receiving = (*consumer)->steps()->StartStep(kStep);
  if (!receiving.ok()) return receiving.status();
  tryst::RecvArgs args;
  args.destination = Wrap(into);
  args.executor = scheduler;
  absl::Notification received;
  absl::Status status;
  (*receiving)->RecvAsync(key->At(0, 0), args, [&](tryst::Received&& got) {
    status = std::move(got.status);
    received.Notify();
  });

  auto array = std::make_shared<Array>(1 << 20);
  for (size_t i = 0; i < array->values.size(); ++i) array->values[i] = static_cast<float>(i) * 0.5f;
  auto sending = (*producer)->steps()->StartStep(kStep);
  if (!sending.ok()) return sending.status();
  absl::Status sent = (*sending)->Send(key->At(0, 0), {}, Wrap(array), /*is_dead=*/false);
  if (!sent.ok()) return sent;
  received.WaitForNotification();
  if (!status.ok()) return status;
  if (into->values != array->values) return absl::DataLossError("came differently");
  std::printf("%zu floats went from array to array\n%s", into->values.size(),
              (*consumer)->Explain((*producer)->worker()).c_str());
  (*consumer)->steps()->CleanupStep(kStep);
  (*producer)->steps()->CleanupStep(kStep);
  return absl::OkStatus();
}

int main() {
  Scheduler scheduler;
  const absl::Status status = Exchange(&scheduler);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
