#include "plugins/nccl/send_comm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst::nccl {
namespace {

constexpr uint64_t kHeadersOffset = kAnnouncements * sizeof(Announcement);

}  // namespace

SendComm::SendComm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient,
                   uint64_t max_bytes)
    : Comm(engine, std::move(device_name), std::move(rails), patient),
      max_bytes_(max_bytes),
      requests_(kRequests) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    requests_[i].comm = this;
    requests_[i].index = static_cast<uint32_t>(i);
  }
  unclaimed_.reserve(kEagerSlots);
}

absl::Status SendComm::Prepare() {
  absl::StatusOr<std::unique_ptr<Arena>> arena =
      Arena::Make(rails()[0]->nic.get(), kHeadersOffset + kEagerSlots * sizeof(EagerHeader));
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  return absl::OkStatus();
}

RemoteRing SendComm::announcements() const {
  return {reinterpret_cast<uint64_t>(arena_->data()), arena_->region().remote_key()};
}

void SendComm::TakeWelcome(const Welcome& welcome) {
  eager_ = welcome.eager;
  eager_bytes_ = welcome.eager_bytes;
}

const Announcement& SendComm::announced(uint32_t sequence) const {
  return reinterpret_cast<const Announcement*>(arena_->data())[sequence % kAnnouncements];
}

// Announcements arrive in order, because they use only the first lane.
void SendComm::OnImmediate(int lane, uint32_t immediate, uint64_t) {
  const Immediate what = Immediate::Unpack(immediate);
  if (lane == 0 && what.kind == Immediate::Kind::kAnnouncement &&
      what.slot == next_group_ % kMaxRequests) {
    TakeAnnouncement(what.slot);
  } else if (what.kind == Immediate::Kind::kProbe) {
    CountProven();
  } else {
    Fail(absl::DataLossError(absl::StrCat(
        PeerText(), " broke the protocol: it receives, and sent what only a sender sends")));
  }
}

void SendComm::TakeAnnouncement(uint32_t slot) {
  SkipUsedGroups();
  // In memory that the peer writes: what is judged is what is used.
  const Announcement news = announced(next_group_);
  if (news.count == 0 || news.count > kMaxGroup || news.sequence != next_group_ ||
      next_group_ - first_group_ >= kMaxRequests || news.eager_freed > eager_sent_ ||
      news.eager_freed < eager_freed_) {
    Fail(absl::DataLossError(absl::StrCat(
        PeerText(),
        " broke the protocol: it announced more receives than may be open, or malformed ones")));
    return;
  }
  eager_freed_ = news.eager_freed;
  Group& group = groups_[slot];
  group.count = news.count;
  group.used = 0;
  ++next_group_;
  // Messages that were sent eagerly belong to the first receives of their tag.
  for (uint32_t i = 0; i < group.count; ++i) {
    const auto waiting = std::find(unclaimed_.begin(), unclaimed_.end(), news.receives[i].tag);
    if (waiting == unclaimed_.end()) continue;
    unclaimed_.erase(waiting);
    group.used |= 1u << i;
  }
}

void SendComm::SkipUsedGroups() {
  while (first_group_ != next_group_) {
    const Group& group = groups_[first_group_ % kMaxRequests];
    if (group.used != (1u << group.count) - 1) break;
    ++first_group_;
  }
}

bool SendComm::FindReceive(int tag, uint32_t* sequence, uint32_t* receive) {
  SkipUsedGroups();
  for (*sequence = first_group_; *sequence != next_group_; ++*sequence) {
    const Group& group = groups_[*sequence % kMaxRequests];
    for (*receive = 0; *receive < group.count; ++*receive) {
      if ((group.used >> *receive & 1) != 0) continue;
      if (announced(*sequence).receives[*receive].tag == tag) return true;
    }
  }
  return false;
}

SendComm::SendRequest* SendComm::FreeRequest() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    SendRequest& request = requests_[next_request_];
    next_request_ = (next_request_ + 1) % requests_.size();
    if (!request.busy) return &request;
  }
  return nullptr;
}

Result SendComm::Send(const void* data, uint64_t bytes, int tag, const RegisteredMemory* memory,
                      Request** request) {
  *request = nullptr;
  if (failed()) {
    (void)Health(true);
    return FailureResult();
  }
  if (bytes > max_bytes_ || (bytes > 0 && (memory == nullptr || !memory->Covers(data, bytes)))) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("a send of ", bytes, " bytes with tag ", tag,
                     bytes > max_bytes_ ? " is larger than the device's limit"
                                        : " is from memory that NCCL did not register")));
    return FailureResult();
  }
  uint32_t sequence = 0;
  uint32_t receive = 0;
  bool found = FindReceive(tag, &sequence, &receive);
  if (!found) {
    Progress();
    found = FindReceive(tag, &sequence, &receive);
  }
  const bool ahead = !found && bytes <= eager_bytes_ && eager_bytes_ > 0 &&
                     eager_sent_ - eager_freed_ < kEagerSlots && first_lane()->HasRoom();
  const absl::Status health = Health(/*wanting=*/!found);
  if (!health.ok()) return FailureResult();
  SendRequest* const free = found || ahead ? FreeRequest() : nullptr;
  if (free == nullptr) return kSuccess;
  free->source.data = static_cast<const uint8_t*>(data);
  free->source.bytes = bytes;
  for (size_t rail = 0; bytes > 0 && rail < memory->rails(); ++rail) {
    free->source.local_keys[rail] = memory->local_key(rail);
  }
  const bool on_device = bytes > 0 && memory->on_device();
  const Result result =
      found ? SendTo(announced(sequence).receives[receive], sequence, receive, on_device, free)
            : SendAhead(tag, on_device, free);
  if (result != kSuccess) return result;
  free->busy = true;
  *request = free;
  return kSuccess;
}

