#include "channel/rdma/link_lanes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reached.h"
#include "channel/rdma/wire.h"
#include "rendezvous/tensor.h"

namespace tryst {
namespace {

// The NIC takes the bytes of messages up to this size while they are posted.
constexpr uint32_t kInlineBytes = 192;

// The first capacity for the works of one turn; when it grows it stays so large.
constexpr size_t kFirstWorks = 8;

// A tensor's bytes stay as they are while anything refers to them.
std::shared_ptr<const void> KeepStorage(const void* owner) {
  auto* const storage = static_cast<Storage*>(const_cast<void*>(owner));
  storage->Ref();
  return std::make_shared<const StorageRef>(StorageRef::Own(storage));
}

}  // namespace

LinkLanes::LinkLanes(QueueHub* hub, const LinkOptions* options, const LinkMemory* memory,
                     std::function<void()> on_stall)
    : hub_(hub), options_(*options), memory_(*memory), on_stall_(std::move(on_stall)) {}

absl::Status LinkLanes::Open(QueuePairUser* user) {
  Nic* nic = hub_->nic();
  ordered_ = nic->limits().ordered;
  immediates_ = nic->limits().write_with_immediate;
  // Queue pairs take turns at the ports that are up.
  std::vector<uint8_t> ports;
  for (const NicPort& port : nic->Ports()) {
    if (port.state == PortState::kActive) ports.push_back(port.number);
  }
  inline_bytes_ = std::min(kInlineBytes, nic->limits().max_inline_bytes);
  for (uint32_t i = 0; i < options_.queue_pairs; ++i) {
    QueuePairOptions queue_pair_options;
    queue_pair_options.completions = hub_->completions();
    queue_pair_options.send_depth = options_.send_depth;
    queue_pair_options.receive_depth = ReceiveDepth(options_, i);
    if (!ports.empty()) queue_pair_options.port = ports[i % ports.size()];
    queue_pair_options.max_inline_bytes = inline_bytes_;
    queue_pair_options.ack_timeout = options_.ack_timeout;
    queue_pair_options.retry_count = options_.retry_count;
    queue_pair_options.dials = options_.dials;
    queue_pair_options.keep = &KeepStorage;
    // On a NIC that reorders, a tensor may need more receives than it has parts.
    if (!ordered_) queue_pair_options.rnr_retry_count = 7;
    auto queue_pair = nic->CreateQueuePair(queue_pair_options);
    if (!queue_pair.ok()) return queue_pair.status();
    hub_->AddUser((*queue_pair)->number(), user);
    Lane lane;
    lane.queue_pair = *std::move(queue_pair);
    lane.works.reserve(kFirstWorks);
    lane.entries.reserve(kFirstWorks);
    lane.receives_owed = ReceiveDepth(options_, i);
    lanes_.push_back(std::move(lane));
    const absl::Status posted = PostReceives(&lanes_.back());
    if (!posted.ok()) return posted;
  }
  return absl::OkStatus();
}

void LinkLanes::Destroy() {
  for (const Lane& lane : lanes_) hub_->RemoveUser(lane.queue_pair->number());
  lanes_.clear();
}

// A signaled completion frees room, so one work in every quarter of the queue is signaled: a full
// queue always has one under way.
void LinkLanes::AddWork(Lane* lane, SendWork work, const Entry& entry) {
  if (work.op == SendOp::kWriteWithImmediate && !immediates_) {
    const bool signaled = std::exchange(work.signaled, false);
    work.op = SendOp::kWrite;
    AddWork(lane, work, entry);
    return AddImmediate(lane, work.immediate, signaled);
  }
  work.id = ++lane->queued;
  ++lane->unsignaled;
  work.signaled = work.signaled || lane->unsignaled >= options_.send_depth / 4;
  if (work.signaled) lane->unsignaled = 0;
  lane->works.push_back(work);
  lane->entries.push_back(entry);
}

// Adds the immediate of the write before it, as a send of its own.
void LinkLanes::AddImmediate(Lane* lane, uint32_t immediate, bool signaled) {
  const uint64_t at =
      memory_.WordOut(static_cast<size_t>(lane - lanes_.data()), lane->next_word_out);
  lane->next_word_out = (lane->next_word_out + 1) % options_.send_depth;
  memcpy(reinterpret_cast<void*>(at), &immediate, sizeof(immediate));
  SendWork work;
  work.op = SendOp::kSend;
  work.signaled = signaled;
  AddWork(lane, work, memory_.Word(at));
}

absl::Status LinkLanes::PostReceives(Lane* lane) {
  if (!immediates_) return PostWordReceives(lane);
  // All are alike and have no memory: a write lands by itself and only uses up a receive.
  static const ReceiveWork works[64] = {};
  while (lane->receives_owed > 0) {
    const uint32_t count = std::min<uint32_t>(lane->receives_owed, 64);
    const absl::Status posted = lane->queue_pair->PostReceive(absl::MakeConstSpan(works, count));
    if (!posted.ok()) return posted;
    lane->receives_owed -= count;
  }
  return absl::OkStatus();
}

// Receives for sends of 4 bytes. Each has a word of its own, whose index is its id.
absl::Status LinkLanes::PostWordReceives(Lane* lane) {
  const size_t index = static_cast<size_t>(lane - lanes_.data());
  for (; lane->receives_owed > 0; --lane->receives_owed) {
    const Entry word = memory_.Word(memory_.WordIn(index, lane->next_word_in));
    ReceiveWork work;
    work.id = lane->next_word_in;
    work.entries = absl::MakeConstSpan(&word, 1);
    const absl::Status posted = lane->queue_pair->PostReceive(absl::MakeConstSpan(&work, 1));
    if (!posted.ok()) return posted;
    lane->next_word_in = (lane->next_word_in + 1) % ReceiveDepth(options_, index);
  }
  return absl::OkStatus();
}

absl::Status LinkLanes::PostSends(Lane* lane) {
  for (size_t i = 0; i < lane->works.size(); ++i) {
    lane->works[i].entries = absl::MakeConstSpan(&lane->entries[i], 1);
  }
  if (lane->has_payload) {
    // Signaled, so that the sources are free as soon as possible.
    lane->works.back().signaled = true;
    lane->unsignaled = 0;
    lane->has_payload = false;
  }
  const int64_t now_ns = hub_->poller()->now_ns();
  // Nothing is late that was not posted: a link may have been idle until the timer's last moment.
  if (lane->done >= lane->last_signaled) progress_ns_ = now_ns;
  for (const SendWork& work : lane->works) {
    if (work.signaled) lane->last_signaled = work.id;
  }
  if (!stall_timer_.is_set()) {
    hub_->poller()->SetTimer(&stall_timer_, now_ns + options_.stall_ms * 1'000'000);
  }
  const absl::Status posted = lane->queue_pair->PostSend(lane->works);
  lane->works.clear();
  lane->entries.clear();
  return posted;
}

void LinkLanes::OnStallTimer() {
  const bool waits = std::any_of(lanes_.begin(), lanes_.end(),
                                 [](const Lane& lane) { return lane.done < lane.last_signaled; });
  if (!waits) return;  // The next post sets the timer again.
  Poller* const poller = hub_->poller();
  const int64_t left_ns = options_.stall_ms * 1'000'000 - poller->RunningSince(progress_ns_);
  if (left_ns > 0) return poller->SetTimer(&stall_timer_, poller->now_ns() + left_ns);
  TRYST_REACHED("rare: no work completes");
  on_stall_();
}

uint32_t LinkLanes::Received(size_t lane, const Completion& completion) const {
  if (completion.bytes != LinkMemory::kWordBytes || immediates_) return wire::kNoImmediate;
  uint32_t word;
  memcpy(
      &word,
      reinterpret_cast<const uint8_t*>(memory_.WordIn(lane, static_cast<uint32_t>(completion.id))),
      sizeof(word));
  return word;
}

void LinkLanes::NoteDone(Lane* lane, uint64_t id) {
  lane->done = std::max(lane->done, id);
  progress_ns_ = last_completed_ns_ = hub_->poller()->now_ns();
}

absl::Status LinkLanes::Post() {
  // Receives first: what goes out now tells the peer that there is room for more.
  for (Lane& lane : lanes_) {
    if (lane.receives_owed < kReceivesInARun) continue;
    const absl::Status posted = PostReceives(&lane);
    if (!posted.ok()) return posted;
  }
  for (Lane& lane : lanes_) {
    if (lane.works.empty()) continue;
    const absl::Status posted = PostSends(&lane);
    if (!posted.ok()) return posted;
  }
  return absl::OkStatus();
}

}  // namespace tryst
