// Measures selections of GPU memory, and weights in it, between two processes. Checks the bytes.
// Prints JSON lines; without a GPU, why it was skipped.
//
//   device_spans [--cuda=libcuda.so.1] [--gpus=0,0] [--protocol=grpc+verbs] [--shm=on] [--staged]
//                [--quick]
//
// The first GPU is the producer's and the second the consumer's; they may be the same.

#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/device/device_engine.h"
#include "gpu/pinned_memory.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "weights/cast.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:producer/replica:0/task:0";
constexpr char kConsumer[] = "/job:consumer/replica:0/task:0";
constexpr absl::Duration kLong = absl::Seconds(60);

struct Options {
  std::string cuda = "libcuda.so.1";
  std::vector<int> gpus = {0, 0};
  std::string protocol = "grpc+verbs";
  std::string shm = "on";
  bool staged = false;
  bool quick = false;
};

// What the consumer has the producer do.
struct Command {
  enum What : int { kSend, kSendWhole, kPublish, kQuit } what = kQuit;
  uint32_t spans = 0;
  uint64_t span_bytes = 0;
  int64_t step = 0;
};
struct Answer {
  int64_t call_ns = 0;   // The send's, or the publishing's.
  int64_t there_ns = 0;  // Until the stream has it.
};

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void Print(const std::string& figure, uint32_t spans, uint64_t bytes, double value,
           const char* unit) {
  printf("{\"figure\":\"%s\",\"spans\":%u,\"size_bytes\":%llu,\"value\":%.4g,\"unit\":\"%s\"}\n",
         figure.c_str(), spans, static_cast<unsigned long long>(bytes), value, unit);
  fflush(stdout);
}

void MustWork(const absl::Status& status) { TRYST_CHECK(status.ok()) << status; }

double Median(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[values.size() / 2]);
}

// Every other block of a pool, in an order of the seed's.
std::vector<uint32_t> Blocks(uint32_t spans, uint32_t seed) {
  std::vector<uint32_t> blocks(spans);
  for (uint32_t i = 0; i < spans; ++i) blocks[i] = 2 * i;
  std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(seed));
  return blocks;
}
constexpr uint32_t kSent = 1, kLands = 2;  // Seeds.

// What a pool holds: words that differ from each other.
uint64_t WordAt(uint64_t at) { return at * 0x9e3779b97f4a7c15 >> 8; }

// A process of the pair.
class End {
 public:
  End(const Options& options, const char* job, int gpu, const std::string& join)
      : gpu_number_(gpu) {
    driver_ = *CudaDriver::Load(options.cuda);
    gpu_ = *Gpu::Open(driver_.get(), gpu);
    stream_ = *gpu_->MakeStream();
    ServerConfig config;
    config.cluster = "bench";
    config.job = job;
    config.protocol = options.protocol;
    config.shm = options.shm;
    config.nic = "soft";
    config.insecure = true;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    config.join = join;
    ServerBuilder builder;
    auto parts = builder.SetEnvironment({}).UseGpu(gpu_.get()).Prepare(config);
    MustWork(parts.status());
    if (options.staged) {
      parts->inner.devices.source.offer_ipc = parts->inner.devices.fetcher.use_ipc = false;
    }
    server_ = MakeServer(*std::move(parts));
    MustWork(server_->Start());
  }

  Server* server() { return server_.get(); }
  const Gpu* gpu() { return gpu_.get(); }
  cuda::Stream stream() { return stream_.get(); }
  std::shared_ptr<GpuContext> Context() {
    return *GpuContext::Make(server_->gpu(gpu_number_), stream_.get());
  }
  std::shared_ptr<Rendezvous> Step(int64_t step) { return *server_->steps()->StartStep(step); }
  Tensor OnGpu(DType dtype, int64_t elements) {
    auto made = server_->gpu(gpu_number_)->Allocate(dtype, {elements}, stream_.get());
    MustWork(made.status());
    return *made;
  }
  // In pinned memory, as many bytes as `tensor` has.
  void Copy(const Tensor& tensor, void* pinned, bool to_gpu) {
    const auto there = AddressOf(tensor.data()), here = AddressOf(pinned);
    MustWork(gpu_->Use());
    TRYST_CHECK(gpu_->calls().cuMemcpyAsync(to_gpu ? there : here, to_gpu ? here : there,
                                            tensor.bytes(), stream_.get()) == 0);
    MustWork(gpu_->WaitFor(stream_.get()));
  }
  PinnedMemory Pinned(uint64_t bytes) { return *PinnedMemory::Allocate(gpu_.get(), bytes); }

