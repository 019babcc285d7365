#include "plugins/nccl/recv_comm.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst::nccl {
namespace {

constexpr uint64_t kEagerOffset = kAnnouncements * sizeof(Announcement);
// A group whose receives may all be met by eager messages need not be announced at once. Such
// groups are announced together, when there are kUnsaidGroups of them or when kFruitlessTests tests
// have found nothing: the sender may wait with something too large to send eagerly.
constexpr uint32_t kUnsaidGroups = 8;
constexpr int kFruitlessTests = 256;

}  // namespace

RecvComm::RecvComm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient,
                   bool reaches_gpus)
    : Comm(engine, std::move(device_name), std::move(rails), patient), reaches_gpus_(reaches_gpus) {
  // Eager messages are copied by the processor, which does not reach a GPU's memory.
  eager_bytes_ = reaches_gpus ? 0 : engine->settings.eager_bytes;
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].comm = this;
    groups_[i].index = static_cast<uint32_t>(i);
    flushes_[i].comm = this;
    flushes_[i].index = static_cast<uint32_t>(i);
    flushes_[i].flush = true;
  }
  parked_.reserve(kEagerSlots);
}

absl::Status RecvComm::Prepare(const Hello& hello) {
  announcements_ = hello.announcements;
  absl::StatusOr<std::unique_ptr<Arena>> arena = Arena::Make(
      rails()[0]->nic.get(), kEagerOffset + kEagerSlots * (sizeof(EagerHeader) + eager_bytes_));
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  for (Rail* rail : rails()) {
    if (!reaches_gpus_) break;
    absl::StatusOr<std::unique_ptr<Flusher>> flusher = Flusher::Make(rail->nic.get());
    if (!flusher.ok()) return flusher.status();
    flushers_.push_back(*std::move(flusher));
  }
  return absl::OkStatus();
}

RemoteRing RecvComm::eager() const {
  return {reinterpret_cast<uint64_t>(arena_->data()) + kEagerOffset, arena_->region().remote_key()};
}

// Called on any lane's thread for pieces and probes.
void RecvComm::OnImmediate(int lane, uint32_t immediate, uint64_t bytes) {
  const Immediate what = Immediate::Unpack(immediate);
  if (what.kind == Immediate::Kind::kPiece) {
    OnPiece(what, bytes);
  } else if (what.kind == Immediate::Kind::kProbe) {
    AnswerProbe(lane);
    CountProven();
  } else if (what.kind == Immediate::Kind::kEager && lane == 0) {
    OnEager(what.slot);
  } else {
    Fail(absl::DataLossError(absl::StrCat(
        PeerText(), " broke the protocol: it sends, and sent what only a receiver sends")));
  }
}

