// Four GPUs, all of which send to each other: in one process, and in a process each; where a
// kernel of one reaches the memory of another, and where none does. On pretend GPUs.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "channel/device/device_engine.h"
#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

constexpr int kGpus = 4;
// Inside of a message, one copy of a kernel, several chunks.
constexpr std::array<int64_t, 3> kSizes = {100, 50'000, 300'000};

struct Machine {
  explicit Machine(bool have_peers) {
    setenv("FAKE_CUDA_DEVICES", absl::StrCat(kGpus).c_str(), 1);
    setenv("FAKE_CUDA_PEERS", have_peers ? "all" : "none", 1);
    fake = LoadFakeCuda();
    driver = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    for (int i = 0; i < kGpus; ++i) gpus.push_back(*Gpu::Open(driver.get(), i));
  }
  const FakeCudaControl* fake = nullptr;
  std::unique_ptr<CudaDriver> driver;
  std::vector<std::unique_ptr<Gpu>> gpus;
};

void Copy(const Gpu& gpu, const void* to, const void* from, uint64_t bytes) {
  auto stream = gpu.MakeStream();
  ASSERT_TRUE(stream.ok());
  ASSERT_EQ(gpu.calls().cuMemcpyAsync(AddressOf(to), AddressOf(from), bytes, stream->get()), 0);
  ASSERT_TRUE(gpu.WaitFor(stream->get()).ok());
}

std::string Value(int from, int to, int64_t bytes) {
  std::string value(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<char>(i * 7 + static_cast<size_t>(from * 31 + to * 5));
  }
  return value;
}

std::unique_ptr<Server> Start(int task, const std::vector<const Gpu*>& gpus,
                              const std::string& join) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = "worker";
  config.task = task;
  config.protocol = "grpc+verbs";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.nic = "soft";
  config.join = join;
  ServerBuilder builder;
  builder.SetEnvironment({});
  for (const Gpu* gpu : gpus) builder.UseGpu(gpu);
  absl::StatusOr<ServerParts> parts = builder.Prepare(config);
  EXPECT_TRUE(parts.ok()) << parts.status();
  // So that tensors have several chunks.
  parts->inner.devices.engine.slot_bytes = 64 << 10;
  parts->inner.devices.source.chunk_bytes = 64 << 10;
  std::unique_ptr<Server> server = MakeServer(*std::move(parts));
  const absl::Status started = server->Start();
  EXPECT_TRUE(started.ok()) << started;
  return server;
}

struct End {
  std::string worker;
  uint64_t incarnation = 0;
  int gpu = 0;
};

TensorKey KeyOf(const End& from, const End& to, int64_t bytes) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:GPU:%d;%016x;%s/device:GPU:%d;t%d;0:0",
                                           from.worker, from.gpu, from.incarnation, to.worker,
                                           to.gpu, bytes));
}

void Send(const Machine& machine, Server* server, const End& from, const End& to) {
  for (const int64_t bytes : kSizes) {
    auto out = *server->gpu(from.gpu)->Allocate(DType::kUint8, {bytes}, nullptr);
    auto host = *PinnedMemory::Allocate(machine.gpus[from.gpu].get(), out.bytes());
    memcpy(host.data(), Value(from.gpu, to.gpu, bytes).data(), out.bytes());
    Copy(*machine.gpus[from.gpu], out.data(), host.data(), out.bytes());
    SendArgs args;
    args.device_context = *GpuContext::Make(server->gpu(from.gpu), nullptr);
    const auto step = server->steps()->StartStep(1);
    ASSERT_TRUE((*step)->Send(KeyOf(from, to, bytes), args, out, false).ok());
  }
}

void Receive(const Machine& machine, Server* server, const End& from, const End& to) {
  for (const int64_t bytes : kSizes) {
    RecvArgs args;
    args.device_context = *GpuContext::Make(server->gpu(to.gpu), nullptr);
    const auto step = server->steps()->StartStep(1);
    auto got = (*step)->Recv(KeyOf(from, to, bytes), args, absl::Seconds(60));
    ASSERT_TRUE(got.ok()) << got.status() << server->Explain("");
    EXPECT_EQ(got->tensor.space().device_ordinal, to.gpu);
    ASSERT_EQ(got->tensor.bytes(), static_cast<uint64_t>(bytes));
    auto host = *PinnedMemory::Allocate(machine.gpus[to.gpu].get(), got->tensor.bytes());
    Copy(*machine.gpus[to.gpu], host.data(), got->tensor.data(), got->tensor.bytes());
    const std::string value(static_cast<const char*>(host.data()), got->tensor.bytes());
    EXPECT_TRUE(value == Value(from.gpu, to.gpu, bytes)) << from.gpu << " to " << to.gpu;
  }
}

class FourGpus : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, FourGpus, testing::Values(true, false), [](const auto& info) {
  return std::string(info.param ? "WithPeers" : "WithoutPeers");
});