bool SendComm::Write(SendWork work, bool on_device, SendRequest* request) {
  PieceSource& source = request->source;
  source.pieces = 1;
  source.pieces_left.store(1, std::memory_order_relaxed);
  request->taken = work.inline_data = source.bytes <= small_bytes() && !on_device;
  if (!first_lane()->Write(absl::MakeSpan(&work, 1), request->taken ? nullptr : &source)) {
    request->taken = false;
    return false;
  }
  if (request->taken && first_lane()->AllLeft()) source.pieces_left.store(0);
  return true;
}

Result SendComm::SendTo(const AnnouncedReceive& to, uint32_t sequence, uint32_t receive,
                        bool on_device, SendRequest* request) {
  PieceSource& source = request->source;
  if (source.bytes > to.bytes) {
    Fail(absl::OutOfRangeError(
        absl::StrCat("a send of ", source.bytes, " bytes with tag ", to.tag, " to ", PeerText(),
                     " is larger than its receive, which takes ", to.bytes)));
    return FailureResult();
  }
  groups_[sequence % kMaxRequests].used |= 1u << receive;
  source.remote_address = to.address;
  std::copy(std::begin(to.keys), std::end(to.keys), source.remote_keys.begin());
  CutIntoPieces(&source);
  Immediate immediate;
  immediate.kind = Immediate::Kind::kPiece;
  immediate.slot = static_cast<uint8_t>(sequence % kMaxRequests);
  immediate.receive = static_cast<uint8_t>(receive);
  immediate.pieces = static_cast<uint16_t>(source.pieces);
  immediate.generation = static_cast<uint16_t>(sequence & Immediate::kGenerationMask);
  source.immediate = immediate.Pack();
  request->taken = false;
  if (source.bytes > small_bytes() || on_device || !first_lane()->HasRoom()) {
    Offer(&source);
    return kSuccess;
  }
  const Entry entry = {reinterpret_cast<uint64_t>(source.data), source.bytes, 0};
  SendWork work;
  work.op = SendOp::kWriteWithImmediate;
  work.entries = absl::Span<const Entry>(&entry, source.bytes > 0 ? 1 : 0);
  work.remote_address = source.remote_address;
  work.remote_key = source.remote_keys[first_lane()->remote_rail()];
  work.immediate = source.immediate;
  Write(work, on_device, request);  // If it fails, Health() reports it.
  return kSuccess;
}

Result SendComm::SendAhead(int tag, bool on_device, SendRequest* request) {
  PieceSource& source = request->source;
  const uint32_t slot = static_cast<uint32_t>(eager_sent_ % kEagerSlots);
  auto* const header = reinterpret_cast<EagerHeader*>(arena_->data() + kHeadersOffset) + slot;
  header->tag = tag;
  header->bytes = static_cast<uint32_t>(source.bytes);
  header->groups_known = next_group_;
  const Entry entries[2] = {
      {reinterpret_cast<uint64_t>(header), sizeof(EagerHeader), arena_->region().local_key()},
      {reinterpret_cast<uint64_t>(source.data), source.bytes,
       source.bytes > 0 ? source.local_keys[first_lane()->rail()] : 0}};
  Immediate immediate;
  immediate.kind = Immediate::Kind::kEager;
  immediate.slot = static_cast<uint8_t>(slot);
  SendWork work;
  work.op = SendOp::kWriteWithImmediate;
  work.entries = absl::Span<const Entry>(entries, source.bytes > 0 ? 2 : 1);
  work.remote_address = eager_.address + slot * (sizeof(EagerHeader) + eager_bytes_);
  work.remote_key = eager_.key;
  work.immediate = immediate.Pack();
  if (!Write(work, on_device, request)) return kSuccess;  // If it fails, Health() reports it.
  ++eager_sent_;
  unclaimed_.push_back(tag);
  return kSuccess;
}

bool SendComm::Done(const SendRequest& request) {
  return request.source.pieces_left.load(std::memory_order_acquire) == 0 ||
         (request.taken && first_lane()->AllLeft());
}

Result SendComm::Test(Request* request, int* done, int* sizes) {
  auto* const mine = static_cast<SendRequest*>(request);
  *done = 0;
  if (!Done(*mine)) Progress();
  if (Done(*mine)) {
    *done = 1;
    if (sizes != nullptr) sizes[0] = static_cast<int>(mine->source.bytes);
    mine->busy = false;
    return kSuccess;
  }
  return Health(/*wanting=*/true).ok() ? kSuccess : FailureResult();
}

}  // namespace tryst::nccl
