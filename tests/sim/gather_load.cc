#include "tests/sim/gather_load.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "rendezvous/selected.h"

namespace tryst {
namespace {

constexpr uint64_t kPoolBytes = 512 << 10;
constexpr char kCanary = 0x5a;     // Where nothing has landed,
constexpr char kGivenBack = 0x33;  // and what the caller writes there once a gather has ended.
// Over a stopped reader of shared memory a fence takes a second; processes stand still for less.
constexpr int64_t kFencedNs = 2'000 * kMs;

std::string NameOfWorker(size_t worker) { return absl::StrCat("/job:w/replica:0/task:", worker); }
std::string CpuOf(size_t worker) { return absl::StrCat(NameOfWorker(worker), "/device:CPU:0"); }

Tensor MakePool() {
  const Tensor pool = *Tensor::Allocate(DType::kUint8, {kPoolBytes});
  char* const at = static_cast<char*>(pool.mutable_data());
  for (uint64_t i = 0; i < kPoolBytes; ++i) at[i] = static_cast<char>(i * 131 + i / 4093);
  return pool;
}

}  // namespace

GatherCounts& GatherCounts::operator+=(const GatherCounts& other) {
  gathers += other.gathers;
  filled += other.filled;
  misfits += other.misfits;
  cancelled += other.cancelled;
  failed += other.failed;
  groups += other.groups;
  in_flight += other.in_flight;
  late += other.late;
  bytes += other.bytes;
  return *this;
}

GatherLoad::GatherLoad(SimWorld* world, SimRandom random, LoadTarget* target, Alarms* alarms,
                       size_t workers, const LoadOptions& options)
    : world_(world),
      random_(random),
      target_(target),
      alarms_(alarms),
      workers_(workers),
      options_(options),
      executor_(world, random_.Fork(), 50'000, 1 + random_.Below(8)),
      pool_(MakePool()) {}

GatherLoad::~GatherLoad() = default;

void GatherLoad::Plan() {
  const int groups = 4 + options_.operations / 8;
  for (int i = 0; i < groups; ++i) {
    const int64_t at_ns = world_->NowNs() + random_.Between(0, options_.load_ns - 1);
    const size_t count = 1 + Draw(6);
    world_->At(at_ns, [this, count] {
      std::vector<Edge*> edges;
      for (size_t k = 0; k < count; ++k) {
        edges.push_back(NewEdge());
        Edge* const edge = edges.back();
        if (Chance(50)) {
          Send(edge);
        } else {
          world_->At(world_->NowNs() + random_.Between(0, 4 * kMs), [this, edge] { Send(edge); });
        }
      }
      StartGroup(edges);
    });
  }
}

GatherLoad::Edge* GatherLoad::NewEdge() {
  static constexpr uint64_t kMost[] = {1, 200, 3000, 60'000, 300'000};
  edges_.emplace_back();
  Edge& edge = edges_.back();
  edge.producer = Draw(workers_);
  edge.consumer = (edge.producer + 1 + Draw(workers_ - 1)) % workers_;
  edge.producer_incarnation = target_->IncarnationOf(edge.producer);
  edge.consumer_incarnation = target_->IncarnationOf(edge.consumer);
  edge.step = 5'000 + static_cast<int64_t>(Draw(3));
  edge.key = TensorKeyPrefix::Make(CpuOf(edge.producer), edge.producer_incarnation,
                                   CpuOf(edge.consumer), absl::StrCat("gather", edges_.size()))
                 ->At(0, 0);
  const uint64_t bytes = Draw(kMost[Draw(5)]);
  const uint64_t most = 1 + bytes / (1 + Draw(60));
  while (edge.bytes < bytes) {
    const uint64_t one = std::min(bytes - edge.bytes, 1 + Draw(most));
    edge.spans.push_back({Draw(kPoolBytes - one + 1), one});
    edge.bytes += one;
  }
  edge.digests = Chance(50);
  return &edge;
}

// As RoutingRendezvous::SendSelected() does it.
void GatherLoad::Send(Edge* edge) {
  if (edge->sent || !ProducerLives(*edge)) return;
  auto gathered = GatherTensor(edge->key, pool_, Selection::Spans(edge->spans), edge->digests,
                               target_->SharedBy(edge->producer));
  absl::Status sent = gathered.status();
  if (sent.ok()) {
    sent = target_->StepOf(edge->producer, edge->step)
               ->Send(edge->key, SendArgs(), *std::move(gathered), false);
  }
  if (!sent.ok()) target_->Violate(absl::StrCat("send refused: ", sent.ToString()));
  edge->sent = true;
}

std::shared_ptr<RoutingRendezvous> GatherLoad::StepOf(const Edge& edge) {
  auto& step = steps_[{edge.consumer_incarnation, edge.step}];
  if (step == nullptr) {
    LocalRendezvous::Options options;
    options.shards = 1;
    options.check_immutable = false;  // Every build replays a seed alike.
    step = RoutingRendezvous::Make(NameOfWorker(edge.consumer), edge.step, options, alarms_,
                                   nullptr, target_->FetcherOf(edge.consumer));
  }
  return step;
}

void GatherLoad::StartGroup(const std::vector<Edge*>& edges) {
  groups_.emplace_back(&world_->clock());
  Group* const group = &groups_.back();
  const bool cancels = Chance(75);
  uint64_t bytes = 0;
  for (Edge* edge : edges) {
    const bool misfit = Chance(5);
    StartOne(edge, group, misfit, true);
    bytes += edge->bytes;
  }
  if (!cancels) return;
  // From before the requests to about when the last byte should be here, or any time.
  const int64_t within_ns =
      Chance(60) ? 8'000 + 2 * WireNs(world_->options().link, bytes) : 10 * kMs;
  world_->At(world_->NowNs() + random_.Between(0, within_ns),
             [this, group] { CancelGroup(group); });
}

std::vector<ByteSpan> GatherLoad::DrawLanding(uint64_t bytes, uint64_t* memory_bytes) {
  std::vector<ByteSpan> spans;
  uint64_t end = Draw(20);
  const uint64_t most = 1 + bytes / (1 + Draw(60));
  for (uint64_t left = bytes; left > 0;) {
    spans.push_back({end, std::min(left, 1 + Draw(most))});
    left -= spans.back().bytes;
    end += spans.back().bytes + (Chance(50) ? Draw(100) : 0);
  }
  for (size_t i = spans.size(); i > 1; --i) std::swap(spans[i - 1], spans[Draw(i)]);
  *memory_bytes = end + 20;
  return spans;
}

void GatherLoad::StartOne(Edge* edge, Group* group, bool misfit, bool with_options) {
  if (!ConsumerLives(*edge)) return;
  ones_.emplace_back();
  One* const one = &ones_.back();
  one->id = ones_.size();
  one->edge = edge;
  one->group = group;
  one->misfit = misfit;
  uint64_t memory_bytes = 0;
  one->landing = DrawLanding(edge->bytes + (misfit ? 1 : 0), &memory_bytes);
  one->memory.assign(memory_bytes, kCanary);
  RecvArgs args;
  args.destination =
      *Tensor::Adopt(one->memory.data(), DType::kUint8,
                     TensorShape({static_cast<int64_t>(memory_bytes)}), MemorySpace(), [] {});
  if (with_options && Chance(10)) {
    one->may_end_early = true;
    args.deadline = Deadline::AtNs(world_->NowNs() + random_.Between(0, 10 * kMs));
  }
  if (with_options && Chance(30)) args.executor = &executor_;
  SelectedLanding landing(Selection::Spans(one->landing));
  landing.digests = edge->digests;
  landing.result = &one->result;
  ++counts_.gathers;
  ++open_;
  ++edge->open;
  DoneFn done = [this, one](Received&& received) { OnDone(one, std::move(received)); };
  const auto step = StepOf(*edge);
  if (group == nullptr) {
    return step->RecvSelectedAsync(edge->key, args, landing, std::move(done));
  }
  group->members.push_back(one);
  group->fetches.RecvSelectedAsync(step.get(), edge->key, args, landing, std::move(done));
}

void GatherLoad::CancelGroup(Group* group) {
  group->cancelled = true;
  group->cancelled_ns = world_->NowNs();
  group->under_way = group->fetches.under_way();
  ++counts_.groups;
  counts_.in_flight += group->under_way > 0 ? 1 : 0;
  group->fetches.StartCancel([this, group](const FenceReport& report) { OnFenced(group, report); });
}

void GatherLoad::OnFenced(Group* group, const FenceReport& report) {
  if (++group->fenced > 1) target_->Violate("a group was fenced twice");
  uint64_t ok = 0, cancelled = 0, bytes = 0;
  for (const One* one : group->members) {
    if (one->ends != 1) Violate(*one, " is under way behind its group's fence");
    ok += one->status.ok();
    cancelled += absl::IsCancelled(one->status);
    bytes += one->status.ok() ? one->edge->bytes : 0;
  }
  const size_t failed = group->members.size() - ok - cancelled;
  if (report.ended_ok != ok || report.cancelled != cancelled || report.failed != failed ||
      report.bytes_landed != bytes) {
    target_->Violate(absl::StrCat("a group's report counts ", report.ended_ok, ", ",
                                  report.cancelled, ", ", report.failed, " and ",
                                  report.bytes_landed, " bytes; its gathers ended ", ok, ", ",
                                  cancelled, ", ", failed, ", with ", bytes));
  }
  const int64_t took_ns = world_->NowNs() - group->cancelled_ns;
  if (!killed_ && took_ns > kFencedNs) {
    target_->Violate(absl::StrCat("a fence took ", took_ns / kMs, " ms"));
  }
}

void GatherLoad::OnDone(One* one, Received&& received) {
  if (++one->ends > 1) return Violate(*one, " ended twice");
  --open_;
  --one->edge->open;
  one->status = received.status;
  if (!ConsumerLives(*one->edge)) return;  // Nobody sees what it gets.
  std::vector<char>* const memory = &one->memory;
  if (one->status.ok()) {
    ++counts_.filled;
    counts_.bytes += one->edge->bytes;
    if (one->edge->arrived) Violate(*one, " got what had arrived before");
    if (one->misfit) Violate(*one, " took a tensor that has other bytes");
    one->edge->arrived = true;
    CheckBytes(*one);
  } else {
    CheckStatus(*one);
    if (std::count(memory->begin(), memory->end(), kCanary) !=
        static_cast<ptrdiff_t>(memory->size())) {
      Violate(*one, absl::StrCat(" failed and has written: ", one->status.ToString()));
    }
    if (one->result.failed.size() != one->landing.size()) {
      Violate(*one, " failed, and says that some spans are there");
    }
  }
  std::fill(memory->begin(), memory->end(), kGivenBack);
  if (!absl::IsInvalidArgument(one->status)) return;
  // It is kept, perhaps in a landing that others wait for.
  Edge* const edge = one->edge;
  world_->At(world_->NowNs() + random_.Between(0, 20 * kMs), [this, edge] {
    if (!edge->arrived && edge->open == 0) StartOne(edge, nullptr, false, false);
  });
}

void GatherLoad::CheckStatus(const One& one) {
  bool expected = false;
  switch (one.status.code()) {
    case absl::StatusCode::kCancelled:
      ++counts_.cancelled;
      expected = one.group != nullptr && one.group->cancelled;
      break;
    case absl::StatusCode::kInvalidArgument:
      ++counts_.misfits;
      one.edge->kept = true;
      expected = one.misfit;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      ++counts_.failed;
      expected = one.may_end_early;
      break;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
      ++counts_.failed;
      expected = killed_;
      break;
    case absl::StatusCode::kDataLoss:
      ++counts_.failed;
      expected = flips_;
      break;
    case absl::StatusCode::kResourceExhausted:
      ++counts_.failed;
      expected = options_.faults;
      break;
    default:
      break;
  }
  if (!expected) Violate(one, absl::StrCat(" ended with ", one.status.ToString()));
}

// What was selected there is what is selected here, and all else holds canaries.
void GatherLoad::CheckBytes(const One& one) {
  const char* const pool = pool_.data_as<char>();
  std::string sent;
  for (const ByteSpan& span : one.edge->spans) sent.append(pool + span.offset, span.bytes);
  std::vector<char> expected(one.memory.size(), kCanary);
  uint64_t at = 0;
  bool digests_right = one.result.digests.size() == (one.edge->digests ? one.landing.size() : 0);
  for (size_t i = 0; i < one.landing.size(); ++i) {
    const ByteSpan& span = one.landing[i];
    memcpy(&expected[span.offset], sent.data() + at, span.bytes);
    if (digests_right && one.edge->digests) {
      digests_right = one.result.digests[i] == Crc32c(0, sent.data() + at, span.bytes);
    }
    at += span.bytes;
  }
  if (one.memory != expected) Violate(one, " landed wrongly");
  if (!digests_right || !one.result.failed.empty()) Violate(one, " has wrong digests");
}

size_t GatherLoad::GatherWhatIsLeft() {
  size_t left = 0;
  const size_t edges = edges_.size();
  for (size_t i = 0; i < edges; ++i) {
    Edge* const edge = &edges_[i];
    Send(edge);  // The load may end before all that it planned was sent.
    if (edge->arrived || !edge->sent || edge->open > 0) continue;
    if (!ConsumerLives(*edge) || (!ProducerLives(*edge) && !edge->kept)) continue;
    StartOne(edge, nullptr, false, false);
    ++left;
  }
  counts_.late += left;
  return left;
}

void GatherLoad::CheckEnds() {
  for (const One& one : ones_) {
    const Edge& edge = *one.edge;
    if (!ConsumerLives(edge)) continue;
    if (one.ends == 0 && ProducerLives(edge)) {
      Violate(one,
              absl::StrCat(" never ended; ", target_->ExplainTo(edge.consumer, edge.producer)));
    }
    if (one.ends == 0) continue;
    const auto late =
        std::count_if(one.memory.begin(), one.memory.end(), [](char c) { return c != kGivenBack; });
    if (late > 0) Violate(one, absl::StrCat(": ", late, " bytes came when it had ended"));
  }
  for (const Edge& edge : edges_) {
    if (edge.arrived || !edge.sent || !ProducerLives(edge) || !ConsumerLives(edge)) continue;
    target_->Violate(absl::StrCat("what was sent as ", edge.key.text(), " has not arrived"));
  }
  for (const Group& group : groups_) {
    const bool all_live = std::all_of(group.members.begin(), group.members.end(),
                                      [this](const One* one) { return ConsumerLives(*one->edge); });
    if (group.cancelled && all_live && group.fenced == 0) target_->Violate("a fence never fell");
  }
}

void GatherLoad::CheckNothingLost() {
  for (const One& one : ones_) {
    if (one.ends == 0) Violate(one, " lost its callback");
  }
  for (const Group& group : groups_) {
    if (group.cancelled && group.fenced == 0) target_->Violate("a fence was lost");
  }
}

void GatherLoad::Drop() { steps_.clear(); }

void GatherLoad::Violate(const One& one, const std::string& what) {
  target_->Violate(absl::StrCat("gather ", one.id, " of ", one.edge->key.text(), what));
}

}  // namespace tryst
