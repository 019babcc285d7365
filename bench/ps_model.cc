#include "bench/ps_model.h"

#include <algorithm>
#include <queue>

namespace tryst {
namespace {

// A processor or a wire, which takes one thing at a time.
struct Resource {
  int64_t free_ns = 0;
  int64_t busy_ns = 0;
  // Returns the time at which the work begins.
  int64_t Take(int64_t at_ns, int64_t for_ns) {
    const int64_t begin_ns = std::max(free_ns, at_ns);
    free_ns = begin_ns + for_ns;
    busy_ns += for_ns;
    return begin_ns;
  }
};

struct Node {
  explicit Node(int count) : processors(static_cast<size_t>(count)) {}
  Resource* NextProcessor() {
    return &*std::min_element(
        processors.begin(), processors.end(),
        [](const Resource& a, const Resource& b) { return a.free_ns < b.free_ns; });
  }
  std::vector<Resource> processors;
  Resource sending, receiving;
};

enum Stage : uint8_t { kAsk, kRequestOut, kRequestIn, kAnswer, kDataOut, kDataIn, kLand };

struct Event {
  int64_t at_ns;
  uint64_t order;
  int32_t worker;
  int32_t group;  // The index of its group of variables.
  bool push;
  Stage stage;
  bool operator>(const Event& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
  }
};

// What travels in one message.
struct Group {
  int server = 0;
  uint64_t bytes = 0;
  int64_t tensors = 0;
};

std::vector<Group> Groups(const PsJob& job) {
  std::vector<Group> groups;
  if (job.fused) groups.resize(std::min<size_t>(job.servers, job.variable_bytes.size()));
  for (size_t i = 0; i < job.variable_bytes.size(); ++i) {
    const int server = static_cast<int>(i % static_cast<size_t>(job.servers));
    if (!job.fused) groups.emplace_back();
    Group& group = job.fused ? groups[server] : groups.back();
    group.server = server;
    group.bytes += job.variable_bytes[i];
    ++group.tensors;
  }
  return groups;
}

class Model {
 public:
  Model(const PsJob& job, const PsCosts& costs)
      : job_(job),
        costs_(costs),
        groups_(Groups(job)),
        workers_(job.workers, Node(1)),
        servers_(job.servers, Node(costs.server_processors)),
        left_(job.workers),
        step_(job.workers) {}

  PsPrediction Run() {
    for (int worker = 0; worker < job_.workers; ++worker) Begin(worker, false, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ns_ = event.at_ns;
      ++prediction_.events;
      Handle(event);
    }
    Report();
    return prediction_;
  }

