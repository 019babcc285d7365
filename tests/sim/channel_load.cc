#include "tests/sim/channel_load.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/shm/wire.h"

namespace tryst {
namespace {

// How late a fetch into the caller's memory may end after its deadline: the time to notice a silent
// peer, and to drain the queue pair that could write the memory.
constexpr int64_t kFenceNs = 8'000 * kMs;
constexpr int64_t kLateNs = 500 * kMs;

// Serials of tensors of a certain size say which in their upper bits.
constexpr int kClassShift = 26;
constexpr uint64_t kClassElements[] = {0, 1, 40, 600, 1000, 3000, 9000, 20'000};
constexpr uint64_t kSmallClass = 2;  // One for a run of keys.
constexpr uint64_t kMixedClass = 8;  // Mostly for a run of keys; of all kinds.

constexpr uint64_t kStormWords = (16 << 20) / sizeof(uint64_t);

std::string Device(size_t worker) {
  return absl::StrCat("/job:w/replica:0/task:", worker, "/device:CPU:0");
}

}  // namespace

LoadCounts& LoadCounts::operator+=(const LoadCounts& other) {
  sends += other.sends;
  fetches += other.fetches;
  cancels += other.cancels;
  cancels_in_flight += other.cancels_in_flight;
  aborts += other.aborts;
  delivered += other.delivered;
  failed += other.failed;
  early += other.early;
  left += other.left;
  bytes += other.bytes;
  return *this;
}

ChannelLoad::ChannelLoad(SimWorld* world, SimRandom random, LoadTarget* target, size_t workers,
                         const LoadOptions& options)
    : world_(world),
      random_(random),
      target_(target),
      workers_(workers),
      options_(options),
      size_class_(random_.Below(3)),
      // It is the caller's again: whoever writes it now writes what was given back.
      buffers_({[world](const void* address, uint64_t bytes) { world->Poison(address, bytes); },
                [world](const void* address, uint64_t bytes) { world->Unpoison(address, bytes); }}),
      executor_(world, random_.Fork(), 50'000, 1 + random_.Below(8)),
      aim_(options.aim_seed),
      runs_(options.run_seed),
      holding_(options.aim_seed + 1),
      ends_(options.deadline_seed) {
  if (!options_.cancel_storm) return;
  storm_source_ = NewSource(kStormWords);
  uint64_t* at = static_cast<uint64_t*>(storm_source_.mutable_data());
  for (uint64_t i = 0; i < kStormWords; ++i) at[i] = i;
}

std::pair<size_t, size_t> ChannelLoad::DrawEnds(SimRandom* random) {
  const size_t one = random->Below(workers_);
  const size_t other = (one + 1 + random->Below(workers_ - 1)) % workers_;
  if (one == options_.forgetful) return {other, one};
  return {one, other};
}

int64_t ChannelLoad::SomeTime() {
  return world_->NowNs() + random_.Between(0, options_.load_ns - 1);
}

void ChannelLoad::Plan() {
  const uint64_t edges = 1 + Draw(6);
  const uint64_t steps = 1 + Draw(3);
  for (int i = 0; i < options_.operations; ++i) {
    const auto ends = DrawEnds(&random_);
    const size_t producer = ends.first;
    const size_t consumer = ends.second;
    if (options_.cancel_storm) {
      const size_t number = static_cast<size_t>(i);
      world_->At(SomeTime(),
                 [this, producer, consumer, number] { StartTransfer(producer, consumer, number); });
      continue;
    }
    size_t number = Draw(edges);
    // A fetch that others wait behind is not given up, and nothing of it could be forgotten.
    if (consumer == options_.forgetful && i % 2 == 0) number = 1000 + static_cast<size_t>(i);
    const int64_t step = 1 + static_cast<int64_t>(Draw(steps));
    world_->At(SomeTime(), [this, producer, consumer, number, step] {
      Send(EdgeOf(producer, consumer, number, step));
    });
    if (options_.many && i % 64 == 0) {
      world_->At(SomeTime(),
                 [this, producer, consumer, step] { StartMany(producer, consumer, step); });
    } else {
      world_->At(SomeTime(), [this, producer, consumer, number, step] {
        StartFetch(EdgeOf(producer, consumer, number, step));
      });
    }
  }
  if (!options_.cancel_storm) PlanRecurring();
  if (options_.run_seed != 0) PlanRuns();
  if (!options_.aborts) return;
  for (uint64_t i = 1 + Draw(3); i > 0; --i) {
    const size_t worker = Draw(workers_);
    const int64_t step = 1 + static_cast<int64_t>(Draw(steps));
    const bool at_producer = Chance(50);
    world_->At(SomeTime(), [this, worker, step, at_producer] {
      at_producer ? AbortAtProducer(worker, step) : AbortAtConsumer(worker, step);
    });
  }
}

void ChannelLoad::StartOne(SimRandom* random) {
  const auto ends = DrawEnds(random);
  const size_t number = started_more_++;
  if (options_.cancel_storm) {
    const auto operations = static_cast<size_t>(options_.operations);
    return StartTransfer(ends.first, ends.second, operations + number);
  }
  Edge* const edge = EdgeOf(ends.first, ends.second, 100'000 + number, 1);
  edge->size_class = 6;
  Send(edge);
  StartFetch(edge);
}

// Keys that are sent and fetched in step after step, mostly at one distance and of one size.
void ChannelLoad::PlanRecurring() {
  for (size_t number = 100 + Draw(4); number > 100; --number) {
    const auto ends = DrawEnds(&random_);
    const size_t producer = ends.first;
    const size_t consumer = ends.second;
    const int64_t stride = 1 + static_cast<int64_t>(Draw(3));
    const int64_t every_ns = random_.Between(kMs, 4 * kMs);
    const uint64_t usual_class = 1 + Draw(7);
    const uint64_t incarnation = target_->IncarnationOf(consumer);
    int64_t step = 1000;
    for (int64_t at_ns = 0; at_ns + every_ns < options_.load_ns; at_ns += every_ns) {
      step += Chance(5) ? 1 : stride;
      const uint64_t size_class = Chance(8) ? 1 + Draw(7) : usual_class;
      const auto edge = [this, producer, consumer, number, step, size_class, incarnation] {
        Edge* edge = EdgeOf(producer, consumer, number, step);
        edge->recurring = true;
        edge->consumer_incarnation = incarnation;  // It may have been asked for long ago.
        if (edge->size_class == 0) edge->size_class = size_class;
        return edge;
      };
      const int64_t now_ns = world_->NowNs() + at_ns;
      world_->At(now_ns + random_.Between(0, every_ns), [this, edge] { Send(edge()); });
      if (Chance(4)) continue;
      world_->At(now_ns + random_.Between(0, every_ns), [this, edge] { StartFetch(edge()); });
    }
  }
}

// Keys that are mostly fetched together, by one call or in one turn, and mostly small. Sends come
// before and after that; some of the keys are fetched alone, too. From a generator of its own, as
// what it starts draws anew.
void ChannelLoad::PlanRuns() {
  for (uint64_t sets = 1 + runs_.Below(3); sets > 0; --sets) {
    const auto ends = DrawEnds(&runs_);
    const size_t producer = ends.first;
    const size_t consumer = ends.second;
    const size_t first = 200 + 100 * sets;
    const size_t count = 4 + runs_.Below(12);
    const bool one_step = runs_.Below(2) == 0;
    const bool by_one_call = runs_.Below(2) == 0;
    const int64_t every_ns = runs_.Between(kMs / 4, 4 * kMs);
    const uint64_t late = runs_.Below(3) == 0 ? 50 : 5;  // So many of a hundred Sends.
    const auto edges_of = [this, producer, consumer, first, count](int64_t step) {
      std::vector<Edge*> edges;
      for (size_t i = 0; i < count; ++i) {
        edges.push_back(EdgeOf(producer, consumer, first + i, step));
        edges.back()->size_class = i % 3 == 2 ? kMixedClass : kSmallClass;
      }
      return edges;
    };
    int64_t step = one_step ? 1 : 1000;
    for (int64_t at_ns = 0; at_ns + every_ns < options_.load_ns; at_ns += every_ns) {
      if (!one_step) ++step;
      const int64_t from_ns = world_->NowNs() + at_ns;
      const auto later = [this, from_ns, every_ns](int64_t begin, int64_t end) {
        return from_ns + runs_.Between(begin * every_ns / 4, end * every_ns / 4);
      };
      for (size_t i = 0; i < count; ++i) {
        const bool is_late = runs_.Below(100) < late;
        world_->At(is_late ? later(2, 4) : later(0, 2),
                   [this, edges_of, step, i] { Send(edges_of(step)[i]); });
      }
      world_->At(later(2, 3), [this, edges_of, step, by_one_call] {
        if (by_one_call) return StartRun(edges_of(step));
        for (Edge* edge : edges_of(step)) StartFetch(edge);
      });
      if (runs_.Below(4) != 0) continue;
      const size_t alone = runs_.Below(count);
      world_->At(later(0, 4), [this, edges_of, step, alone] { Send(edges_of(step)[alone]); });
      world_->At(later(0, 4), [this, edges_of, step, alone] { StartFetch(edges_of(step)[alone]); });
    }
  }
}

ChannelLoad::Edge* ChannelLoad::EdgeOf(size_t producer, size_t consumer, size_t number,
                                       int64_t step) {
  const uint64_t incarnation = target_->IncarnationOf(producer);
  Edge& edge = edges_[{producer, incarnation, consumer, number, step}];
  if (edge.key.empty()) {
    edge.producer = producer;
    edge.consumer = consumer;
    edge.number = number;
    edge.step = step;
    edge.producer_incarnation = incarnation;
    edge.consumer_incarnation = target_->IncarnationOf(consumer);
    edge.aborted = aborted_.count({producer, incarnation, step}) > 0;
    edge.key = TensorKeyPrefix::Make(Device(producer), incarnation, Device(consumer),
                                     absl::StrCat("edge", number))
                   ->At(0, 0);
  }
  return &edge;
}

// ---- Sending ----

ChannelLoad::Kind ChannelLoad::KindOf(uint64_t serial) const {
  const uint64_t size_class = serial >> kClassShift;
  if (size_class != 0 && size_class != kMixedClass) return Kind::kNumbers;
  const uint64_t hash = (serial * 0xd6e8feb86659fd93u) >> 40;
  if (hash % 32 == 0) return Kind::kDead;
  return hash % 32 < 3 ? Kind::kStrings : Kind::kNumbers;
}

// The size follows from the serial, and the content from both.
uint64_t ChannelLoad::ElementsOf(uint64_t serial) const {
  const uint64_t hash = (serial * 0x9e3779b97f4a7c15u) >> 20;
  if (serial >> kClassShift == kMixedClass) return 1 + hash % 150;
  if (serial >> kClassShift != 0) return kClassElements[serial >> kClassShift];
  switch (hash % 8) {
    case 0:
      return 1;  // Besides the serial nothing.
    case 1:
    case 2:
    case 3:
      return 2 + hash % 100;
    case 4:
    case 5:
      return 500 + hash % 1000;
    case 6:
      return 1000 + hash % 9000;
    default:
      return size_class_ == 0 ? 200 : 5000 + hash % 40'000;
  }
}

// Memory of the caller's, which is freed, and soon used again, when its last tensor goes. By then
// no NIC may have it registered.
Tensor ChannelLoad::NewSource(uint64_t elements) {
  auto* const words = new uint64_t[elements];
  return *Tensor::Adopt(words, DType::kUint64, {static_cast<int64_t>(elements)}, MemorySpace(),
                        [world = world_, words, elements] {
                          if (world->guard().AnyRegistered(words, 8 * elements)) {
                            world->guard().Violation("a region lies over memory that is freed");
                          }
                          delete[] words;
                        });
}

Tensor ChannelLoad::NewNumbers(size_t producer, uint64_t serial) {
  const uint64_t elements = ElementsOf(serial);
  Allocator* const shared = options_.holds ? target_->SharedBy(producer) : nullptr;
  if (shared != nullptr && serial % 2 == 0) {
    auto made = shared->AllocateTensor(DType::kUint64, {static_cast<int64_t>(elements)});
    if (made.ok()) return *std::move(made);
  }
  return NewSource(elements);
}

Tensor ChannelLoad::MakeTensor(size_t producer, uint64_t serial) {
  const uint64_t elements = ElementsOf(serial);
  if (KindOf(serial) == Kind::kDead) return Tensor();
  if (KindOf(serial) == Kind::kStrings) {
    std::vector<std::string> strings = {
        absl::StrCat(serial), "", std::string(elements, static_cast<char>('a' + serial % 26))};
    return *Tensor::FromStrings(std::move(strings), {3});
  }
  Tensor tensor = NewNumbers(producer, serial);
  uint64_t* at = static_cast<uint64_t*>(tensor.mutable_data());
  for (uint64_t i = 0; i < elements; ++i) at[i] = serial + (i << 32);
  return tensor;
}

void ChannelLoad::Send(Edge* edge) {
  ++counts_.sends;
  const uint64_t serial = next_serial_++ | edge->size_class << kClassShift;
  edge->sent.push_back(serial);
  const bool is_dead = KindOf(serial) == Kind::kDead;
  const absl::Status sent =
      target_->StepOf(edge->producer, edge->step)
          ->Send(edge->key, SendArgs(), MakeTensor(edge->producer, serial), is_dead);
  if (!sent.ok() && !edge->aborted) {
    target_->Violate(absl::StrCat("send refused: ", sent.ToString()));
  }
}

void ChannelLoad::SendWhatIsWaitedFor(bool anyhow) {
  std::map<const Edge*, size_t> left;
  for (const auto& entry : edges_) {
    const Edge& edge = entry.second;
    left[&edge] = anyhow || !Lives(edge) ? 0 : edge.sent.size() - edge.arrived;
  }
  for (Fetch& fetch : fetches_) {
    Edge* edge = fetch.edge;
    if (fetch.ends != 0 || edge->aborted) continue;
    if (left[edge] > 0) {
      --left[edge];
      continue;
    }
    if (target_->IncarnationOf(edge->producer) == fetch.producer_incarnation) Send(edge);
  }
}

// ---- Fetching ----

ChannelLoad::Fetch* ChannelLoad::NewFetch(Edge* edge) {
  fetches_.emplace_back();
  Fetch* fetch = &fetches_.back();
  fetch->id = fetches_.size();
  fetch->edge = edge;
  fetch->producer_incarnation = target_->IncarnationOf(edge->producer);
  fetch->consumer_incarnation = target_->IncarnationOf(edge->consumer);
  fetch->turn = edge->fetched++;
  ++counts_.fetches;
  ++open_;
  return fetch;
}

RecvArgs ChannelLoad::DrawArgs(Fetch* fetch) {
  RecvArgs args;
  if (Chance(15)) {
    fetch->may_end_early = true;
    fetch->deadline_ns = world_->NowNs() + random_.Between(0, 30 * kMs);
    args.deadline = Deadline::AtNs(fetch->deadline_ns);
  }
  if (Chance(15)) {
    ScheduleCancel(fetch, 20 * kMs, &random_);
    args.cancellation = fetch->cancellation.get();
  }
  if (Chance(20)) args.executor = &executor_;
  return args;
}

void ChannelLoad::ScheduleCancel(Fetch* fetch, int64_t within_ns, SimRandom* random) {
  fetch->may_end_early = true;
  fetch->cancellation = std::make_unique<Cancellation>();
  world_->At(world_->NowNs() + random->Between(0, within_ns), [this, fetch] {
    if (fetch->ends == 0) {
      ++counts_.cancels;
      if (fetch->has_destination && fetch->destination.bytes() > 0) {
        const uint64_t* first = fetch->destination.data_as<uint64_t>();
        counts_.cancels_in_flight += *first != CanaryBuffers::kFresh;
      }
    }
    fetch->cancellation->StartCancel();
  });
}

// The destination mostly, but not always, has the size of the next tensor on this edge.
void ChannelLoad::DrawDestination(Fetch* fetch, RecvArgs* args) {
  const Edge& edge = *fetch->edge;
  const size_t next = edge.delivered.size();
  const uint64_t serial = next < edge.sent.size() ? edge.sent[next] : next_serial_;
  fetch->has_destination = true;
  fetch->destination = buffers_.Take(ElementsOf(serial));
  args->destination = fetch->destination;
}

void ChannelLoad::StartFetch(Edge* edge) {
  Fetch* fetch = NewFetch(edge);
  RecvArgs args = DrawArgs(fetch);
  args.recurring = edge->recurring;
  if (Chance(edge->recurring ? 4 : 25)) DrawDestination(fetch, &args);
  if (options_.aim_seed != 0) AimCancel(fetch, &args);
  if (edge->consumer == options_.forgetful && args.cancellation == nullptr && ends_.Below(2) == 0) {
    ScheduleCancel(fetch, 20 * kMs, &ends_);
    args.cancellation = fetch->cancellation.get();
  }
  Ask(fetch, args);
}

void ChannelLoad::Ask(Fetch* fetch, const RecvArgs& args) {
  const Edge& edge = *fetch->edge;
  target_->FetcherOf(edge.consumer)
      ->Fetch(edge.step, edge.key, args, [this, fetch](Received&& received) {
        OnDone(fetch, std::move(received.status), received.tensor, received.is_dead);
      });
}

// Aims at a tensor that has been sent and does not fit into a message: from before the request to
// about when the last byte should be here.
void ChannelLoad::AimCancel(Fetch* fetch, RecvArgs* args) {
  const Edge& edge = *fetch->edge;
  const size_t next = edge.delivered.size();
  if (fetch->cancellation != nullptr || next >= edge.sent.size()) return;
  const uint64_t bytes = ElementsOf(edge.sent[next]) * sizeof(uint64_t);
  if (bytes < 8192 || aim_.Below(100) >= 40) return;
  if (!fetch->has_destination && KindOf(edge.sent[next]) == Kind::kNumbers) {
    DrawDestination(fetch, args);
  }
  ScheduleCancel(fetch, 8'000 + WireNs(world_->options().link, bytes), &aim_);
  args->cancellation = fetch->cancellation.get();
}

void ChannelLoad::CancelSoon(size_t consumer, int64_t within_ns) {
  for (Fetch& fetch : fetches_) {
    if (fetch.ends != 0 || fetch.edge->consumer != consumer) continue;
    if (fetch.cancellation == nullptr || aim_.Below(2) == 0) continue;
    world_->At(world_->NowNs() + aim_.Between(0, within_ns),
               [&fetch] { fetch.cancellation->StartCancel(); });
  }
}

bool ChannelLoad::Lives(const Edge& edge) const {
  return !edge.aborted && target_->IncarnationOf(edge.producer) == edge.producer_incarnation &&
         target_->IncarnationOf(edge.consumer) == edge.consumer_incarnation;
}

size_t ChannelLoad::FetchWhatIsLeft() {
  size_t left = 0;
  for (auto& entry : edges_) {
    Edge* edge = &entry.second;
    if (!Lives(*edge)) continue;
    for (size_t i = edge->arrived; i < edge->sent.size(); ++i, ++left)
      Ask(NewFetch(edge), RecvArgs());
  }
  counts_.left += left;
  return left;
}

void ChannelLoad::StartMany(size_t producer, size_t consumer, int64_t step) {
  std::vector<Fetch*> fetches;
  const size_t count = 2 + Draw(6);
  for (size_t number = 0; number < count; ++number) {
    fetches.push_back(NewFetch(EdgeOf(producer, consumer, number, step)));
    fetches.back()->many = true;
  }
  const RecvArgs args = DrawArgs(fetches[0]);
  for (Fetch* fetch : fetches) {
    fetch->may_end_early = fetches[0]->may_end_early;
    fetch->deadline_ns = fetches[0]->deadline_ns;
  }
  AskMany(fetches, args);
}

void ChannelLoad::StartRun(const std::vector<Edge*>& edges) {
  std::vector<Fetch*> fetches;
  for (Edge* edge : edges) {
    fetches.push_back(NewFetch(edge));
    fetches.back()->many = true;
  }
  RecvArgs args = DrawArgs(fetches[0]);
  std::vector<Tensor> destinations;
  if (Chance(25)) {
    for (Fetch* fetch : fetches) {
      RecvArgs one;
      DrawDestination(fetch, &one);
      destinations.push_back(one.destination);
    }
    args.destinations = destinations;
  }
  for (Fetch* fetch : fetches) {
    fetch->may_end_early = fetches[0]->may_end_early;
    fetch->deadline_ns = fetches[0]->deadline_ns;
  }
  AskMany(fetches, args);
}

void ChannelLoad::AskMany(const std::vector<Fetch*>& fetches, const RecvArgs& args) {
  std::vector<TensorKey> keys;
  for (const Fetch* fetch : fetches) keys.push_back(fetch->edge->key);
  target_->FetcherOf(fetches[0]->edge->consumer)
      ->FetchMany(fetches[0]->edge->step, keys, args,
                  [this, fetches](absl::Status, absl::Span<Received> results) {
                    for (size_t i = 0; i < fetches.size(); ++i) {
                      OnDone(fetches[i], results[i].status, results[i].tensor, results[i].is_dead);
                    }
                  });
}

// One tensor on an edge of its own, sent before it is asked for.
void ChannelLoad::StartTransfer(size_t producer, size_t consumer, size_t number) {
  Edge* edge = EdgeOf(producer, consumer, number, 1);
  // 1 KiB to 256 KiB, and one of 128 up to 16 MiB, evenly over the powers of two.
  uint64_t power = Draw(128) == 0 ? 15 + Draw(6) : 7 + Draw(8);
  const bool is_large = options_.large && holding_.Below(4) == 0;
  if (is_large) power = 16 + holding_.Below(2);
  const uint64_t elements =
      std::min((uint64_t{1} << power) + Draw(uint64_t{1} << power), kStormWords);
  ++counts_.sends;
  edge->sent.push_back(elements);
  const Tensor tensor = *storm_source_.Slice(0, static_cast<int64_t>(elements));
  const absl::Status sent =
      target_->StepOf(producer, 1)->Send(edge->key, SendArgs(), tensor, false);
  if (!sent.ok()) target_->Violate(absl::StrCat("send refused: ", sent.ToString()));

  Fetch* fetch = NewFetch(edge);
  RecvArgs args;
  if (Chance(80) && !is_large) {
    fetch->has_destination = true;
    fetch->destination = buffers_.Take(elements);
    args.destination = fetch->destination;
  }
  if (Chance(90)) {
    // From before the request to about when the last byte should be here.
    const int64_t wire_ns =
        WireNs(world_->options().link, elements * static_cast<uint64_t>(sizeof(uint64_t)));
    ScheduleCancel(fetch, 8'000 + wire_ns, &random_);
    args.cancellation = fetch->cancellation.get();
    if (options_.deadline_seed != 0) {
      fetch->deadline_ns = world_->NowNs() + ends_.Between(0, 3 * (8'000 + wire_ns));
      args.deadline = Deadline::AtNs(fetch->deadline_ns);
    }
  }
  Ask(fetch, args);
}

// ---- Aborting ----

std::string ChannelLoad::WhyFailed(int64_t step) const {
  if (options_.text_seed == 0) return "the step failed";
  SimRandom random(options_.text_seed + static_cast<uint64_t>(step));
  // A text may take several cells of shared memory, and most of these end near the end of one.
  constexpr uint64_t kCell = sizeof(shm_wire::ReplyCell::body);
  const uint64_t whole = random.Below(10) * kCell;
  const uint64_t more = random.Below(4) == 0 ? random.Below(kCell) : kCell - 4 + random.Below(5);
  return std::string(whole + more, 'w');
}

void ChannelLoad::AbortAtProducer(size_t producer, int64_t step) {
  ++counts_.aborts;
  const uint64_t incarnation = target_->IncarnationOf(producer);
  for (auto& entry : edges_) {
    Edge& edge = entry.second;
    if (edge.producer == producer && std::get<1>(entry.first) == incarnation && edge.step == step) {
      edge.aborted = true;
    }
  }
  aborted_.insert({producer, incarnation, step});
  target_->StepOf(producer, step)->StartAbort(absl::InternalError(WhyFailed(step)));
}

void ChannelLoad::AbortAtConsumer(size_t consumer, int64_t step) {
  ++counts_.aborts;
  for (Fetch& fetch : fetches_) {
    if (fetch.ends == 0 && fetch.edge->consumer == consumer && fetch.edge->step == step) {
      fetch.step_aborted = true;
    }
  }
  target_->FetcherOf(consumer)->AbortStep(step, absl::AbortedError("the step was given up"));
}

// ---- Ends ----

std::string ChannelLoad::Name(const Fetch& fetch) const {
  return absl::StrCat("fetch ", fetch.id, " of edge ", fetch.edge->number, ", step ",
                      fetch.edge->step, ", from ", fetch.edge->producer, " to ",
                      fetch.edge->consumer);
}

void ChannelLoad::OnDone(Fetch* fetch, absl::Status status, const Tensor& tensor, bool is_dead) {
  if (++fetch->ends > 1) return Violate(*fetch, " ended twice");
  --open_;
  fetch->status = std::move(status);
  fetch->ended_ns = world_->NowNs();
  if (options_.holds &&
      target_->IncarnationOf(fetch->edge->consumer) != fetch->consumer_incarnation) {
    fetch->status = absl::UnavailableError("its process is dead");  // Nobody sees what it gets.
    return;
  }
  // The last of many to end decides; it may have been waiting in an executor's line.
  const int64_t late_ns = world_->NowNs() - fetch->deadline_ns;
  if (late_ns > (fetch->has_destination ? kFenceNs : kLateNs)) {
    Violate(*fetch, absl::StrCat(" ended ", late_ns / kMs,
                                 " ms after its deadline: ", fetch->status.ToString()));
  }
  if (fetch->status.ok()) {
    ++counts_.delivered;
    ++fetch->edge->arrived;
    CheckDelivered(fetch, tensor, is_dead);
    if (options_.holds && !is_dead && !fetch->has_destination) Hold(*fetch, tensor);
  } else {
    ++counts_.failed;
    ++fetch->edge->ended_early;
    CheckStatus(*fetch);
  }
  if (fetch->has_destination) buffers_.Give(std::move(fetch->destination));
}

void ChannelLoad::CheckStatus(const Fetch& fetch) {
  bool expected = false;
  switch (fetch.status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      ++counts_.early;
      expected = fetch.may_end_early;
      break;
    case absl::StatusCode::kInvalidArgument:  // The destination was of another kind or size.
      expected = fetch.has_destination && !options_.cancel_storm;
      break;
    case absl::StatusCode::kInternal:
      expected =
          fetch.edge->aborted &&
          absl::StrContains(fetch.status.message(), WhyFailed(fetch.edge->step).substr(0, 900));
      break;
    case absl::StatusCode::kAborted:  // The producer was restarted.
      expected = killed_ || fetch.step_aborted;
      break;
    case absl::StatusCode::kUnavailable:  // Or the consumer stopped.
      expected = killed_;
      break;
    case absl::StatusCode::kDataLoss:  // Twice of one tensor.
      expected = flips_;
      break;
    case absl::StatusCode::kResourceExhausted:  // A registration was made to fail.
      expected = options_.faults;
      break;
    default:
      break;
  }
  if (!expected) Violate(fetch, absl::StrCat(" ended with ", fetch.status.ToString()));
}

void ChannelLoad::CheckDelivered(Fetch* fetch, const Tensor& tensor, bool is_dead) {
  Edge* edge = fetch->edge;
  counts_.bytes += is_dead ? 0 : tensor.bytes();
  if (options_.cancel_storm) {
    const bool right = !is_dead && tensor.dtype() == DType::kUint64 &&
                       tensor.shape() == TensorShape({static_cast<int64_t>(edge->sent[0])}) &&
                       memcmp(tensor.data(), storm_source_.data(), tensor.bytes()) == 0;
    if (!right) Violate(*fetch, " delivered wrong bytes");
    if (right) fetch->serial = edge->sent[0];
    return;
  }
  if (is_dead) return;  // It has no serial; CheckOrder() looks at its turn.
  const bool is_string = tensor.dtype() == DType::kString;
  if (is_string ? tensor.shape() != TensorShape({3})
                : tensor.dtype() != DType::kUint64 || tensor.shape().rank() != 1 ||
                      tensor.shape().dim(0) < 1) {
    return Violate(*fetch, " delivered something else");
  }
  uint64_t serial = 0;
  if (!is_string) {
    serial = *tensor.data_as<uint64_t>();
  } else if (!absl::SimpleAtoi(tensor.strings()[0], &serial)) {
    return Violate(*fetch, " delivered other strings");
  }
  fetch->serial = serial;
  if (!std::binary_search(edge->sent.begin(), edge->sent.end(), serial)) {
    return Violate(*fetch, absl::StrCat(" delivered serial ", serial, ", never sent on this edge"));
  }
  if (!edge->delivered.insert(serial).second) {
    Violate(*fetch, absl::StrCat(" delivered serial ", serial, " twice"));
  }
  const uint64_t elements = ElementsOf(serial);
  if (is_string) {
    const std::string all(elements, static_cast<char>('a' + serial % 26));
    if (KindOf(serial) != Kind::kStrings || !tensor.strings()[1].empty() ||
        tensor.strings()[2] != all) {
      Violate(*fetch, " delivered wrong strings");
    }
    return;
  }
  if (KindOf(serial) != Kind::kNumbers || tensor.shape().dim(0) != static_cast<int64_t>(elements)) {
    return Violate(*fetch, " delivered a wrong kind or size");
  }
  CheckNumbers(*fetch, tensor);
}

void ChannelLoad::CheckNumbers(const Fetch& fetch, const Tensor& tensor) {
  const uint64_t* at = tensor.data_as<uint64_t>();
  for (uint64_t i = 0; i < ElementsOf(fetch.serial); ++i) {
    if (at[i] != fetch.serial + (i << 32)) {
      return Violate(fetch, absl::StrCat(" delivered wrong bytes at ", i));
    }
  }
}

// A tensor that lies in the producer's memory must stay there as long as somebody has it.
void ChannelLoad::Hold(const Fetch& fetch, const Tensor& tensor) {
  if (options_.cancel_storm || tensor.dtype() != DType::kUint64 || holding_.Below(3) != 0) return;
  held_[fetch.id] = tensor;
  world_->At(world_->NowNs() + holding_.Between(0, 20 * kMs), [this, &fetch] {
    const auto held = held_.find(fetch.id);
    if (held == held_.end()) return;
    // What a process had that is dead is nobody's.
    if (target_->IncarnationOf(fetch.edge->consumer) == fetch.consumer_incarnation) {
      CheckNumbers(fetch, held->second);
    }
    held_.erase(held);
  });
}

void ChannelLoad::CheckEnds() {
  for (Fetch& fetch : fetches_) {
    const Edge& edge = *fetch.edge;
    if (fetch.ends != 0 || target_->IncarnationOf(edge.producer) != fetch.producer_incarnation ||
        target_->IncarnationOf(edge.consumer) != fetch.consumer_incarnation) {
      continue;
    }
    Violate(fetch,
            absl::StrCat(" never ended; ", target_->ExplainTo(edge.consumer, edge.producer)));
  }
  for (const auto& entry : edges_) {
    const Edge& edge = entry.second;
    if (!Lives(edge) || MayLose(edge) || edge.arrived == edge.sent.size()) continue;
    target_->Violate(absl::StrCat("of ", edge.sent.size(), " sends of ", edge.key.text(),
                                  " in step ", edge.step, ", ", edge.arrived, " arrived; ",
                                  target_->ExplainTo(edge.consumer, edge.producer)));
  }
  CheckOrder();
  buffers_.CheckAll();
  JudgeWhole(kFenceNs);
  if (buffers_.late_words() > 0) {
    target_->Violate(absl::StrCat(buffers_.late_words(), " late words in memory given back"));
  }
}

// Fetches of a key get its tensors in their order. Only when a fetch ends early may a fetch behind
// it get an older tensor than a fetch before it got.
void ChannelLoad::CheckOrder() {
  if (options_.cancel_storm) return;
  std::map<const Edge*, const Fetch*> last_of;  // With the highest serial.
  std::set<const Edge*> gave_back;              // Before that one was asked for.
  std::set<const Edge*> ended_early;
  for (const Fetch& fetch : fetches_) {
    if (fetch.ends == 0) continue;
    const Edge& edge = *fetch.edge;
    if (!fetch.status.ok()) ended_early.insert(&edge);
    if (!fetch.status.ok()) continue;
    const uint64_t want = fetch.turn < edge.sent.size() ? edge.sent[fetch.turn] : 0;
    const bool is_dead = fetch.serial == 0;
    if (edge.ended_early == 0 && Lives(edge) && !MayLose(edge) &&
        (is_dead ? KindOf(want) != Kind::kDead : fetch.serial != want)) {
      Violate(fetch, absl::StrCat(" was number ", fetch.turn, " and got serial ", fetch.serial,
                                  " in place of ", want));
    }
    if (is_dead) continue;
    const Fetch*& last = last_of[&edge];
    if (last != nullptr && fetch.serial < last->serial) {
      if (gave_back.count(&edge) != 0) continue;
      Violate(fetch, absl::StrCat(" got serial ", fetch.serial, " although fetch ", last->id,
                                  " before it got ", last->serial));
    } else {
      last = &fetch;
      if (ended_early.count(&edge) != 0) gave_back.insert(&edge);
    }
  }
}

void ChannelLoad::CheckNothingLost() {
  for (const Fetch& fetch : fetches_) {
    if (fetch.ends == 0) Violate(fetch, " lost its callback");
  }
}

}  // namespace tryst