 private:
  const int gpu_number_;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  GpuStream stream_;
  std::unique_ptr<Server> server_;
};

TensorKey KeyFrom(uint64_t incarnation) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;spans;0:0",
                                           kProducer, incarnation, kConsumer));
}

constexpr int64_t kRows = 8192, kColumns = 8192, kQuickRows = 96;
int64_t RowsOf(const Options& options) { return options.quick ? kQuickRows : kRows; }
TensorLayout LayoutOf(const Options& options) {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kBfloat16;
  layout.shape = {RowsOf(options), kColumns};
  return layout;
}

float FloatAt(uint64_t at) { return static_cast<float>(WordAt(at) & 0xffffff) / 4096; }

// ---- The producer ----

class Producer {
 public:
  Producer(const Options& options, int talk)
      : options_(options), talk_(talk), end_(options, "producer", options.gpus[0], "") {
    const std::string hello =
        absl::StrCat(kProducer, "@", end_.server()->address(), " ", end_.server()->incarnation());
    TRYST_CHECK(write(talk_, hello.c_str(), hello.size() + 1) > 0);
  }

  void Run() {
    Command command;
    while (read(talk_, &command, sizeof(command)) == sizeof(command) &&
           command.what != Command::kQuit) {
      Answer answer;
      if (command.what == Command::kPublish) {
        answer = Publish();
      } else {
        answer = Send(command);
      }
      TRYST_CHECK(write(talk_, &answer, sizeof(answer)) == sizeof(answer));
    }
  }

 private:
  Answer Send(const Command& command) {
    const uint64_t bytes = 2 * command.spans * command.span_bytes;
    if (!pool_.valid() || pool_.bytes() != bytes) {
      pool_ = Tensor();
      pool_ = end_.OnGpu(DType::kUint8, static_cast<int64_t>(bytes));
      const PinnedMemory words = end_.Pinned(bytes);
      for (uint64_t i = 0; i < bytes / 8; ++i) static_cast<uint64_t*>(words.data())[i] = WordAt(i);
      end_.Copy(pool_, words.data(), true);
      blocks_ = Blocks(command.spans, kSent);
    }
    SendArgs args;
    const std::shared_ptr<Rendezvous> step = end_.Step(command.step);
    const TensorKey key = KeyFrom(end_.server()->incarnation());
    Answer answer;
    const int64_t begin_ns = NowNs();
    args.device_context = end_.Context();
    if (command.what == Command::kSendWhole) {
      auto half =
          Tensor::FromStorage(pool_.storage(), 0, DType::kUint8, {static_cast<int64_t>(bytes / 2)});
      MustWork(step->Send(key, args, *half, false));
    } else {
      MustWork(
          step->SendSelected(key, args, pool_, Selection::Indices(blocks_, command.span_bytes)));
    }
    answer.call_ns = NowNs() - begin_ns;
    MustWork(end_.gpu()->WaitFor(end_.stream()));
    answer.there_ns = NowNs() - begin_ns;
    end_.server()->steps()->CleanupStep(command.step - 8);
    return answer;
  }

