// A worker under load, for tests. With each peer it keeps two streams of tensors going, one in each
// direction, in order, and checks every byte that it receives.
//
//   load_worker [trystd's flags] --peers=WORKER,WORKER [--largest=ELEMENTS] [--pause=2ms]
//       [--longest=20s] [--history=FILE]
//
// A stream lasts as long as both of its workers live; when a peer comes back with another
// incarnation, a new one begins. Prints "got PEER INCARNATION COUNT" now and then. SIGTERM ends it,
// with exit code 0 when nothing was wrong. Wrong are: bytes that were not sent, a tensor that does
// not come, and a stream that ends although neither worker was restarted.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "server/process/lean_heap.h"
#include "server/process/stop_signals.h"
#include "server/server.h"
#include "server/status/insight.h"
#include "tests/process/history/history_file.h"
#include "tests/process/history/kept_traces.h"

namespace tryst {
namespace {

// A job uses the same keys in every step. If each key were new, every connection would fill up with
// the keys that it remembers.
constexpr uint64_t kKeys = 211;
constexpr uint64_t kWindow = 4;  // Tensors sent before the peer says that they have arrived.

struct Load {
  int64_t largest = 300'000;  // Elements of a tensor.
  absl::Duration pause = absl::Milliseconds(2);
  absl::Duration longest = absl::Seconds(20);  // A receive that takes longer hangs.
  std::string history;  // A file for what this life sees (tests/process/history).
};

// A process that was stopped may miss a deadline by this much.
constexpr absl::Duration kLate = absl::Seconds(10);

// Elements, in turn: empty, inside a message, just larger than that, in a landing, larger than a
// landing, large.
constexpr int64_t kSizes[] = {0, 1, 500, 2100, 30'000, 80'000, 300'000};

uint32_t ElementAt(uint64_t stream, uint64_t round, int64_t i) {
  uint64_t x = stream ^ (round * 0x9e3779b97f4a7c15) ^ static_cast<uint64_t>(i);
  x *= 0xbf58476d1ce4e5b9;
  return static_cast<uint32_t>(x >> 32);
}

int64_t SizeOf(uint64_t round, int64_t largest) {
  return std::min(kSizes[round % (sizeof(kSizes) / sizeof(kSizes[0]))], largest);
}

Tensor Make(uint64_t stream, uint64_t round, int64_t size) {
  Tensor tensor = *Tensor::Allocate(DType::kUint32, TensorShape({size}));
  auto* elements = static_cast<uint32_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < size; ++i) elements[i] = ElementAt(stream, round, i);
  return tensor;
}

bool IsRight(const Tensor& tensor, uint64_t stream, uint64_t round, int64_t size) {
  if (tensor.dtype() != DType::kUint32 || tensor.shape() != TensorShape({size})) return false;
  const auto* elements = tensor.data_as<uint32_t>();
  for (int64_t i = 0; i < size; ++i) {
    if (elements[i] != ElementAt(stream, round, i)) return false;
  }
  return true;
}

// The stream of two incarnations: a step of its own on both workers.
uint64_t StreamOf(uint64_t producer, uint64_t consumer) {
  uint64_t x = producer * 0x9e3779b97f4a7c15 + consumer;
  x ^= x >> 29;
  return (x * 0xbf58476d1ce4e5b9) >> 2 | 1;
}

class LoadWorker {
 public:
  LoadWorker(Server* server, const Load& load)
      : server_(server), load_(load), history_(load.history) {}

  void Start(const std::string& peer) {
    for (LifeFn live : {&LoadWorker::Produce, &LoadWorker::Consume}) {
      ++streams_;
      threads_.emplace_back([this, peer, live] {
        RepeatLives(peer, live);
        --streams_;
      });
    }
  }
  // Prints how many have arrived since the last report.
  void Report() {
    MutexLock lock(&mu_);
    for (auto& [peer, got] : got_) {
      if (got.count == got.told) continue;
      std::printf("got %s %llu %llu\n", peer.first.c_str(),
                  static_cast<unsigned long long>(peer.second),
                  static_cast<unsigned long long>(got.count));
      got.told = got.count;
    }
    std::fflush(stdout);
  }
  void Stop() {
    stop_ = true;
    // Repeats, because some may have just begun another step.
    while (streams_ > 0) {
      server_->steps()->CleanupAll(absl::AbortedError(server_->worker() + " stops"));
      absl::SleepFor(absl::Milliseconds(10));
    }
    for (std::thread& thread : threads_) thread.join();
  }
  int wrong() const { return wrong_; }