void InOneProcess(bool have_peers) {
  const Machine machine(have_peers);
  std::vector<const Gpu*> gpus;
  for (const auto& gpu : machine.gpus) gpus.push_back(gpu.get());
  auto producer = Start(0, gpus, "");
  auto consumer = Start(1, gpus, absl::StrCat(producer->worker(), "@", producer->address()));
  for (int from = 0; from < kGpus; ++from) {
    for (int to = 0; to < kGpus; ++to) {
      const End source = {producer->worker(), producer->incarnation(), from};
      const End sink = {consumer->worker(), consumer->incarnation(), to};
      Send(machine, producer.get(), source, sink);
      Receive(machine, consumer.get(), source, sink);
    }
  }
  EXPECT_EQ(consumer->Stats().at("gpu_fetches"), int64_t{kSizes.size()} * kGpus * kGpus);
  EXPECT_EQ(consumer->Stats().at("gpu_by_cuda_ipc"), consumer->Stats().at("gpu_fetches"));
  consumer.reset();
  producer.reset();
  EXPECT_STREQ(machine.fake->complaints(), "");
}

// One of four processes. What it is told and says goes over two pipes.
void InItsProcess(int rank, bool have_peers, const std::string& join, FILE* in, FILE* out) {
  const Machine machine(have_peers);
  auto server = Start(rank, {machine.gpus[rank].get()}, join);
  fprintf(out, "%s@%s %llu\n", server->worker().c_str(), server->address().c_str(),
          static_cast<unsigned long long>(server->incarnation()));
  fflush(out);
  std::vector<End> ends(kGpus);
  for (int i = 0; i < kGpus; ++i) {
    char line[256];
    ASSERT_NE(fgets(line, sizeof(line), in), nullptr);
    const std::vector<std::string> words = absl::StrSplit(absl::StripSuffix(line, "\n"), ' ');
    ends[i].worker = words[0].substr(0, words[0].find('@'));
    ASSERT_TRUE(absl::SimpleAtoi(words[1], &ends[i].incarnation));
    ends[i].gpu = i;
  }
  for (int i = 0; i < kGpus; ++i) {
    if (i != rank) Send(machine, server.get(), ends[rank], ends[i]);
  }
  for (int i = 0; i < kGpus; ++i) {
    if (i != rank) Receive(machine, server.get(), ends[i], ends[rank]);
  }
  const auto stats = server->Stats();
  const int64_t large = kGpus - 1;  // Each peer sends one of each size.
  if (have_peers) {
    EXPECT_GE(stats.at("gpu_by_cuda_ipc"), large) << server->Explain("");
    EXPECT_EQ(stats.at("gpu_by_staging"), 0) << server->Explain("");
  } else {
    EXPECT_EQ(stats.at("gpu_by_cuda_ipc"), 0) << server->Explain("");
    EXPECT_GE(stats.at("gpu_by_staging"), large) << server->Explain("");
    EXPECT_THAT(server->Explain(""), HasSubstr("(217)"));
  }
  fprintf(out, "done\n");
  fflush(out);
  char line[8];
  ASSERT_EQ(fgets(line, sizeof(line), in), nullptr) << "the end is told by the pipe's";
  server.reset();
  EXPECT_STREQ(machine.fake->complaints(), "");
}

struct Child {
  pid_t pid = -1;
  FILE* to = nullptr;
  FILE* from = nullptr;

  std::string Line() const {
    char line[256];
    return fgets(line, sizeof(line), from) != nullptr ? line : "";
  }
};

Child Fork(const std::function<void(FILE* in, FILE* out)>& body, const std::vector<Child>& others) {
  int down[2];
  int up[2];
  EXPECT_EQ(pipe(down), 0);
  EXPECT_EQ(pipe(up), 0);
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    for (const Child& other : others) close(fileno(other.to));
    close(down[1]);
    close(up[0]);
    body(fdopen(down[0], "r"), fdopen(up[1], "w"));
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(down[0]);
  close(up[1]);
  child.to = fdopen(down[1], "w");
  child.from = fdopen(up[0], "r");
  return child;
}

TEST_P(FourGpus, OfFourProcessesSendToEachOther) {
  std::vector<Child> children;
  std::string join;
  std::string lines;
  for (int rank = 0; rank < kGpus; ++rank) {
    children.push_back(Fork(
        [&](FILE* in, FILE* out) { InItsProcess(rank, GetParam(), join, in, out); }, children));
    const std::string line = children.back().Line();
    if (join.empty()) join = line.substr(0, line.find(' '));
    lines += line;
  }
  for (const Child& child : children) {
    fputs(lines.c_str(), child.to);
    fflush(child.to);
  }
  for (const Child& child : children) EXPECT_EQ(child.Line(), "done\n");
  for (const Child& child : children) fclose(child.to);
  for (const Child& child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child.pid, &status, 0), child.pid);
    EXPECT_EQ(status, 0);
    fclose(child.from);
  }
}

// Also in a process of its own, because a process with threads cannot fork safely.
TEST_P(FourGpus, OfOneProcessSendToEachOther) {
  const Child child = Fork([](FILE*, FILE*) { InOneProcess(GetParam()); }, std::vector<Child>());
  int status = -1;
  ASSERT_EQ(waitpid(child.pid, &status, 0), child.pid);
  EXPECT_EQ(status, 0);
  fclose(child.to);
  fclose(child.from);
}

}  // namespace
}  // namespace tryst