  // A transposed array of floats, in rows with a gap behind each.
  Answer Publish() {
    const int64_t rows = RowsOf(options_), pitch = rows + 16;
    if (owner_ == nullptr) {
      WeightOwnerOptions options;
      options.set = "policy";
      options.owners = {kProducer};
      owner_ = *WeightOwner::Open(end_.server(), options);
      MustWork(owner_->Declare({LayoutOf(options_)}));
      floats_ = end_.OnGpu(DType::kFloat, kColumns * pitch);
      const PinnedMemory host = end_.Pinned(floats_.bytes());
      for (int64_t i = 0; i < kColumns * pitch; ++i) {
        static_cast<float*>(host.data())[i] = FloatAt(static_cast<uint64_t>(i));
      }
      end_.Copy(floats_, host.data(), true);
    }
    Answer answer;
    const int64_t begin_ns = NowNs();
    MustWork(owner_->Publish(++number_, "w", Box{{0, 0}, {rows, kColumns}}, floats_,
                             {0, {1, pitch}}, end_.Context()));
    answer.call_ns = answer.there_ns = NowNs() - begin_ns;
    MustWork(owner_->Seal(number_, "", kLong).status());
    return answer;
  }

  const Options& options_;
  const int talk_;
  End end_;
  Tensor pool_, floats_;
  std::vector<uint32_t> blocks_;
  std::unique_ptr<WeightOwner> owner_;
  uint64_t number_ = 0;
};

// ---- The consumer ----

class Consumer {
 public:
  Consumer(const Options& options, int talk) : options_(options), talk_(talk) {
    char hello[256] = {};
    TRYST_CHECK(read(talk_, hello, sizeof(hello) - 1) > 0);
    const std::vector<std::string> words = absl::StrSplit(std::string(hello), ' ');
    TRYST_CHECK(words.size() == 2 && absl::SimpleAtoi(words[1], &incarnation_));
    end_ = std::make_unique<End>(options, "consumer", options.gpus[1], words[0]);
  }

