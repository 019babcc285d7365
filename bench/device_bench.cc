// Measures device tensors between two processes in one run: Tryst's ways, the bare copies that
// limit them, and NCCL's point-to-point calls. Prints JSON lines.
//
//   device_bench [--cuda=libcuda.so.1] [--way=ipc|staged] [--over=soft|shm] [--gpus=0,1] [--quick]
//                [--what=limits,latency,bandwidth,pieces,visible,views,chunks,counts,kill]
//                [--nccl=libnccl.so.2] [--standby_us=100] [--memory=plain|virtual] [--helpers=0]

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "bench/device_chunks.h"
#include "bench/device_counts.h"
#include "bench/device_pair.h"
#include "bench/nccl_calls.h"
#include "gpu/copier.h"
#include "gpu/gather.h"

namespace tryst {
namespace {

struct Options {
  std::string cuda = "libcuda.so.1";
  std::string way = "ipc";
  std::string what = "limits,latency,bandwidth";
  std::string nccl;
  std::vector<int> gpus = {0, 0};
  bool quick = false;
  uint32_t queue_pairs = 1;
  int64_t spin_us = 2000;
  std::string over = "soft";
  std::string memory = "plain";  // The kind of memory in which tensors lie.
  int helpers = 0;
  uint64_t chunk_bytes = 2 << 20;
  int64_t standby_us = DeviceEngineOptions().standby_us;
  // Set in the second process only.
  int hello_fd = -1;
  int talk_fd = -1;
};

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void Print(const std::string& figure, const std::string& system, uint64_t bytes, double value,
           const char* unit) {
  printf(
      "{\"figure\":\"%s\",\"system\":\"%s\",\"size_bytes\":%llu,\"value\":%.4g,"
      "\"unit\":\"%s\"}\n",
      figure.c_str(), system.c_str(), static_cast<unsigned long long>(bytes), value, unit);
  fflush(stdout);
}

void MustWork(const absl::Status& status) { TRYST_CHECK(status.ok()) << status; }

double Percentile(std::vector<int64_t> values, double part) {
  TRYST_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[static_cast<size_t>(part * (values.size() - 1))]);
}

// What one of the two processes does.
class Bench {
 public:
  Bench(const Options& options, int rank, int hello_fd, int talk_fd)
      : options_(options), rank_(rank), hello_fd_(hello_fd), talk_fd_(talk_fd) {
    auto driver = CudaDriver::Load(options.cuda);
    MustWork(driver.status());
    driver_ = *std::move(driver);
    auto gpu = Gpu::Open(driver_.get(), options.gpus[static_cast<size_t>(rank)]);
    MustWork(gpu.status());
    gpu_ = *std::move(gpu);
    stream_ = *gpu_->MakeStream();
  }

  void Run(pid_t peer) {
    peer_ = peer;
    if (Wants("limits") && rank_ == 0) Limits();
    if (Wants("pieces") && rank_ == 0) Pieces();
    Meet();
    if (!options_.nccl.empty()) Nccl();
    const bool pair = Wants("latency") || Wants("bandwidth") || Wants("visible") ||
                      Wants("views") || Wants("chunks") || Wants("counts") || Wants("kill");
    if (!pair) return;
    OpenEnd();
    if (Wants("visible")) Visible();
    if (Wants("views")) Views();
    if (Wants("chunks")) Chunks();
    if (Wants("counts")) Counts();
    if (Wants("latency")) Latency();
    if (Wants("bandwidth")) Bandwidth();
    Meet();
    if (rank_ == 0) fprintf(stderr, "%s", end_->Explain().c_str());
    if (Wants("kill")) Kill();
    Meet();
    end_.reset();
  }

 private:
  static constexpr int64_t kShortLeaseMs = 2000;

  bool Wants(const char* what) const {
    for (absl::string_view each : absl::StrSplit(options_.what, ',')) {
      if (each == what) return true;
    }
    return false;
  }

  // Returns when both processes have called it.
  void Meet() {
    if (peer_ < 0) return;  // It was killed.
    char mark = 'm';
    TRYST_CHECK(write(talk_fd_, &mark, 1) == 1);
    TRYST_CHECK(read(talk_fd_, &mark, 1) == 1);
  }

  std::string System() const {
    return absl::StrCat("tryst_device_", options_.way, "_", options_.over,
                        options_.memory == "plain" ? "" : "_" + options_.memory);
  }

  DeviceMemory NewMemory(uint64_t bytes) const {
    auto memory = options_.memory == "virtual" ? DeviceMemory::AllocateShareable(gpu_.get(), bytes)
                                               : DeviceMemory::Allocate(gpu_.get(), bytes);
    MustWork(memory.status());
    return *std::move(memory);
  }