 private:
  struct Got {
    uint64_t count = 0;
    uint64_t told = 0;
  };
  using LifeFn = absl::Status (LoadWorker::*)(Rendezvous*, const std::string& peer,
                                              uint64_t incarnation);

  void Complain(const std::string& what) {
    if (stop_) return;
    ++wrong_;
    std::printf("wrong: %s\n", what.c_str());
    std::fflush(stdout);
  }

  void RepeatLives(const std::string& peer, LifeFn live) {
    uint64_t last = 0;
    absl::Status ended;
    absl::Time ended_at;
    while (!stop_) {
      const auto heard = server_->calls()->Ping(peer, absl::Seconds(1));
      if (!heard.ok()) continue;  // The peer is not up.
      const uint64_t incarnation = heard->self.incarnation;
      if (incarnation == last) {
        // The peer may be about to end.
        if (absl::Now() - ended_at < load_.longest) {
          absl::SleepFor(load_.pause);
          continue;
        }
        return Complain(
            absl::StrCat("the stream with ", peer, " ended without a restart: ", ended.ToString()));
      }
      last = incarnation;
      const bool produces = live == &LoadWorker::Produce;
      const uint64_t self = server_->incarnation();
      const auto step = static_cast<int64_t>(produces ? StreamOf(self, incarnation)
                                                      : StreamOf(incarnation, self));
      auto rendezvous = server_->steps()->StartStep(step);
      if (!rendezvous.ok()) return Complain(rendezvous.status().ToString());
      ended = (this->*live)(rendezvous->get(), peer, incarnation);
      ended_at = absl::Now();
      if (stop_) return;
      std::printf("ended %s %s\n", peer.c_str(), ended.ToString().c_str());
      server_->steps()->CleanupStep(step);
      if (!absl::IsAborted(ended) && !absl::IsUnavailable(ended)) {
        return Complain(absl::StrCat("with ", peer, ": ", ended.ToString()));
      }
    }
  }

  static TensorKey Key(const std::string& from, uint64_t incarnation, const std::string& to,
                       const char* edge, uint64_t round) {
    return TensorKeyPrefix::Make(from + "/device:CPU:0", incarnation, to + "/device:CPU:0", edge)
        ->At(0, round % kKeys);
  }

  static std::string HistoryKey(uint64_t stream, uint64_t round) {
    return absl::StrCat(stream, "/", round % kKeys);
  }

  absl::Status Produce(Rendezvous* step, const std::string& peer, uint64_t incarnation) {
    const std::string& self = server_->worker();
    const uint64_t stream = StreamOf(server_->incarnation(), incarnation);
    for (uint64_t round = 1; !stop_; ++round) {
      const TensorKey key = Key(self, server_->incarnation(), peer, "data", round);
      history_.Sent(HistoryKey(stream, round),
                    {0, static_cast<int64_t>(round), NextStamp(), NextStamp()});
      absl::Status sent =
          step->Send(key, {}, Make(stream, round, SizeOf(round, load_.largest)), false);
      if (!sent.ok()) return sent;
      if (round <= kWindow) continue;
      const auto ack =
          step->Recv(Key(peer, incarnation, self, "ack", round - kWindow), {}, load_.longest);
      if (!ack.ok()) return ack.status();
      absl::SleepFor(load_.pause);
    }
    return absl::OkStatus();
  }