  void Run() {
    const struct {
      uint32_t spans;
      uint64_t bytes;
      int rounds;
    } cases[] = {{1000, 64, 200},
                 {1000, 4096, 200},
                 {1000, 8192, 200},
                 {40'000, 8192, 20},
                 {65'536, 4096, 20}};
    for (const auto& one : cases) {
      const uint32_t spans = options_.quick ? std::min(one.spans, 20'000u) : one.spans;
      const uint64_t bytes = options_.quick ? std::min<uint64_t>(one.bytes, 512) : one.bytes;
      Spans(spans, bytes, options_.quick ? 3 : one.rounds);
    }
    Weights(options_.quick ? 2 : 7);
    fprintf(stderr, "%s", end_->server()->Explain(kProducer).c_str());
    const Command quit;
    TRYST_CHECK(write(talk_, &quit, sizeof(quit)) == sizeof(quit));
  }

 private:
  Answer Ask(Command command) {
    Answer answer;
    TRYST_CHECK(write(talk_, &command, sizeof(command)) == sizeof(command));
    TRYST_CHECK(read(talk_, &answer, sizeof(answer)) == sizeof(answer)) << "the producer is gone";
    return answer;
  }

  // Starts a receive by `start`, and waits for it. The time until `done`.
  int64_t Timed(const std::function<void(const RecvArgs& args, DoneFn done)>& start,
                RecvArgs args) {
    struct End {
      Mutex mu;
      CondVar changed;
      bool ended ABSL_GUARDED_BY(mu) = false;
      int64_t at_ns = 0;
      absl::Status status;
    } end;
    const int64_t begin_ns = NowNs();
    if (!args.destination.on_host()) args.device_context = end_->Context();
    start(args, [&end](Received&& received) {
      end.at_ns = NowNs();
      end.status = received.status;
      MutexLock lock(&end.mu);
      end.ended = true;
      end.changed.NotifyAll();
    });
    MutexLock lock(&end.mu);
    while (!end.ended) end.changed.Wait(&end.mu);
    MustWork(end.status);
    return end.at_ns - begin_ns;
  }

  void Spans(uint32_t spans, uint64_t span_bytes, int rounds) {
    const uint64_t bytes = spans * span_bytes;
    const std::vector<uint32_t> sent = Blocks(spans, kSent), lands = Blocks(spans, kLands);
    const Tensor pool = end_->OnGpu(DType::kUint8, static_cast<int64_t>(2 * bytes));
    const Tensor row = end_->OnGpu(DType::kUint8, static_cast<int64_t>(bytes));
    const Tensor host = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(2 * bytes)});
    const PinnedMemory check = end_->Pinned(2 * bytes);
    const TensorKey key = KeyFrom(incarnation_);
    const Selection landing = Selection::Indices(lands, span_bytes);
    const auto gather = [&](const Tensor& into, const Answer& answer, std::vector<int64_t>* send,
                            std::vector<int64_t>* there, std::vector<int64_t>* took) {
      RecvArgs args;
      args.destination = into;
      took->push_back(Timed(
          [&](const RecvArgs& own, DoneFn done) {
            end_->Step(step_)->RecvSelectedAsync(key, own, landing, std::move(done));
          },
          args));
      send->push_back(answer.call_ns);
      there->push_back(answer.there_ns);
      end_->server()->steps()->CleanupStep(step_);
    };
    std::vector<int64_t> send, there, took, to_host, whole, none;
    for (int i = 0; i < rounds; ++i) {
      gather(pool, Ask({Command::kSend, spans, span_bytes, ++step_}), &send, &there, &took);
      if (i == 0) {
        MustWork(end_->gpu()->Use());
        end_->Copy(pool, check.data(), false);
        Check(static_cast<const uint64_t*>(check.data()), sent, lands, span_bytes);
      }
      gather(host, Ask({Command::kSend, spans, span_bytes, ++step_}), &none, &none, &to_host);
      if (i == 0) Check(host.data_as<uint64_t>(), sent, lands, span_bytes);
      Ask({Command::kSendWhole, spans, span_bytes, ++step_});
      RecvArgs args;
      args.destination = row;
      whole.push_back(
          Timed([&](const RecvArgs& own,
                    DoneFn done) { end_->Step(step_)->RecvAsync(key, own, std::move(done)); },
                args));
      end_->server()->steps()->CleanupStep(step_);
    }
    const auto print = [&](const char* figure, const std::vector<int64_t>& times) {
      Print(absl::StrCat(figure, "_us_a_span"), spans, span_bytes, Median(times) / 1e3 / spans,
            "us");
      Print(absl::StrCat(figure, "_gb_s"), spans, bytes, static_cast<double>(bytes) / Median(times),
            "GB/s");
    };
    print("send_call", send);
    print("send_until_the_stream_has_it", there);
    print("gathered", took);
    print("gathered_on_the_host", to_host);
    print("whole_of_as_many_bytes", whole);
  }

  // The bytes that a selection brings, and that it brings no other is for tests to see.
  static void Check(const uint64_t* got, const std::vector<uint32_t>& sent,
                    const std::vector<uint32_t>& lands, uint64_t span_bytes) {
    const uint64_t words = span_bytes / 8;
    for (size_t i = 0; i < sent.size(); ++i) {
      for (uint64_t at = 0; at < words; ++at) {
        TRYST_CHECK(got[lands[i] * words + at] == WordAt(sent[i] * words + at))
            << "span " << i << " has other bytes than were sent";
      }
    }
  }

  // Half of the columns, in rows with a gap behind each.
  void Weights(int rounds) {
    WeightMemberOptions options;
    options.set = "policy";
    options.owners = {kProducer};
    options.observes = true;
    auto member = *WeightMember::Open(end_->server(), options);
    const int64_t rows = RowsOf(options_), columns = kColumns / 2, pitch = columns + 8;
    const Tensor into = end_->OnGpu(DType::kBfloat16, rows * pitch);
    const Tensor on_host = *Tensor::Allocate(DType::kBfloat16, {rows * pitch});
    const Box box{{0, columns}, {rows, columns}};
    std::vector<int64_t> publish, fetch, fetch_host;
    for (int i = 0; i < rounds; ++i) {
      publish.push_back(Ask({Command::kPublish}).call_ns);
      const auto version = member->Newer(static_cast<uint64_t>(i), kLong);
      MustWork(version.status());
      int64_t begin_ns = NowNs();
      MustWork(member->Fetch(*version, {{"w", box, on_host, {0, {pitch, 1}}}}, kLong));
      fetch_host.push_back(NowNs() - begin_ns);
      begin_ns = NowNs();
      MustWork(
          member->Fetch(*version, {{"w", box, into, {0, {pitch, 1}}, 0, end_->Context()}}, kLong));
      fetch.push_back(NowNs() - begin_ns);
    }
    const PinnedMemory check = end_->Pinned(into.bytes());
    end_->Copy(into, check.data(), false);
    const auto* const got = static_cast<const uint16_t*>(check.data());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const float value = FloatAt(static_cast<uint64_t>((columns + column) * (rows + 16) + row));
        uint16_t wanted;
        Cast(DType::kFloat, &value, DType::kBfloat16, &wanted, 1);
        TRYST_CHECK(got[row * pitch + column] == wanted) << "row " << row << ", column " << column;
      }
    }
    const uint64_t read = static_cast<uint64_t>(rows * kColumns) * 4;
    const uint64_t wrote = static_cast<uint64_t>(rows * columns) * 2;
    Print("publish_transposed_floats_as_bfloat16", 0, read,
          static_cast<double>(read) / Median(publish), "GB/s");
    Print("fetch_box_into_a_gpu", 0, wrote, static_cast<double>(wrote) / Median(fetch), "GB/s");
    Print("fetch_box_into_the_host", 0, wrote, static_cast<double>(wrote) / Median(fetch_host),
          "GB/s");
  }

