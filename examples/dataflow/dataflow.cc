// A oneTBB flow graph, cut in two. The front half makes and smooths signals in one process; the
// back half measures them in another. Where the edge was cut, one node sends and another receives.
// See docs/examples/dataflow.md.
//
//   front: source -> [window] -> make -> smooth -> send ~~> :back
//                       ^------ credit <~~~~~~~~~~~~~~~~~~~ :back
//   back:  receive -> measure -> order -> sum, which returns the credit
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/task_arena.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "examples/child_process.h"
#include "examples/loopback.h"
#include "examples/pair.h"

namespace tryst {
namespace {

namespace flow = oneapi::tbb::flow;

constexpr int kSignals = 400;
constexpr int kSamples = 32768;
constexpr int kWindow = 16;  // Signals between source and sum. It bounds the memory.
constexpr int64_t kStep = 1;
constexpr absl::Duration kPatience = absl::Seconds(20);

// ---- What the graph computes ----

using Signal = std::shared_ptr<std::vector<float>>;

Signal Make(int index) {
  auto signal = std::make_shared<std::vector<float>>(kSamples);
  uint32_t noise = static_cast<uint32_t>(index) * 2654435761u + 1;
  for (int i = 0; i < kSamples; ++i) {
    noise = noise * 1664525 + 1013904223;
    (*signal)[i] = std::sin(0.001f * static_cast<float>(i * (index % 7 + 1))) +
                   static_cast<float>(noise >> 16) / 65536.0f;
  }
  return signal;
}

Signal Smooth(const Signal& signal) {
  auto out = std::make_shared<std::vector<float>>(signal->size());
  float mean = 0;
  for (size_t i = 0; i < signal->size(); ++i) (*out)[i] = mean += 0.1f * ((*signal)[i] - mean);
  return out;
}

double Measure(const float* samples, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += samples[i] * samples[i];
  return sum;
}

// ---- How the runtime meets Tryst ----

// Callbacks run as tasks of TBB's arena, among the graph's own.
class ArenaExecutor final : public Executor {
 public:
  bool TryRun(Work* work) override {
    auto owned = std::make_shared<Work>(std::move(*work));
    arena_.enqueue([owned] { std::move (*owned)(); });
    return true;
  }
  void Run(Work work) override { (void)TryRun(&work); }

 private:
  oneapi::tbb::task_arena arena_{oneapi::tbb::task_arena::attach()};
};

// A signal as a tensor, without a copy.
Tensor Wrap(const Signal& signal) {
  return *Tensor::Adopt(signal->data(), DType::kFloat, {static_cast<int64_t>(signal->size())}, {},
                        [signal] {});
}

// Keeps the first failure of a half, and cancels the graph.
class Failure {
 public:
  explicit Failure(flow::graph* graph) : graph_(graph) {}
  void Note(const absl::Status& status) {
    if (status.ok()) return;
    {
      MutexLock lock(&mu_);
      if (status_.ok()) status_ = status;
    }
    graph_->cancel();
  }
  absl::Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  flow::graph* const graph_;
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// One cut edge of the graph, as one half sees it.
struct Edge {
  std::shared_ptr<Rendezvous> rendezvous;
  std::string producer;
  uint64_t incarnation;
  std::string consumer;
  const char* name;

