#include "tests/doubles/sim_nic/sim_nic.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/doubles/sim_nic/sim_completion_queue.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

NicLimits SimNicOptions::DefaultLimits() {
  NicLimits limits;
  limits.max_message_bytes = uint64_t{1} << 30;
  limits.max_entries = 16;
  limits.max_inline_bytes = 256;
  limits.max_send_depth = 8192;
  limits.max_receive_depth = 8192;
  limits.max_completion_depth = 1u << 20;
  limits.max_reads_in_flight = 16;
  limits.renews_keys = true;
  return limits;
}

SimNic::SimNic(SimWorld* world, uint32_t place, uint32_t salt, const SimNicOptions& options)
    : world_(world), place_(place), options_(options), keys_(&world->guard(), salt) {}

SimNic::~SimNic() {
  TRYST_CHECK(queue_pairs_.empty() && completion_queues_.empty())
      << name() << " is destroyed before what was made from it";
  TRYST_CHECK(keys_.regions() == 0) << name() << " is destroyed before its regions";
  world_->OnNicGone(this);
}

std::string SimNic::name() const { return absl::StrCat("sim", place_); }

std::vector<NicPort> SimNic::Ports() const {
  std::vector<NicPort> ports;
  const LinkModel& link = world_->fabric().link(place_, place_);
  for (uint8_t number = 1; number <= options_.ports; ++number) {
    NicPort port;
    port.number = number;
    const bool up = !lost_ && world_->fabric().port_up(place_, number);
    port.state = up ? PortState::kActive : PortState::kDown;
    port.mtu_bytes = static_cast<uint32_t>(world_->options().chunk_bytes);
    port.bits_per_second = static_cast<uint64_t>(link.bytes_per_second) * 8;
    port.address =
        absl::StrCat("place ", place_, " version ", world_->fabric().address_version(place_));
    port.description = "simulated; an MTU is a chunk of the simulation";
    ports.push_back(std::move(port));
  }
  return ports;
}

absl::StatusOr<std::unique_ptr<Region>> SimNic::RegisterRegion(void* address, uint64_t bytes,
                                                               uint32_t access) {
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  if (address == nullptr || bytes == 0 || start + bytes < start) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": cannot register ", bytes, " B at ", start));
  }
  if (lost_) return absl::UnavailableError(name() + " is lost");
  bool fails = world_->faults().RegistrationFails();
  if (fails) world_->NoteFailedRegistration();
  if (registrations_to_fail_ > 0) {
    --registrations_to_fail_;
    fails = true;
  }
  if (fails || keys_.regions() >= options_.max_regions ||
      bytes > options_.max_region_bytes - keys_.region_bytes()) {
    world_->Note(TraceKind::kFault, place_, 0, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat(name(), ": no room to register ", bytes, " B beside ", keys_.region_bytes(),
                     " B in ", keys_.regions(),
                     " regions (SimNicOptions::max_region_bytes, "
                     "max_regions, or a fault that was asked for)"));
  }
  world_->Note(TraceKind::kRegister, place_, bytes, access);
  return std::unique_ptr<Region>(new SimRegion(this, address, bytes, access));
}

absl::StatusOr<std::unique_ptr<Region>> SimNic::RegisterDmaBuf(int, uint64_t, uint64_t, uint64_t,
                                                               uint32_t) {
  return absl::UnimplementedError(name() + ": the simulator has no device memory");
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> SimNic::CreateCompletionQueue(uint32_t depth) {
  if (depth == 0 || depth > options_.limits.max_completion_depth) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": completion queue of ", depth, ", 1 to ", options_.limits.max_completion_depth));
  }
  if (lost_) return absl::UnavailableError(name() + " is lost");
  auto queue = std::make_unique<SimCompletionQueue>(this, depth);
  completion_queues_.push_back(queue.get());
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

absl::StatusOr<std::unique_ptr<QueuePair>> SimNic::CreateQueuePair(
    const QueuePairOptions& options) {
  const NicLimits& limits = options_.limits;
  if (options.completions == nullptr || options.port == 0 || options.port > options_.ports ||
      options.send_depth == 0 || options.send_depth > limits.max_send_depth ||
      options.receive_depth > limits.max_receive_depth ||
      options.max_entries > limits.max_entries ||
      options.max_inline_bytes > limits.max_inline_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": queue pair over the limits: send depth ", options.send_depth, "/",
                     limits.max_send_depth, ", receive depth ", options.receive_depth, "/",
                     limits.max_receive_depth, ", entries ", options.max_entries, "/",
                     limits.max_entries, ", inline bytes ", options.max_inline_bytes, "/",
                     limits.max_inline_bytes, ", port ", options.port, " of ", options_.ports));
  }
  if (lost_) return absl::UnavailableError(name() + " is lost");
  auto* const queue = static_cast<SimCompletionQueue*>(options.completions);
  if (queue->overrun()) return absl::UnavailableError(name() + ": that completion queue overran");
  if (!queue->Reserve(options.send_depth + options.receive_depth)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name(), ": the completion queue has no room for ", options.send_depth, " + ",
                     options.receive_depth, " works more"));
  }
  auto pair = std::make_unique<SimQueuePair>(this, options, next_number_++);
  queue_pairs_.push_back(pair.get());
  return std::unique_ptr<QueuePair>(std::move(pair));
}

absl::optional<NicEvent> SimNic::NextEvent() {
  if (events_.empty()) return absl::nullopt;
  const NicEvent event = events_.front();
  events_.pop_front();
  return event;
}

void SimNic::AddEvent(const NicEvent& event) {
  world_->Note(TraceKind::kNicEvent, place_, static_cast<uint64_t>(event.kind),
               event.id != 0 ? event.id : event.port);
  events_.push_back(event);
  NoteWork();
}

void SimNic::Lose() {
  lost_ = true;
  keys_.Clear();
  for (SimQueuePair* pair : queue_pairs_) pair->OnNicLost();
  NoteWork();
}

const QueuePair& SimNic::queue_pair(size_t nth) const { return *queue_pairs_[nth]; }

SimCompletionQueue* SimNic::completion_queue(size_t nth) const {
  return nth < completion_queues_.size() ? completion_queues_[nth] : nullptr;
}

void SimNic::Overrun(SimCompletionQueue* queue) {
  if (queue->overrun()) return;
  queue->Overrun();
  AddEvent({NicEvent::Kind::kCompletionQueueFatal, 0, 0});
  // Copied, because breaking one may destroy another.
  const std::vector<SimQueuePair*> pairs = queue_pairs_;
  for (SimQueuePair* pair : pairs) {
    if (pair->completions() == queue) pair->BreakByError();
  }
}

void SimNic::OnRegionGone(uint32_t key, uint64_t bytes) {
  world_->Note(TraceKind::kDeregister, place_, bytes);
  keys_.RemoveRegion(key);
}

void SimNic::OnGone(SimQueuePair* queue_pair) {
  queue_pairs_.erase(std::find(queue_pairs_.begin(), queue_pairs_.end(), queue_pair));
}

void SimNic::OnGone(SimCompletionQueue* queue) {
  completion_queues_.erase(std::find(completion_queues_.begin(), completion_queues_.end(), queue));
}

}  // namespace tryst
