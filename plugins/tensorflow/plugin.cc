// What tf.load_library() loads: makes the servers of protocol "grpc+verbs".

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/tensorflow/rendezvous.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/cluster.pb.h"

namespace tryst_tensorflow {
namespace {

using tensorflow::ServerDef;
using tensorflow::ServerFactory;
using tensorflow::ServerInterface;

constexpr char kProtocol[] = "grpc+verbs";

// Bridges live as long as TensorFlow's servers: as the process does, but for a server that could
// not be started.
struct Bridges {
  std::mutex mu;
  std::vector<Bridge*> all;
  std::vector<std::string> without;  // Why some servers have no bridge.
};
Bridges* TheBridges() {
  static Bridges* const bridges = new Bridges;
  return bridges;
}

void Forget(Bridge* bridge) {
  Bridges* bridges = TheBridges();
  const std::lock_guard<std::mutex> lock(bridges->mu);
  bridges->all.erase(std::remove(bridges->all.begin(), bridges->all.end(), bridge),
                     bridges->all.end());
}

// The host by which other tasks know this task.
std::string HostOf(const ServerDef& server) {
  for (const auto& job : server.cluster().job()) {
    if (job.name() != server.job_name()) continue;
    const auto task = job.tasks().find(server.task_index());
    if (task == job.tasks().end()) continue;
    const std::string& address = task->second;
    return address.substr(0, address.rfind(':'));
  }
  return "localhost";
}

// Makes TensorFlow's own gRPC server, but its steps fetch by Tryst.
class Factory final : public ServerFactory {
 public:
  bool AcceptsOptions(const ServerDef& server) override { return server.protocol() == kProtocol; }

  absl::Status NewServer(const ServerDef& server, const Options& options,
                         std::unique_ptr<ServerInterface>* out) override {
    ServerDef stock = server;
    stock.set_protocol("grpc");
    ServerFactory* factory = nullptr;
    absl::Status status = ServerFactory::GetFactory(stock, &factory);
    if (status.ok()) status = factory->NewServer(stock, options, out);
    if (!status.ok()) return status;
    std::string why;
    const Library* library = LoadLibrary(&why);
    std::unique_ptr<Worker> worker;
    if (library != nullptr) {
      worker = Worker::Start(library, server.job_name(), server.task_index(), HostOf(server), &why);
    }
    Bridges* bridges = TheBridges();
    const std::lock_guard<std::mutex> lock(bridges->mu);
    if (worker == nullptr) {
      // The message is one text, because wheels differ in what else a log message accepts.
      LOG(ERROR) << "Tryst: /job:" + server.job_name() +
                        "/task:" + std::to_string(server.task_index()) +
                        " goes on only by gRPC: " + why;
      bridges->without.push_back(why);
      return absl::OkStatus();
    }
    // The server has not started, so nothing has used its own manager.
    tensorflow::WorkerEnv* env = (*out)->worker_env();
    auto bridge = std::make_unique<Bridge>(env, std::move(worker));
    bridges->all.push_back(bridge.get());
    delete env->rendezvous_mgr;
    env->rendezvous_mgr = new Steps(env, std::move(bridge), Forget);
    return absl::OkStatus();
  }
};

const bool registered = [] {
  ServerFactory::Register("TRYST_SERVER", new Factory);
  return true;
}();

char* Give(const std::string& text) { return strdup(text.c_str()); }

}  // namespace
}  // namespace tryst_tensorflow

// For python/tryst/tensorflow. It frees returned texts with tryst_tensorflow_free.
extern "C" {

__attribute__((visibility("default"))) char* tryst_tensorflow_explain() {
  auto* bridges = tryst_tensorflow::TheBridges();
  const std::lock_guard<std::mutex> lock(bridges->mu);
  std::string text;
  for (const std::string& why : bridges->without)
    text += "a server that uses only gRPC: " + why + "\n";
  for (tryst_tensorflow::Bridge* bridge : bridges->all) text += bridge->Explain() + "\n";
  return tryst_tensorflow::Give(text);
}

__attribute__((visibility("default"))) char* tryst_tensorflow_stats() {
  auto* bridges = tryst_tensorflow::TheBridges();
  const std::lock_guard<std::mutex> lock(bridges->mu);
  std::string json = "[";
  for (tryst_tensorflow::Bridge* bridge : bridges->all) {
    json += (json.size() > 1 ? "," : "") + bridge->StatsJson();
  }
  return tryst_tensorflow::Give(json + "]");
}

__attribute__((visibility("default"))) void tryst_tensorflow_free(char* text) { free(text); }

// Called before the process ends.
__attribute__((visibility("default"))) void tryst_tensorflow_stop() {
  auto* bridges = tryst_tensorflow::TheBridges();
  const std::lock_guard<std::mutex> lock(bridges->mu);
  for (tryst_tensorflow::Bridge* bridge : bridges->all) bridge->Stop();
}

}  // extern "C"
