// Uses the C++ interface, from the archive.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/dlpack.h"
#include "rendezvous/executor.h"
#include "server/server.h"

namespace {

std::unique_ptr<tryst::Server> Start(const std::string& job, const std::string& join,
                                     tryst::Executor* executor) {
  tryst::ServerConfig config;
  config.job = job;
  config.listen = "127.0.0.1:0";
  config.insecure = true;
  config.open_cluster = true;
  config.nic = "soft";
  config.join = join;
  auto server = tryst::ServerBuilder().SetExecutor(executor).Build(config);
  if (!server.ok() || !(*server)->Start().ok()) return nullptr;
  return *std::move(server);
}

// A foreign tensor can be imported and exported.
bool ForeignTensorsPass() {
  float values[2] = {1, 2};
  int64_t shape[1] = {2};
  tryst::dlpack::DLManagedTensorVersioned managed = {};
  managed.version.major = tryst::dlpack::kMajorVersion;
  managed.flags = tryst::dlpack::kFlagReadOnly;
  managed.dl_tensor.data = values;
  managed.dl_tensor.device = {tryst::dlpack::kDLCPU, 0};
  managed.dl_tensor.ndim = 1;
  managed.dl_tensor.dtype = {tryst::dlpack::kDLFloat, 32, 1};
  managed.dl_tensor.shape = shape;
  auto tensor = tryst::FromDLPack(&managed);
  if (!tensor.ok() || !tensor->read_only()) return false;
  auto out = tryst::ToDLPack(*tensor);
  if (!out.ok() || (*out)->dl_tensor.data != values) return false;
  (*out)->deleter(*out);
  return tryst::IsDerived(tryst::MarkDerived(absl::AbortedError("elsewhere")));
}

}  // namespace

int main() {
  if (!ForeignTensorsPass()) return 1;
  tryst::InlineExecutor executor;
  auto producer = Start("producer", "", &executor);
  if (producer == nullptr) return 1;
  auto consumer =
      Start("consumer", absl::StrCat(producer->worker(), "@", producer->address()), &executor);
  if (consumer == nullptr) return 1;
  auto key =
      tryst::TensorKeyPrefix::Make(producer->worker() + "/device:CPU:0", producer->incarnation(),
                                   consumer->worker() + "/device:CPU:0", "x");
  auto tensor = tryst::Tensor::Allocate(tryst::DType::kInt32, {1});
  if (!key.ok() || !tensor.ok()) return 1;
  *static_cast<int*>(tensor->mutable_data()) = 42;
  absl::Status sent = (*producer->steps()->StartStep(1))->Send(key->At(0, 0), {}, *tensor, false);
  auto got = (*consumer->steps()->StartStep(1))->Recv(key->At(0, 0), {}, absl::Seconds(10));
  if (!sent.ok() || !got.ok() || *got->tensor.data_as<int>() != 42) {
    std::printf("%s %s\n", sent.ToString().c_str(), got.status().ToString().c_str());
    return 1;
  }
  std::puts("ok");
  return 0;
}