  TensorKey At(int index) const {
    return LoopbackKey(producer, incarnation, consumer, name, static_cast<uint64_t>(index));
  }
};

struct Item {
  int index = 0;
  Tensor tensor;
};
using ReceiveNode = flow::async_node<int, Item>;

// The body of a node where an edge arrives: receives the tensor of each index. It holds no thread
// while it waits, and the graph knows that a message is still to come.
auto ReceiveBody(const Edge& edge, Executor* executor, Failure* failure) {
  return [edge, executor, failure](int index, ReceiveNode::gateway_type& gateway) {
    gateway.reserve_wait();
    RecvArgs args;
    args.executor = executor;
    edge.rendezvous->RecvAsync(edge.At(index), args,
                               [index, failure, &gateway](Received&& received) {
                                 failure->Note(received.status);
                                 if (received.status.ok())
                                   gateway.try_put({index, std::move(received.tensor)});
                                 gateway.release_wait();
                               });
  };
}

struct Cut {
  Edge signals;
  Edge credits;
};

absl::StatusOr<Cut> CutBetween(Server* server, bool front) {
  const std::string front_name = WorkerName("front", 0);
  const std::string back_name = WorkerName("back", 0);
  auto peer = server->calls()->Ping(front ? back_name : front_name, kPatience);
  if (!peer.ok()) return peer.status();
  auto rendezvous = server->steps()->StartStep(kStep);
  if (!rendezvous.ok()) return rendezvous.status();
  const uint64_t own = server->incarnation();
  const uint64_t other = peer->self.incarnation;
  return Cut{{*rendezvous, front_name, front ? own : other, back_name, "signals"},
             {*rendezvous, back_name, front ? other : own, front_name, "credits"}};
}

// ---- The two halves ----

absl::Status RunFront(Server* server) {
  auto cut = CutBetween(server, /*front=*/true);
  if (!cut.ok()) return cut.status();
  ArenaExecutor executor;
  flow::graph graph;
  Failure failure(&graph);
  int next = 0;
  flow::input_node<int> source(graph, [&next](oneapi::tbb::flow_control& control) {
    if (next == kSignals) control.stop();
    return next++;
  });
  flow::limiter_node<int> window(graph, kWindow);
  using Indexed = std::pair<int, Signal>;
  flow::function_node<int, Indexed> make(graph, flow::unlimited,
                                         [](int index) { return Indexed(index, Make(index)); });
  flow::function_node<Indexed, Indexed> smooth(graph, flow::unlimited, [](const Indexed& in) {
    return Indexed(in.first, Smooth(in.second));
  });
  flow::function_node<Indexed, int> send(graph, flow::unlimited, [&](const Indexed& in) {
    failure.Note(
        cut->signals.rendezvous->Send(cut->signals.At(in.first), {}, Wrap(in.second), false));
    return in.first;
  });
  ReceiveNode credit(graph, flow::unlimited, ReceiveBody(cut->credits, &executor, &failure));
  flow::function_node<Item, flow::continue_msg> spent(
      graph, flow::unlimited, [](const Item&) { return flow::continue_msg(); });
  flow::make_edge(source, window);
  flow::make_edge(window, make);
  flow::make_edge(make, smooth);
  flow::make_edge(smooth, send);
  flow::make_edge(send, credit);
  flow::make_edge(credit, spent);
  flow::make_edge(spent, window.decrementer());
  source.activate();
  graph.wait_for_all();
  return failure.status();
}

absl::Status RunBack(Server* server) {
  auto cut = CutBetween(server, /*front=*/false);
  if (!cut.ok()) return cut.status();
  ArenaExecutor executor;
  flow::graph graph;
  Failure failure(&graph);
  const absl::Time start = absl::Now();
  int next = 0;
  flow::input_node<int> source(graph, [&next](oneapi::tbb::flow_control& control) {
    if (next == kSignals) control.stop();
    return next++;
  });
  flow::limiter_node<int> window(graph, kWindow);
  ReceiveNode receive(graph, flow::unlimited, ReceiveBody(cut->signals, &executor, &failure));
  using Indexed = std::pair<size_t, double>;
  flow::function_node<Item, Indexed> measure(graph, flow::unlimited, [](const Item& in) {
    return Indexed(in.index, Measure(in.tensor.data_as<float>(), in.tensor.shape().elements()));
  });
  flow::sequencer_node<Indexed> order(graph, [](const Indexed& in) { return in.first; });
  double sum = 0;
  flow::function_node<Indexed, flow::continue_msg> add(graph, flow::serial, [&](const Indexed& in) {
    if (in.first == 0) std::printf("%s\n", ExplainPath(server, WorkerName("front", 0)).c_str());
    sum += in.second;
    failure.Note(cut->credits.rendezvous->Send(cut->credits.At(static_cast<int>(in.first)), {},
                                               Tensor(), /*is_dead=*/true));
    return flow::continue_msg();
  });
  flow::make_edge(source, window);
  flow::make_edge(window, receive);
  flow::make_edge(receive, measure);
  flow::make_edge(measure, order);
  flow::make_edge(order, add);
  flow::make_edge(add, window.decrementer());
  source.activate();
  graph.wait_for_all();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const absl::Status status = failure.status();
  if (!status.ok()) return status;

  double whole = 0;  // What one graph computes without cut and transport.
  for (int i = 0; i < kSignals; ++i) whole += Measure(Smooth(Make(i))->data(), kSamples);
  std::printf("%d signals, %.0f a second, %.1f MiB/s over the cut; sum %.17g, uncut %.17g\n",
              kSignals, kSignals / seconds, kSignals / seconds * kSamples * 4 / (1 << 20), sum,
              whole);
  InputEnds(absl::InfiniteDuration());
  return sum == whole ? absl::OkStatus() : absl::DataLossError("the sums differ");
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  // The back starts first. It stays until the front has all its credits.
  return tryst::RunPair({argv + 1, argv + argc}, {"back", tryst::RunBack},
                        {"front", tryst::RunFront});
}