  const Options& options_;
  const int talk_;
  uint64_t incarnation_ = 0;
  std::unique_ptr<End> end_;
  int64_t step_ = 0;
};

// Why there is nothing to measure; empty: nothing is missing. In a process of its own, as a child
// of one that has used CUDA cannot use it.
int Missing(const Options& options) {
  const pid_t child = fork();
  if (child != 0) {
    int status = 0;
    TRYST_CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
  }
  const auto driver = CudaDriver::Load(options.cuda);
  const auto devices =
      driver.ok() ? (*driver)->Devices() : absl::StatusOr<std::vector<GpuDevice>>(driver.status());
  const int most = *std::max_element(options.gpus.begin(), options.gpus.end());
  const bool missing = !devices.ok() || static_cast<int>(devices->size()) <= most;
  if (missing) printf("skipped: %s\n", devices.status().ToString().c_str());
  fflush(stdout);
  _exit(missing ? 1 : 0);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&arg](absl::string_view name) -> const char* {
      return arg.compare(0, name.size(), name.data(), name.size()) == 0 ? arg.c_str() + name.size()
                                                                        : nullptr;
    };
    if (const char* cuda = value("--cuda=")) {
      options.cuda = cuda;
    } else if (const char* gpus = value("--gpus=")) {
      TRYST_CHECK(sscanf(gpus, "%d,%d", &options.gpus[0], &options.gpus[1]) == 2);
    } else if (const char* protocol = value("--protocol=")) {
      options.protocol = protocol;
    } else if (const char* shm = value("--shm=")) {
      options.shm = shm;
    } else if (arg == "--staged") {
      options.staged = true;
    } else if (arg == "--quick") {
      options.quick = true;
    } else {
      fprintf(stderr, "there is no flag %s\n", arg.c_str());
      return 2;
    }
  }
  if (Missing(options) != 0) return 0;
  int talk[2];
  TRYST_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, talk) == 0);
  const pid_t child = fork();
  TRYST_CHECK(child >= 0);
  if (child == 0) {
    close(talk[1]);
    Producer(options, talk[0]).Run();
    _exit(0);
  }
  close(talk[0]);
  Consumer(options, talk[1]).Run();
  int status = 0;
  TRYST_CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