  void OpenEnd() {
    DeviceEndOptions end;
    end.rank = rank_;
    end.hello_fd = hello_fd_;
    end.gpu = gpu_.get();
    end.queue_pairs = options_.queue_pairs;
    end.spin_us = options_.spin_us;
    end.shared_memory = options_.over == "shm";
    end.helpers = options_.helpers;
    end.proxy.engine.spin_us = options_.spin_us;
    end.proxy.source.seed = static_cast<uint64_t>(getpid());
    end.proxy.source.offer_ipc = options_.way == "ipc";
    end.proxy.source.lease_ms = Wants("kill") || Wants("views") ? kShortLeaseMs : 60'000;
    if (Wants("views")) end.proxy.fetcher.view_renewal_ms = kShortLeaseMs / 4;
    end.proxy.engine.standby_us = options_.standby_us;
    end.proxy.engine.slot_bytes = options_.chunk_bytes;
    end.proxy.source.chunk_bytes = options_.chunk_bytes;
    end_ = std::make_unique<DeviceEnd>(end);
    Meet();
  }

  Tensor OnDevice(const DeviceMemory& memory, uint64_t offset, uint64_t bytes) const {
    auto tensor = Tensor::Adopt(static_cast<char*>(memory.data()) + offset, DType::kUint8,
                                {static_cast<int64_t>(bytes)},
                                MemorySpace{MemorySpace::Kind::kDevice, gpu_->ordinal()}, nullptr);
    MustWork(tensor.status());
    return *tensor;
  }

  void Fill(const DeviceMemory& memory, uint64_t offset, uint64_t bytes, int value) {
    MustWork(gpu_->Use());
    TRYST_CHECK(gpu_->calls().cuMemsetD8Async(memory.address() + offset,
                                              static_cast<unsigned char>(value), bytes,
                                              stream_.get()) == cuda::kSuccess);
  }

  // Whether every byte of the memory is `value`, as a copy on our stream reads it.
  void CheckFilled(const DeviceMemory& memory, uint64_t bytes, int value) {
    auto host = PinnedMemory::Allocate(gpu_.get(), bytes);
    MustWork(host.status());
    Copy(AddressOf(host->data()), memory.address(), bytes);
    MustWork(gpu_->WaitFor(stream_.get()));
    const auto* at = static_cast<const uint8_t*>(host->data());
    for (uint64_t i = 0; i < bytes; ++i) TRYST_CHECK(at[i] == value) << "byte " << i << " is wrong";
  }

  void Copy(cuda::Address to, cuda::Address from, uint64_t bytes) {
    MustWork(gpu_->driver().Check("cuMemcpyAsync",
                                  gpu_->calls().cuMemcpyAsync(to, from, bytes, stream_.get())));
  }

  // The best of several rounds, in GB/s.
  double CopyRate(cuda::Address to, cuda::Address from, uint64_t bytes) {
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      const int64_t begin = NowNs();
      for (int i = 0; i < 4; ++i) Copy(to, from, bytes);
      MustWork(gpu_->WaitFor(stream_.get()));
      best =
          std::max(best, 4.0 * static_cast<double>(bytes) / static_cast<double>(NowNs() - begin));
    }
    return best;
  }

  double CopierRate(cuda::Address to, cuda::Address from, uint64_t bytes, int depth) {
    auto copier = *Copier::Create(gpu_.get());
    constexpr int kCopies = 12;
    double best = 0;
    for (int round = 0; round < 3; ++round) {
      int started = 0;
      int ended = 0;
      const int64_t begin = NowNs();
      while (ended < kCopies) {
        for (; started < kCopies && started < ended + depth; ++started) {
          copier->Start(Copier::Direction::kOnDevice, to, from, bytes, {},
                        [&ended](absl::Status status) {
                          MustWork(status);
                          ++ended;
                        });
          copier->Flush();
        }
        copier->Poll();
      }
      best = std::max(best,
                      static_cast<double>(bytes) * kCopies / static_cast<double>(NowNs() - begin));
    }
    return best;
  }

  double CopierLatency(Copier::Direction direction, cuda::Address to, cuda::Address from,
                       uint64_t bytes) {
    auto copier = *Copier::Create(gpu_.get());
    std::vector<int64_t> times;
    for (int i = 0; i < (options_.quick ? 50 : 2000); ++i) {
      bool ended = false;
      const int64_t begin = NowNs();
      copier->Start(direction, to, from, bytes, {}, [&ended](absl::Status status) {
        MustWork(status);
        ended = true;
      });
      copier->Flush();
      while (!ended) copier->Poll();
      times.push_back(NowNs() - begin);
    }
    return Percentile(times, 0.5) / 1000;
  }

