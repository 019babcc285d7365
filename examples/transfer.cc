// A producer and a consumer, two processes on this machine. Prints which path the tensors take and
// why, and how fast they are, and checks that they arrive unchanged. Takes every setting of a
// server, such as --protocol=grpc or --nic=ibv.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "examples/child_process.h"
#include "examples/loopback.h"
#include "examples/pair.h"

namespace tryst {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr int kPatterns = 4;  // Different tensors of one size, used in turn.

struct Size {
  const char* name;
  TensorShape shape;
  int single;  // The number of fetches one after another.
  int batches;
  int batch;  // The number of fetches at once.
};
const Size kSizes[] = {
    {"4 B", TensorShape({1}), 1000, 50, 64},
    {"64 KiB", TensorShape({128, 128}), 500, 25, 32},
    {"16 MiB", TensorShape({2048, 2048}), 16, 4, 8},
};
// Steps count from 1: one for each size, and one for tensors that are not arrays of numbers.
constexpr int64_t kOddStep = std::size(kSizes) + 1;
const char* const kWords[] = {"a", "rendezvous", "", "of words"};

std::vector<Tensor> Patterns(const TensorShape& shape) {
  std::vector<Tensor> patterns;
  uint32_t word = static_cast<uint32_t>(shape.elements());
  for (int i = 0; i < kPatterns; ++i) {
    patterns.push_back(*Tensor::Allocate(DType::kInt32, shape));
    uint32_t* words = static_cast<uint32_t*>(patterns.back().mutable_data());
    for (int64_t j = 0; j < shape.elements(); ++j) words[j] = word = word * 1664525 + 1013904223;
  }
  return patterns;
}

bool Same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// ---- Producer ----

absl::Status SendSize(Server* server, const std::string& consumer, int64_t step, const Size& size) {
  auto rendezvous = server->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  const std::vector<Tensor> patterns = Patterns(size.shape);
  const int count = size.single + size.batches * size.batch;
  for (int i = 0; i < count; ++i) {
    absl::Status sent =
        (*rendezvous)
            ->Send(LoopbackKey(server->worker(), server->incarnation(), consumer, "x", i), {},
                   patterns[i % kPatterns], /*is_dead=*/false);
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

absl::Status SendAll(Server* server, const std::string& consumer) {
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    absl::Status sent = SendSize(server, consumer, static_cast<int64_t>(i) + 1, kSizes[i]);
    if (!sent.ok()) return sent;
  }
  auto rendezvous = server->steps()->StartStep(kOddStep);
  if (!rendezvous.ok()) return rendezvous.status();
  auto words = Tensor::FromStrings({std::begin(kWords), std::end(kWords)}, TensorShape({2, 2}));
  if (!words.ok()) return words.status();
  const auto key = [&](const char* edge) {
    return LoopbackKey(server->worker(), server->incarnation(), consumer, edge, 0);
  };
  absl::Status sent = (*rendezvous)->Send(key("words"), {}, *words, /*is_dead=*/false);
  if (!sent.ok()) return sent;
  return (*rendezvous)->Send(key("nothing"), {}, Tensor(), /*is_dead=*/true);
}

absl::Status Produce(Server* server) {
  absl::Status sent = SendAll(server, WorkerName("consumer", 0));
  if (!sent.ok()) return sent;
  InputEnds(absl::InfiniteDuration());
  return absl::OkStatus();
}

// ---- Consumer ----

struct Producer {
  Server* server;
  std::string worker;
  uint64_t incarnation;

  TensorKey Key(const char* edge, int iter) const {
    return LoopbackKey(worker, incarnation, server->worker(), edge, iter);
  }
};

// Fetches one after another: measures one fetch, from the request to the tensor.
absl::Status TimeSingles(const Producer& producer, const Size& size, Rendezvous* rendezvous,
                         const std::vector<Tensor>& patterns, std::vector<double>* taken_us) {
  auto into = Tensor::Allocate(DType::kInt32, size.shape);
  if (!into.ok()) return into.status();
  RecvArgs args;
  args.destination = *into;  // The producer's NIC writes into our own memory.
  for (int i = 0; i < size.single; ++i) {
    const TensorKey key = producer.Key("x", i);
    const absl::Time start = absl::Now();
    auto got = rendezvous->Recv(key, args, kPatience);
    taken_us->push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    if (!got.ok()) return got.status();
    if (!Same(got->tensor, patterns[i % kPatterns])) {
      return absl::DataLossError(absl::StrCat(key.text(), " came differently"));
    }
  }
  std::sort(taken_us->begin(), taken_us->end());
  return absl::OkStatus();
}

// Fetches many at once: measures what the path carries. The clock stops while the bytes are
// compared.
absl::Status TimeBatches(const Producer& producer, const Size& size, Rendezvous* rendezvous,
                         const std::vector<Tensor>& patterns, absl::Duration* taken) {
  int iter = size.single;
  for (int batch = 0; batch < size.batches; ++batch) {
    std::vector<TensorKey> keys;
    for (int i = 0; i < size.batch; ++i) keys.push_back(producer.Key("x", iter + i));
    absl::Notification landed;
    absl::Status status;
    std::vector<Received> results;
    const absl::Time start = absl::Now();
    rendezvous->RecvManyAsync(keys, {}, [&](absl::Status first, absl::Span<Received> all) {
      status = std::move(first);
      for (Received& one : all) results.push_back(std::move(one));
      landed.Notify();
    });
    landed.WaitForNotification();
    *taken += absl::Now() - start;
    if (!status.ok()) return status;
    for (const Received& one : results) {
      if (!Same(one.tensor, patterns[iter++ % kPatterns])) {
        return absl::DataLossError(absl::StrCat("one of ", size.name, " came differently"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveSize(const Producer& producer, int64_t step, const Size& size) {
  auto rendezvous = producer.server->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  const std::vector<Tensor> patterns = Patterns(size.shape);
  std::vector<double> taken_us;
  absl::Status status = TimeSingles(producer, size, rendezvous->get(), patterns, &taken_us);
  if (!status.ok()) return status;
  absl::Duration taken;
  status = TimeBatches(producer, size, rendezvous->get(), patterns, &taken);
  if (!status.ok()) return status;
  const double tensors = size.batches * size.batch;
  const double seconds = absl::ToDoubleSeconds(taken);
  const double mib = tensors * static_cast<double>(patterns[0].bytes()) / (1 << 20);
  std::printf("%8s  %9.0f  %9.0f  %8d  %11.0f  %9.1f  %d, all equal\n", size.name,
              taken_us[taken_us.size() / 2], taken_us[taken_us.size() * 99 / 100], size.batch,
              tensors / seconds, mib / seconds, size.single + size.batches * size.batch);
  return absl::OkStatus();
}

absl::Status ReceiveOdd(const Producer& producer) {
  auto rendezvous = producer.server->steps()->StartStep(kOddStep);
  if (!rendezvous.ok()) return rendezvous.status();
  auto words = (*rendezvous)->Recv(producer.Key("words", 0), {}, kPatience);
  if (!words.ok()) return words.status();
  if (words->tensor.dtype() != DType::kString || words->tensor.shape() != TensorShape({2, 2}) ||
      !std::equal(words->tensor.strings().begin(), words->tensor.strings().end(),
                  std::begin(kWords))) {
    return absl::DataLossError("the words came differently");
  }
  auto nothing = (*rendezvous)->Recv(producer.Key("nothing", 0), {}, kPatience);
  if (!nothing.ok()) return nothing.status();
  if (!nothing->is_dead) return absl::DataLossError("what was sent dead came alive");
  std::printf("   words  4 strings, equal; and a dead tensor came dead\n");
  return absl::OkStatus();
}

absl::Status Consume(Server* server) {
  Producer producer{server, WorkerName("producer", 0), 0};
  auto heard = server->calls()->Ping(producer.worker, kPatience);
  if (!heard.ok()) return heard.status();
  producer.incarnation = heard->self.incarnation;
  // The odd tensors come first, because the very first fetch also chooses the path.
  absl::Status status = ReceiveOdd(producer);
  if (!status.ok()) return status;
  std::printf("%s\n", ExplainPath(server, producer.worker).c_str());
  std::printf("%8s  %9s  %9s  %8s  %11s  %9s  %s\n", "tensor", "median us", "p99 us", "at once",
              "tensors/s", "MiB/s", "compared");
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    status = ReceiveSize(producer, static_cast<int64_t>(i) + 1, kSizes[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPair({argv + 1, argv + argc}, {"producer", tryst::Produce},
                        {"consumer", tryst::Consume});
}