 private:
  void Add(int64_t at_ns, Event event, Stage stage) {
    event.at_ns = at_ns;
    event.order = next_order_++;
    event.stage = stage;
    events_.push(event);
  }
  void Begin(int worker, bool push, int64_t at_ns) {
    left_[worker] = static_cast<int>(groups_.size());
    for (int i = 0; i < left_[worker]; ++i) {
      // Each worker begins with another server; otherwise all would ask the same one first.
      const int group = static_cast<int>((static_cast<size_t>(worker) + i) % groups_.size());
      Add(at_ns, {0, 0, worker, group, push, kAsk}, push && job_.standing ? kAnswer : kAsk);
    }
  }
  int64_t Overhead(int64_t message_ns, const Group& group) const {
    return message_ns + group.tensors * costs_.tensor_ns;
  }
  void Handle(const Event& event) {
    const Group& group = groups_[event.group];
    Node& worker = workers_[event.worker];
    Node& server = servers_[group.server];
    Node& consumer = event.push ? server : worker;
    Node& producer = event.push ? worker : server;
    switch (event.stage) {
      case kAsk:
        return Compute(&consumer, Overhead(costs_.ask_ns, group), event, kRequestOut);
      case kRequestOut:
        return Send(&consumer, costs_.request_bytes, event, kRequestIn);
      case kRequestIn:
        return Receive(&producer, costs_.request_bytes, event, kAnswer);
      case kAnswer:
        return Compute(&producer, Overhead(costs_.answer_ns, group), event, kDataOut);
      case kDataOut:
        return Send(&producer, group.bytes, event, kDataIn);
      case kDataIn:
        return Receive(&consumer, group.bytes, event, kLand);
      case kLand: {
        Resource* processor = consumer.NextProcessor();
        const int64_t for_ns = Overhead(costs_.land_ns, group);
        return Landed(event, processor->Take(now_ns_, for_ns) + for_ns);
      }
    }
  }
  void Compute(Node* node, int64_t for_ns, const Event& event, Stage next) {
    Add(node->NextProcessor()->Take(now_ns_, for_ns) + for_ns, event, next);
  }
  // The first byte arrives the link's latency after the sender's wire was free for it. The last
  // arrives when the slower of the two wires has carried all bytes.
  void Send(Node* node, uint64_t bytes, const Event& event, Stage next) {
    Add(node->sending.Take(now_ns_, WireNs(costs_.link, bytes)) + costs_.link.latency_ns, event,
        next);
  }
  void Receive(Node* node, uint64_t bytes, const Event& event, Stage next) {
    const int64_t for_ns = WireNs(costs_.link, bytes);
    Add(node->receiving.Take(now_ns_, for_ns) + for_ns, event, next);
  }
  void Landed(const Event& event, int64_t at_ns) {
    const int worker = event.worker;
    last_ns_ = std::max(last_ns_, at_ns);
    if (--left_[worker] > 0) return;
    if (!event.push) return Begin(worker, true, at_ns);
    if (++step_[worker] < job_.steps) Begin(worker, false, at_ns);
  }
  void Report() {
    prediction_.step_ms = static_cast<double>(last_ns_) * 1e-6 / job_.steps;
    const double all_ns = static_cast<double>(last_ns_) * job_.servers;
    for (const Node& server : servers_) {
      for (const Resource& processor : server.processors) {
        prediction_.processors_busy +=
            static_cast<double>(processor.busy_ns) / all_ns / costs_.server_processors;
      }
      prediction_.sending_busy += static_cast<double>(server.sending.busy_ns) / all_ns;
      prediction_.receiving_busy += static_cast<double>(server.receiving.busy_ns) / all_ns;
    }
  }

  const PsJob& job_;
  const PsCosts& costs_;
  const std::vector<Group> groups_;
  std::vector<Node> workers_, servers_;
  std::vector<int> left_, step_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t now_ns_ = 0, last_ns_ = 0;
  uint64_t next_order_ = 0;
  PsPrediction prediction_;
};

}  // namespace

PsPrediction Predict(const PsJob& job, const PsCosts& costs) { return Model(job, costs).Run(); }

double BoundMs(const PsJob& job, const PsCosts& costs) {
  std::vector<int64_t> wire_ns(job.servers), processor_ns(job.servers);
  int64_t worker_wire_ns = 0, worker_ns = 0;
  for (const Group& group : Groups(job)) {
    const int64_t wire = WireNs(costs.link, group.bytes);
    const int64_t pull_ns = costs.answer_ns;
    const int64_t push_ns = costs.land_ns + (job.standing ? 0 : costs.ask_ns);
    const int64_t asks = job.standing ? 1 : 2;
    const int64_t tensors_ns = group.tensors * costs.tensor_ns;
    wire_ns[group.server] += wire;
    processor_ns[group.server] += pull_ns + push_ns + (1 + asks) * tensors_ns;
    worker_wire_ns += 2 * wire;  // First in, then out.
    worker_ns += costs.ask_ns + costs.land_ns + costs.answer_ns + 3 * tensors_ns;
  }
  // A server sends and receives at once, for different workers.
  const int64_t server_wire = *std::max_element(wire_ns.begin(), wire_ns.end()) * job.workers;
  const int64_t server_processors = *std::max_element(processor_ns.begin(), processor_ns.end()) *
                                    job.workers / costs.server_processors;
  return static_cast<double>(
             std::max({server_wire, server_processors, worker_wire_ns, worker_ns})) *
         1e-6;
}

}  // namespace tryst