  // ---- The machine's limits ----

  void Limits() {
    const uint64_t bytes = options_.quick ? 16 << 20 : 256 << 20;
    auto a = *DeviceMemory::Allocate(gpu_.get(), bytes);
    auto b = *DeviceMemory::Allocate(gpu_.get(), bytes);
    auto host = PinnedMemory::Allocate(gpu_.get(), bytes);
    auto shared = PinnedMemory::AllocateShared(gpu_.get(), bytes);
    MustWork(host.status());
    MustWork(shared.status());
    Print("copy_rate", "limit_on_device", bytes, CopyRate(b.address(), a.address(), bytes), "GB/s");
    Print("copy_rate", "limit_pinned_to_host", bytes,
          CopyRate(AddressOf(host->data()), a.address(), bytes), "GB/s");
    Print("copy_rate", "limit_pinned_to_device", bytes,
          CopyRate(a.address(), AddressOf(host->data()), bytes), "GB/s");
    Print("copy_rate", "limit_shared_to_host", bytes,
          CopyRate(AddressOf(shared->data()), a.address(), bytes), "GB/s");
    Print("copy_rate", "limit_shared_to_device", bytes,
          CopyRate(a.address(), AddressOf(shared->data()), bytes), "GB/s");
    for (uint64_t small : {8, 65'536}) {
      Print("copier_p50", "copier_to_host", small,
            CopierLatency(Copier::Direction::kToHost, AddressOf(host->data()), a.address(), small),
            "us");
    }
    if (options_.gpus[0] == options_.gpus[1]) return;
    auto peer = Gpu::Open(driver_.get(), options_.gpus[1]);
    MustWork(peer.status());
    MustWork(gpu_->EnablePeerAccess(**peer));
    {
      auto far = *DeviceMemory::Allocate(peer->get(), bytes);
      MustWork(gpu_->Use());
      Print("copy_rate", "limit_peer", bytes, CopyRate(a.address(), far.address(), bytes), "GB/s");
      // The copier makes one copy after the other, as in a transfer, and reports each end.
      for (int depth : {1, 4}) {
        Print("copy_rate", absl::StrCat("copier_peer_", depth), bytes,
              CopierRate(a.address(), far.address(), bytes, depth), "GB/s");
      }
      for (uint64_t small : {8, 65'536, 1 << 20}) {
        Print("copier_p50", "copier_peer", small,
              CopierLatency(Copier::Direction::kOnDevice, a.address(), far.address(), small), "us");
      }
    }
    MustWork(gpu_->Use());
  }

  // ---- Many small copies ----

  void Pieces() {
    PiecesOf(46'080, 0);  // 45 KiB, aligned to 512 bytes, as allocators align.
    PiecesOf(45'000, 8);  // Source and destination aligned differently.
  }

  void PiecesOf(uint64_t piece, uint64_t skew) {
    const uint64_t count = options_.quick ? 2000 : 110'000;
    auto from = *DeviceMemory::Allocate(gpu_.get(), count * piece + skew);
    auto into = *DeviceMemory::Allocate(gpu_.get(), count * piece);
    const double single = CopyRate(into.address(), from.address(), count * piece);
    auto copier = *Copier::Create(gpu_.get());
    std::vector<GatherPiece> pieces;
    for (uint64_t i = 0; i < count; ++i) {
      pieces.push_back(
          {into.address() + i * piece, from.address() + skew + (count - 1 - i) * piece, piece});
    }
    double best_ns = 1e18;
    double best_cpu_ns = 1e18;
    for (int round = 0; round < 6; ++round) {
      const int64_t begin = NowNs();
      const int64_t cpu = ThreadCpuNs();
      bool ok = false;
      copier->StartMany(pieces, [&ok](absl::Status status) { ok = status.ok(); });
      best_cpu_ns = std::min(best_cpu_ns, static_cast<double>(ThreadCpuNs() - cpu));
      while (!copier->idle()) copier->Poll();
      TRYST_CHECK(ok);
      best_ns = std::min(best_ns, static_cast<double>(NowNs() - begin));
    }
    Print("pieces_submit", "tryst_device_gather", piece, best_cpu_ns / 1e6, "ms");
    Print("pieces_rate", "tryst_device_gather", piece, static_cast<double>(count * piece) / best_ns,
          "GB/s");
    Print("pieces_rate", "limit_on_device", piece, single, "GB/s");
  }

  // ---- Tryst ----

  struct Waiter {
    std::atomic<bool> ended{false};
    absl::Status status;
  };

  void StartFetch(const TensorKey& key, const Tensor& into, Waiter* waiter,
                  GpuContext::Options options = GpuContext::Options()) {
    RecvArgs args;
    args.destination = into;
    args.device_context = end_->Context(stream_.get(), options);
    end_->Fetch(key, args, [waiter](Received&& received) {
      waiter->status = std::move(received.status);
      waiter->ended.store(true, std::memory_order_release);
    });
  }
  static void Spin(Waiter* waiter) {
    while (!waiter->ended.load(std::memory_order_acquire)) {
    }
    MustWork(waiter->status);
  }

  // The share of the copies since the last call that the standing kernel has made.
  double StandbyShare() {
    CopierCounters now;
    end_->RunOnPoller([&] { now = end_->proxy()->engine(gpu_->ordinal())->copier()->counters(); });
    const double share = static_cast<double>(now.by_standby - counted_.by_standby) /
                         std::max<double>(1, static_cast<double>(now.copies - counted_.copies));
    counted_ = now;
    return share;
  }

  // Measures half of a round trip.
  void Latency() {
    for (uint64_t bytes : {8, 1024, 65'536, 1 << 20}) {
      for (const char* how : {"", "_on_stream", "_is_there"}) {
        GpuContext::Options options;
        options.complete_on_stream = absl::StrContains(how, "stream");
        options.is_there = absl::StrContains(how, "there");
        const int rounds = options_.quick ? 50 : 2000;
        auto out = NewMemory(bytes);
        auto in = NewMemory(bytes);
        Fill(out, 0, bytes, rank_ + 1);
        MustWork(gpu_->WaitFor(stream_.get()));
        const Tensor outgoing = OnDevice(out, 0, bytes);
        const Tensor incoming = OnDevice(in, 0, bytes);
        const std::string edge = absl::StrCat("lat", bytes, how);
        std::vector<int64_t> times;
        std::vector<std::unique_ptr<Waiter>> waiters;
        std::vector<TensorKey> outgoing_keys;
        std::vector<TensorKey> incoming_keys;
        for (int i = 0; i < rounds; ++i) {
          waiters.push_back(std::make_unique<Waiter>());
          outgoing_keys.push_back(DeviceEnd::Key(rank_, edge, i));
          incoming_keys.push_back(DeviceEnd::Key(1 - rank_, edge, i));
        }
        // Received before it is sent, as in a step that begins with its receives.
        StartFetch(incoming_keys[0], incoming, waiters[0].get(), options);
        usleep(20'000);
        Meet();
        for (int i = 0; i < rounds; ++i) {
          const int64_t begin = NowNs();
          const auto send = [&] {
            MustWork(end_->Send(outgoing_keys[i], outgoing, stream_.get(), options));
          };
          if (rank_ == 0) send();
          Spin(waiters[i].get());
          if (rank_ == 1) send();
          if (i + 1 < rounds) {
            StartFetch(incoming_keys[i + 1], incoming, waiters[i + 1].get(), options);
          }
          times.push_back(NowNs() - begin);
        }
        CheckFilled(in, bytes, 2 - rank_);
        if (rank_ == 0) {
          const std::string system = absl::StrCat(System(), how);
          Print("copies_by_standby", system, bytes, StandbyShare(), "of all");
          Print("latency_p50", system, bytes, Percentile(times, 0.5) / 2000, "us");
          Print("latency_p99", system, bytes, Percentile(times, 0.99) / 2000, "us");
        }
        Meet();
      }
    }
  }

  void Bandwidth() {
    for (uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20}) {
      if (options_.quick && bytes > 16 << 20) continue;
      const int count = options_.quick ? 4 : bytes == 1 << 20 ? 400 : bytes == 16 << 20 ? 60 : 12;
      constexpr int kDepth = 4;
      auto memory = NewMemory(bytes * (rank_ == 0 ? kDepth : 1));
      Fill(memory, 0, memory.bytes(), rank_ == 0 ? 0xee : 0x3c);
      MustWork(gpu_->WaitFor(stream_.get()));
      const std::string edge = absl::StrCat("bulk", bytes);
      std::vector<std::unique_ptr<Waiter>> waiters;
      double best = 0;
      for (int round = 0; round < 3; ++round) {
        Meet();
        if (rank_ == 1) {
          for (int i = 0; i < count; ++i) {
            MustWork(end_->Send(DeviceEnd::Key(1, edge, round * count + i),
                                OnDevice(memory, 0, bytes), stream_.get()));
          }
          Meet();  // All tensors have been sent.
          Meet();
          continue;
        }
        waiters.clear();
        for (int i = 0; i < count; ++i) waiters.push_back(std::make_unique<Waiter>());
        Meet();
        const int64_t begin = NowNs();
        for (int i = 0; i < count + kDepth; ++i) {
          if (i >= kDepth) Spin(waiters[i - kDepth].get());
          if (i >= count) continue;
          StartFetch(DeviceEnd::Key(1, edge, round * count + i),
                     OnDevice(memory, (i % kDepth) * bytes, bytes), waiters[i].get());
        }
        const double rate =
            static_cast<double>(bytes) * count / static_cast<double>(NowNs() - begin);
        best = std::max(best, rate);
        Meet();
      }
      if (rank_ == 0) {
        CheckFilled(memory, bytes * kDepth, 0x3c);
        Print("bandwidth", System(), bytes, best, "GB/s");
      }
    }
  }

  // A kernel reads the destination right after the completion, and must find no old byte.
  void Visible() {
    VisibleOf(4096);
    VisibleOf(512 << 10);  // By several blocks, where a kernel stands by (--standby_us=1000).
  }

  void VisibleOf(uint64_t bytes) {
    const int rounds = options_.quick ? 200 : 100'000;
    constexpr int kRing = 8;
    auto out = NewMemory(bytes * kRing);
    auto in = NewMemory(bytes);
    auto seen = NewMemory(bytes);
    auto host = *PinnedMemory::Allocate(gpu_.get(), bytes);
    GatherList list;
    auto kernel = GatherKernel::Load(gpu_.get());
    MustWork(kernel.status());
    MustWork(list.Reserve(gpu_.get(), 1));
    list.Add({seen.address(), in.address(), bytes});
    const std::string edge = absl::StrCat("visible", bytes);
    Meet();
    for (int i = 0; i < rounds; ++i) {
      const int value = i % 251;
      if (rank_ == 1) {
        // It is filled and sent without waiting. The consumer's answer says that it was read.
        Fill(out, (i % kRing) * bytes, bytes, value);
        MustWork(end_->Send(DeviceEnd::Key(1, edge, i), OnDevice(out, (i % kRing) * bytes, bytes),
                            stream_.get()));
        if (i % kRing == kRing - 1) Meet();
        continue;
      }
      Fill(in, 0, bytes, 0xff);
      Waiter waiter;
      StartFetch(DeviceEnd::Key(1, edge, i), OnDevice(in, 0, bytes), &waiter);
      Spin(&waiter);
      MustWork((*kernel)->Launch(list, stream_.get()));
      Copy(AddressOf(host.data()), seen.address(), bytes);
      MustWork(gpu_->WaitFor(stream_.get()));
      const auto* at = static_cast<const uint8_t*>(host.data());
      TRYST_CHECK(at[0] == value && memcmp(at, at + 1, bytes - 1) == 0)
          << "round " << i << ": an old byte of " << bytes;
      if (i % kRing == kRing - 1) Meet();
    }
    if (rank_ != 0) return;
    Print("copies_by_standby", System(), bytes, StandbyShare(), "of all");
    Print("visible_rounds", System(), bytes, rounds, "count");
  }

  // By reference: the consumer reads the producer's memory, which stays valid while it holds the
  // view.
  void Views() {
    constexpr uint64_t kBytes = 64 << 10;
    constexpr int kCount = 8;
    const std::string edge = "view";
    auto memory = NewMemory(kBytes * kCount);
    std::atomic<int> released{0};
    if (rank_ == 1) {
      for (int i = 0; i < kCount; ++i) {
        Fill(memory, i * kBytes, kBytes, 10 + i);
        auto tensor = Tensor::Adopt(static_cast<char*>(memory.data()) + i * kBytes, DType::kUint8,
                                    {static_cast<int64_t>(kBytes)},
                                    MemorySpace{MemorySpace::Kind::kDevice, gpu_->ordinal()},
                                    [&released] { ++released; });
        MustWork(tensor.status());
        MustWork(end_->Send(DeviceEnd::Key(1, edge, i), *tensor, stream_.get()));
      }
      Meet();  // The consumer has read them.
      TRYST_CHECK(end_->TransfersKept() == kCount) << end_->TransfersKept();
      Meet();  // The consumer has held them for longer than a lease.
      TRYST_CHECK(end_->TransfersKept() == kCount && released == 0) << released.load();
      Meet();
      for (int left : {kCount / 2, 0}) {
        Meet();  // The consumer holds all of these views.
        const int64_t until = NowNs() + 5'000'000'000;
        while (released < kCount - left && NowNs() < until) usleep(1000);
        usleep(20'000);
        TRYST_CHECK(released == kCount - left) << released.load();
        Meet();
      }
      return;
    }
    std::vector<Tensor> views(kCount);
    for (int i = 0; i < kCount; ++i) {
      Waiter waiter;
      RecvArgs args;
      args.by_reference = true;
      args.device_context = end_->Context(stream_.get());
      end_->Fetch(DeviceEnd::Key(1, edge, i), args,
                  [&waiter, view = &views[i]](Received&& received) {
                    *view = received.tensor;
                    waiter.status = std::move(received.status);
                    waiter.ended.store(true, std::memory_order_release);
                  });
      Spin(&waiter);
    }
    Meet();
    CheckViews(views, memory);
    const int64_t held_until = NowNs() + kShortLeaseMs * 1'500'000;
    while (NowNs() < held_until) usleep(10'000);
    CheckViews(views, memory);
    Meet();
    Meet();
    for (int left : {kCount / 2, 0}) {
      views.resize(left);
      Meet();
      Meet();
    }
    uint64_t seen = 0;
    end_->RunOnPoller([&] { seen = end_->proxy()->fetcher_counters().views; });
    TRYST_CHECK(seen == kCount) << seen << " came by reference";
    Print("views_held", System(), kBytes, kCount, "count");
  }

  // Counts the driver calls of a small recurring pull on each side. Needs a driver that counts.
  void Counts() {
    constexpr int kPulls = 64;
    constexpr uint64_t kBytes = 8;
    auto memory = NewMemory(kBytes);
    std::map<std::string, uint64_t> before;
    for (int i = -8; i < kPulls; ++i) {
      if (i == 0) before = DeviceCounts(options_.cuda, end_.get(), gpu_->ordinal());
      const TensorKey key = DeviceEnd::Key(1, "counts", i + 8);
      Waiter waiter;
      if (rank_ == 0) StartFetch(key, OnDevice(memory, 0, kBytes), &waiter);
      Meet();
      if (rank_ == 1) MustWork(end_->Send(key, OnDevice(memory, 0, kBytes), stream_.get()));
      if (rank_ == 0) Spin(&waiter);
    }
    for (const auto& [name, count] : DeviceCounts(options_.cuda, end_.get(), gpu_->ordinal())) {
      if (count == before[name]) continue;
      Print(absl::StrCat("calls_a_pull_", rank_ == 0 ? "consumer_" : "producer_", name), System(),
            kBytes, static_cast<double>(count - before[name]) / kPulls, "count");
    }
    Meet();
  }

  // Tensors in memory that is mapped in chunks of 2 MiB, and of 20 MiB as in PyTorch.
  void Chunks() {
    DeviceChunks::Parts parts;
    parts.end = end_.get();
    parts.rank = rank_;
    parts.gpu = gpu_.get();
    parts.stream = stream_.get();
    parts.quick = options_.quick;
    parts.meet = [this] { Meet(); };
    parts.print = [this](const std::string& figure, uint64_t bytes, double value,
                         const char* unit) { Print(figure, System(), bytes, value, unit); };
    DeviceChunks chunks(parts);
    chunks.Rounds();
    for (const uint64_t bytes : {uint64_t{2} << 20, uint64_t{20} << 20}) {
      if (options_.quick && bytes > 2 << 20) continue;
      chunks.First(bytes);
      chunks.Bandwidth(bytes);
    }
    if (rank_ != 0) return;
    uint64_t in_chunks = 0;
    end_->RunOnPoller([&] { in_chunks = end_->proxy()->fetcher_counters().in_chunks; });
    TRYST_CHECK((in_chunks > 0) == (options_.way == "ipc")) << in_chunks << " came in chunks";
    Print("chunks_in_place", System(), 0, static_cast<double>(in_chunks), "count");
  }

  // Our kernel reads each tensor in place.
  void CheckViews(const std::vector<Tensor>& views, const DeviceMemory& scratch) {
    auto kernel = GatherKernel::Load(gpu_.get());
    MustWork(kernel.status());
    for (size_t i = 0; i < views.size(); ++i) {
      TRYST_CHECK(views[i].space().device_ordinal == gpu_->ordinal());
      GatherList list;
      MustWork(list.Reserve(gpu_.get(), 1));
      list.Add({scratch.address(), AddressOf(views[i].data()), views[i].bytes()});
      Fill(scratch, 0, views[i].bytes(), 0xee);
      MustWork((*kernel)->Launch(list, stream_.get()));
      CheckFilled(scratch, views[i].bytes(), 10 + static_cast<int>(i));
    }
  }

  // Kills the producer in the middle of transfers, and later a consumer.
  void Kill() {
    const uint64_t bytes = options_.quick ? 8 << 20 : 256 << 20;
    constexpr int kCount = 8;
    auto memory = NewMemory(bytes * (rank_ == 0 ? kCount : 1));
    Fill(memory, 0, memory.bytes(), 1);
    MustWork(gpu_->WaitFor(stream_.get()));
    for (int i = 0; i < kCount; ++i) {
      if (rank_ == 1) {
        MustWork(
            end_->Send(DeviceEnd::Key(1, "kill", i), OnDevice(memory, 0, bytes), stream_.get()));
      }
    }
    // The peer asks us for tensors, and dies before it takes them.
    if (rank_ == 0) {
      MustWork(
          end_->Send(DeviceEnd::Key(0, "orphan", 0), OnDevice(memory, 0, bytes), stream_.get()));
    }
    Meet();
    if (rank_ == 1) {
      Waiter waiter;
      StartFetch(DeviceEnd::Key(0, "orphan", 0), OnDevice(memory, 0, bytes), &waiter);
      for (;;) pause();
    }
    const SteadyClock clock;
    std::vector<std::unique_ptr<Waiter>> waiters;
    for (int i = 0; i < kCount; ++i) {
      waiters.push_back(std::make_unique<Waiter>());
      RecvArgs args;
      args.destination = OnDevice(memory, i * bytes, bytes);
      args.device_context = end_->Context(stream_.get());
      args.deadline = Deadline::After(clock, absl::Seconds(3));
      end_->Fetch(DeviceEnd::Key(1, "kill", i), args,
                  [waiter = waiters.back().get()](Received&& received) {
                    waiter->status = std::move(received.status);
                    waiter->ended.store(true, std::memory_order_release);
                  });
    }
    usleep(options_.way == "ipc" ? 500 : 20'000);
    kill(peer_, SIGKILL);
    peer_ = -1;
    const int64_t begin = NowNs();
    int ok = 0;
    for (auto& waiter : waiters) {
      while (!waiter->ended.load(std::memory_order_acquire)) usleep(1000);
      ok += waiter->status.ok();
      if (!waiter->status.ok()) fprintf(stderr, "%s\n", waiter->status.ToString().c_str());
    }
    Print("kill_all_ended_after", System(), bytes, static_cast<double>(NowNs() - begin) / 1e6,
          "ms");
    Print("kill_ended_well", System(), bytes, ok, "count");
    while (end_->TransfersKept() > 0) usleep(10'000);
    Print("kill_orphans_released_after", System(), bytes,
          static_cast<double>(NowNs() - begin) / 1e6, "ms");
  }

  // ---- NCCL ----

  void Nccl() {
    auto calls = NcclCalls::Load(options_.nccl);
    MustWork(calls.status());
    NcclCalls::UniqueId id{};
    if (rank_ == 0) {
      TRYST_CHECK(calls->ncclGetUniqueId(&id) == 0);
      TRYST_CHECK(write(talk_fd_, &id, sizeof(id)) == sizeof(id));
    } else {
      TRYST_CHECK(recv(talk_fd_, &id, sizeof(id), MSG_WAITALL) == sizeof(id));
    }
    MustWork(gpu_->Use());
    NcclCalls::Communicator communicator = nullptr;
    TRYST_CHECK(calls->ncclCommInitRank(&communicator, 2, id, rank_) == 0);
    int version = 0;
    calls->ncclGetVersion(&version);
    const char* name = getenv("TRYST_NCCL_NAME");
    const std::string system = name != nullptr ? name : "nccl";
    if (rank_ == 0) fprintf(stderr, "NCCL %d\n", version);
    const int peer = 1 - rank_;
    const auto send = [&](const DeviceMemory& memory, uint64_t bytes) {
      TRYST_CHECK(calls->ncclSend(memory.data(), bytes, NcclCalls::kInt8, peer, communicator,
                                  stream_.get()) == 0);
    };
    const auto receive = [&](const DeviceMemory& memory, uint64_t bytes) {
      TRYST_CHECK(calls->ncclRecv(memory.data(), bytes, NcclCalls::kInt8, peer, communicator,
                                  stream_.get()) == 0);
    };
    for (uint64_t bytes : {8, 1024, 65'536, 1 << 20}) {
      auto memory = *DeviceMemory::Allocate(gpu_.get(), bytes);
      std::vector<int64_t> times;
      for (int i = 0; i < (options_.quick ? 50 : 2000); ++i) {
        const int64_t begin = NowNs();
        if (rank_ == 0) send(memory, bytes);
        receive(memory, bytes);
        MustWork(gpu_->WaitFor(stream_.get()));
        if (rank_ == 1) {
          send(memory, bytes);
          MustWork(gpu_->WaitFor(stream_.get()));
        }
        times.push_back(NowNs() - begin);
      }
      if (rank_ == 0) {
        Print("latency_p50", system, bytes, Percentile(times, 0.5) / 2000, "us");
        Print("latency_p99", system, bytes, Percentile(times, 0.99) / 2000, "us");
      }
    }
    for (uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20}) {
      auto memory = *DeviceMemory::Allocate(gpu_.get(), bytes);
      const int count = bytes == 1 << 20 ? 400 : bytes == 16 << 20 ? 60 : 12;
      double best = 0;
      for (int round = 0; round < 3; ++round) {
        Meet();
        const int64_t begin = NowNs();
        for (int i = 0; i < count; ++i) rank_ == 0 ? receive(memory, bytes) : send(memory, bytes);
        MustWork(gpu_->WaitFor(stream_.get()));
        best = std::max(best,
                        static_cast<double>(bytes) * count / static_cast<double>(NowNs() - begin));
      }
      if (rank_ == 0) Print("bandwidth", system, bytes, best, "GB/s");
    }
    calls->ncclCommDestroy(communicator);
    Meet();
  }

  const Options options_;
  const int rank_;
  const int hello_fd_;
  const int talk_fd_;
  pid_t peer_ = 0;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  GpuStream stream_;
  std::unique_ptr<DeviceEnd> end_;
  CopierCounters counted_;
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> parts = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = parts.size() > 1 ? parts[1] : "";
    bool ok = true;
    if (parts[0] == "--cuda") {
      options->cuda = value;
    } else if (parts[0] == "--way") {
      options->way = value;
      ok = value == "ipc" || value == "staged";
    } else if (parts[0] == "--what") {
      options->what = value;
    } else if (parts[0] == "--nccl") {
      options->nccl = value;
    } else if (parts[0] == "--quick") {
      options->quick = true;
    } else if (parts[0] == "--queue_pairs") {
      ok = absl::SimpleAtoi(value, &options->queue_pairs);
    } else if (parts[0] == "--over") {
      options->over = value;
      ok = value == "soft" || value == "shm";
    } else if (parts[0] == "--memory") {
      options->memory = value;
      ok = value == "plain" || value == "virtual";
    } else if (parts[0] == "--helpers") {
      ok = absl::SimpleAtoi(value, &options->helpers);
    } else if (parts[0] == "--spin_us") {
      ok = absl::SimpleAtoi(value, &options->spin_us);
    } else if (parts[0] == "--chunk_bytes") {
      ok = absl::SimpleAtoi(value, &options->chunk_bytes);
    } else if (parts[0] == "--standby_us") {
      ok = absl::SimpleAtoi(value, &options->standby_us);
    } else if (parts[0] == "--gpus") {
      const std::vector<std::string> two = absl::StrSplit(value, ',');
      ok = two.size() == 2 && absl::SimpleAtoi(two[0], &options->gpus[0]) &&
           absl::SimpleAtoi(two[1], &options->gpus[1]);
    } else if (parts[0] == "--hello_fd") {
      ok = absl::SimpleAtoi(value, &options->hello_fd);
    } else if (parts[0] == "--talk_fd") {
      ok = absl::SimpleAtoi(value, &options->talk_fd);
    } else {
      ok = false;
    }
    if (!ok) {
      fprintf(stderr, "%s? See the head of bench/device_bench.cc\n", argv[i]);
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return 2;
  if (options.talk_fd >= 0) {
    Bench(options, 1, options.hello_fd, options.talk_fd).Run(getppid());
    return 0;
  }
  int hello[2];
  int talk[2];
  TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, hello) == 0);
  TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, talk) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(hello[0]);
    close(talk[0]);
    const std::string hello_fd = absl::StrCat("--hello_fd=", hello[1]);
    const std::string talk_fd = absl::StrCat("--talk_fd=", talk[1]);
    std::vector<char*> arguments(argv, argv + argc);
    arguments.push_back(const_cast<char*>(hello_fd.c_str()));
    arguments.push_back(const_cast<char*>(talk_fd.c_str()));
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    _exit(9);
  }
  close(hello[1]);
  close(talk[1]);
  Bench(options, 0, hello[0], talk[0]).Run(child);
  int status = 0;
  waitpid(child, &status, 0);
  const bool killed =
      WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && absl::StrContains(options.what, "kill");
  return status == 0 || killed ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