  absl::Status Consume(Rendezvous* step, const std::string& peer, uint64_t incarnation) {
    const std::string& self = server_->worker();
    const uint64_t stream = StreamOf(incarnation, server_->incarnation());
    for (uint64_t round = 1; !stop_; ++round) {
      MadeReceive made;
      made.before = NextStamp();
      made.ends_by_ns = absl::ToUnixNanos(absl::Now() + load_.longest + kLate);
      const auto data = step->Recv(Key(peer, incarnation, self, "data", round), {}, load_.longest);
      made.after = NextStamp();
      made.calls = 1;
      made.code = data.status().code();
      made.ended_ns = absl::ToUnixNanos(absl::Now());
      made.number = static_cast<int64_t>(round);
      made.whole = data.ok() && IsRight(data->tensor, stream, round, SizeOf(round, load_.largest));
      // The producer's life is over, or ours.
      const bool over =
          stop_ || absl::IsAborted(data.status()) || absl::IsUnavailable(data.status());
      made.may_fail_with = over ? made.code : absl::StatusCode::kOk;
      made.fails_from_ns = 0;
      history_.Received(HistoryKey(stream, round), made);
      if (!data.ok()) return data.status();
      if (!made.whole) {
        return absl::InternalError(
            absl::StrCat("round ", round, " has other bytes than were sent"));
      }
      absl::Status sent = step->Send(Key(self, server_->incarnation(), peer, "ack", round), {},
                                     Make(stream, 0, 0), false);
      if (!sent.ok()) return sent;
      MutexLock lock(&mu_);
      got_[{peer, incarnation}].count = round;
    }
    return absl::OkStatus();
  }

  Server* const server_;
  const Load load_;
  HistoryFile history_;
  std::atomic<bool> stop_{false};
  std::atomic<int> streams_{0};
  std::atomic<int> wrong_{0};
  std::vector<std::thread> threads_;
  Mutex mu_;
  std::map<std::pair<std::string, uint64_t>, Got> got_ ABSL_GUARDED_BY(mu_);
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "load_worker: %s\n", status.ToString().c_str());
  return 1;
}

int Main(const std::vector<std::string>& args) {
  BlockStopSignals();
  const LeanHeap heap;
  std::vector<std::string> rest;
  std::map<std::string, std::string> own = {
      {"peers", ""}, {"largest", "300000"}, {"pause", "2ms"}, {"longest", "20s"}, {"history", ""}};
  auto config = LoadConfig(args, ProcessEnvironment(), &rest, &own);
  if (!config.ok()) return Fail(config.status());
  Load how;
  if (!absl::SimpleAtoi(own["largest"], &how.largest) ||
      !absl::ParseDuration(own["pause"], &how.pause) ||
      !absl::ParseDuration(own["longest"], &how.longest)) {
    return Fail(absl::InvalidArgumentError("--largest, --pause, --longest"));
  }
  how.history = own["history"];
  auto server = ServerBuilder().Build(*config);
  if (!server.ok()) return Fail(server.status());
  absl::Status started = (*server)->Start();
  if (!started.ok()) return Fail(started);
  std::printf("serving %s at %s incarnation %llu\n", (*server)->worker().c_str(),
              (*server)->address().c_str(),
              static_cast<unsigned long long>((*server)->incarnation()));
  std::fflush(stdout);
  std::atomic<bool> done{false};
  LoadWorker load(server->get(), how);
  for (absl::string_view peer : absl::StrSplit(own["peers"], ',')) load.Start(std::string(peer));
  std::thread reporter([&] {
    while (!done) {
      load.Report();
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  WaitForStopSignal();
  const std::string paths = (*server)->Explain("");
  load.Stop();
  done = true;
  reporter.join();
  TraceFilter all;
  all.most = std::numeric_limits<size_t>::max();
  KeepTraces(how.history, (*server)->insight()->Dump(all));
  absl::Status stopped = (*server)->Stop(absl::Seconds(2));
  if (!stopped.ok()) std::printf("stopped: %s\n", stopped.ToString().c_str());
  std::printf("%s\nwrong %d\n", paths.c_str(), load.wrong());
  return load.wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