void RecvComm::OnPiece(const Immediate& what, uint64_t bytes) {
  Group& group = groups_[what.slot];
  const uint32_t sequence = group.sequence.load(std::memory_order_acquire);
  if ((sequence & Immediate::kGenerationMask) != what.generation ||
      group.left.load(std::memory_order_acquire) == 0 || what.receive >= group.count) {
    Fail(absl::DataLossError(
        absl::StrCat(PeerText(), " broke the protocol: it wrote to a receive that is not open")));
    return;
  }
  Receiving& receive = group.receives[what.receive];
  receive.landed.fetch_add(bytes, std::memory_order_relaxed);
  if (receive.pieces.fetch_add(1, std::memory_order_acq_rel) + 1 == what.pieces) {
    group.left.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void RecvComm::OnEager(uint32_t slot) {
  Parked message;
  message.slot = slot;
  memcpy(&message.header,
         arena_->data() + kEagerOffset + slot * (sizeof(EagerHeader) + eager_bytes_),
         sizeof(EagerHeader));
  // Groups posted since the sender's last news of us: those that are open, those that earlier eager
  // messages have ended, and those not yet announced.
  const uint32_t posted = next_group_ - message.header.groups_known;
  if (slot != eager_came_ % kEagerSlots || eager_held_[slot] ||
      message.header.bytes > eager_bytes_ || posted > kMaxRequests + kEagerSlots + kUnsaidGroups) {
    Fail(absl::DataLossError(
        absl::StrCat(PeerText(),
                     " broke the protocol: it sent a small message before its receive that is too "
                     "large, or for which no place is free")));
    return;
  }
  ++eager_came_;
  eager_held_[slot] = true;
  const uint32_t open = std::min<uint32_t>(posted, kMaxRequests);
  for (uint32_t sequence = next_group_ - open; sequence != next_group_; ++sequence) {
    Group& group = groups_[sequence % kMaxRequests];
    if (group.sequence.load(std::memory_order_relaxed) == sequence && Deliver(message, &group)) {
      return;
    }
  }
  parked_.push_back(message);
}

bool RecvComm::Deliver(const Parked& message, Group* group) {
  for (uint32_t i = 0; i < group->count; ++i) {
    Receiving& receive = group->receives[i];
    if (receive.met_eager || receive.tag != message.header.tag) continue;
    receive.met_eager = true;
    const uint64_t bytes = message.header.bytes;
    if (bytes > receive.bytes) {
      Fail(absl::OutOfRangeError(
          absl::StrCat("a send of ", bytes, " bytes with tag ", receive.tag, " from ", PeerText(),
                       " is larger than its receive, which takes ", receive.bytes)));
      return true;
    }
    if (bytes > 0) {
      memcpy(receive.data,
             arena_->data() + kEagerOffset + message.slot * (sizeof(EagerHeader) + eager_bytes_) +
                 sizeof(EagerHeader),
             bytes);
    }
    receive.landed.store(bytes, std::memory_order_relaxed);
    group->left.fetch_sub(1, std::memory_order_acq_rel);
    FreeEager(message.slot);
    return true;
  }
  return false;
}

// The sender uses the slots in turn, so they are freed in turn.
void RecvComm::FreeEager(uint32_t slot) {
  eager_held_[slot] = false;
  while (eager_freed_ < eager_came_ && !eager_held_[eager_freed_ % kEagerSlots]) ++eager_freed_;
}

Result RecvComm::Receive(int count, void** data, const uint64_t* bytes, const int* tags,
                         RegisteredMemory** memory, Request** request) {
  *request = nullptr;
  if (!Health(/*wanting=*/false).ok()) return FailureResult();
  Group& group = groups_[next_group_ % kMaxRequests];
  if (group.busy) return kSuccess;
  if (next_group_ - next_unsaid_ == kUnsaidGroups) Announce();
  const size_t unsaid = next_group_ - next_unsaid_;
  if (!first_lane()->HasRoom(unsaid + 1)) {
    Progress();
    if (!first_lane()->HasRoom(unsaid + 1)) return kSuccess;
  }
  for (int i = 0; i < count; ++i) {
    if (bytes[i] > 0 && (memory[i] == nullptr || !memory[i]->Covers(data[i], bytes[i]))) {
      Fail(absl::InvalidArgumentError(absl::StrCat("a receive of ", bytes[i], " bytes with tag ",
                                                   tags[i],
                                                   " is into memory that NCCL did not register")));
      return FailureResult();
    }
  }
  group.count = static_cast<uint32_t>(count);
  for (int i = 0; i < count; ++i) {
    Receiving& receive = group.receives[static_cast<size_t>(i)];
    receive.data = static_cast<uint8_t*>(data[i]);
    receive.bytes = bytes[i];
    receive.tag = tags[i];
    receive.met_eager = false;
    receive.landed.store(0, std::memory_order_relaxed);
    receive.pieces.store(0, std::memory_order_relaxed);
  }
  group.left.store(group.count, std::memory_order_relaxed);
  group.sequence.store(next_group_, std::memory_order_release);
  group.busy = true;
  Compose(group, memory);
  ++next_group_;
  for (size_t i = 0; i < parked_.size();) {
    if (Deliver(parked_[i], &group)) {
      parked_.erase(parked_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  announcement_due_ = announcement_due_ || WantsMore(group);
  if (announcement_due_) Announce();
  *request = &group;
  return kSuccess;
}

Announcement* RecvComm::news(uint32_t sequence) {
  return reinterpret_cast<Announcement*>(arena_->data()) + sequence % kAnnouncements;
}

void RecvComm::Compose(const Group& group, RegisteredMemory** memory) {
  const uint32_t sequence = group.sequence.load(std::memory_order_relaxed);
  Announcement* const news = this->news(sequence);
  news->count = group.count;
  news->sequence = sequence;
  for (uint32_t i = 0; i < group.count; ++i) {
    AnnouncedReceive& receive = news->receives[i];
    receive.address = reinterpret_cast<uint64_t>(group.receives[i].data);
    receive.bytes = group.receives[i].bytes;
    receive.tag = group.receives[i].tag;
    if (receive.bytes == 0) continue;
    for (size_t rail = 0; rail < memory[i]->rails(); ++rail) {
      receive.keys[rail] = memory[i]->remote_key(rail);
    }
  }
}

// A lane that is broken fails the comm only later, because a sender that closed in order may have
// sent all that is wanted.
void RecvComm::Announce() {
  const uint32_t count = next_group_ - next_unsaid_;
  if (count == 0) return;
  Entry entries[kUnsaidGroups];
  SendWork works[kUnsaidGroups];
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t sequence = next_unsaid_ + i;
    Announcement* const news = this->news(sequence);
    news->eager_freed = eager_freed_;
    entries[i].address = reinterpret_cast<uint64_t>(news);
    entries[i].bytes = offsetof(Announcement, receives) + news->count * sizeof(AnnouncedReceive);
    entries[i].local_key = arena_->region().local_key();
    Immediate immediate;
    immediate.kind = Immediate::Kind::kAnnouncement;
    immediate.slot = static_cast<uint8_t>(sequence % kMaxRequests);
    works[i].op = SendOp::kWriteWithImmediate;
    works[i].entries = absl::Span<const Entry>(&entries[i], 1);
    works[i].remote_address =
        announcements_.address + sequence % kAnnouncements * sizeof(Announcement);
    works[i].remote_key = announcements_.key;
    works[i].immediate = immediate.Pack();
  }
  next_unsaid_ = next_group_;
  fruitless_tests_ = 0;
  announcement_due_ = false;
  first_lane()->Write(absl::Span<SendWork>(works, count));
}

// Whether the sender must know of the group before it can send everything.
bool RecvComm::WantsMore(const Group& group) const {
  if (group.left.load(std::memory_order_relaxed) == 0) return false;
  if (eager_bytes_ == 0) return true;
  for (uint32_t i = 0; i < group.count; ++i) {
    if (group.receives[i].bytes > eager_bytes_) return true;
  }
  return false;
}

Result RecvComm::Flush(int count, void** data, const int* bytes, RegisteredMemory** memory,
                       Request** request) {
  *request = nullptr;
  int last = -1;
  for (int i = 0; i < count; ++i) {
    if (bytes[i] > 0 && memory[i] != nullptr && memory[i]->on_device()) last = i;
  }
  if (last < 0 || flushers_.empty()) return kSuccess;
  const auto free = std::find_if(flushes_.begin(), flushes_.end(),
                                 [](const FlushRequest& one) { return !one.busy; });
  if (free == flushes_.end()) return kSuccess;
  // Any rail may have carried the last byte, so all are flushed.
  for (size_t rail = 0; rail < flushers_.size(); ++rail) {
    const absl::Status started = flushers_[rail]->Start(reinterpret_cast<uint64_t>(data[last]),
                                                        memory[last]->remote_key(rail));
    if (!started.ok()) {
      Fail(started);
      return FailureResult();
    }
  }
  free->busy = true;
  free->ticket = flushers_[0]->started();
  *request = &*free;
  return kSuccess;
}

Result RecvComm::Test(Request* request, int* done, int* sizes) {
  *done = 0;
  if (request->flush) {
    auto* const flush = static_cast<FlushRequest*>(request);
    bool all = true;
    for (const std::unique_ptr<Flusher>& flusher : flushers_) {
      const absl::StatusOr<uint64_t> ended = flusher->Ended();
      if (!ended.ok()) {
        Fail(ended.status());
        return FailureResult();
      }
      all = all && *ended >= flush->ticket;
    }
    if (!all) return kSuccess;
    flush->busy = false;
    *done = 1;
    return kSuccess;
  }
  auto* const group = static_cast<Group*>(request);
  if (group->left.load(std::memory_order_acquire) > 0) Progress();
  if (group->left.load(std::memory_order_acquire) > 0) {
    if (next_unsaid_ != next_group_ && ++fruitless_tests_ > kFruitlessTests) {
      announcement_due_ = true;
    }
    if (announcement_due_) Announce();
    return Health(/*wanting=*/true).ok() ? kSuccess : FailureResult();
  }
  for (uint32_t i = 0; i < group->count; ++i) {
    const uint64_t landed = group->receives[i].landed.load(std::memory_order_relaxed);
    if (sizes != nullptr) sizes[i] = static_cast<int>(landed);
  }
  group->busy = false;
  *done = 1;
  return kSuccess;
}

}  // namespace tryst::nccl
