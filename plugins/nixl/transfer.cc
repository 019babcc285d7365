#include "plugins/nixl/transfer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst::nixl {
namespace {

// A small READ is waited for where it is posted, so much at most: that thread then does the work
// of the one that would have to wake it.
constexpr uint64_t kSmallBytes = 64 << 10;
constexpr int64_t kWaitMs = 1;
constexpr int64_t kHereMs = 1000;
constexpr int64_t kQuietMs = 20;
// A target that has not answered for so long is taken for dead.
constexpr int64_t kLostMs = 30'000;

std::atomic<uint64_t> last_put{
    0};  // All agents of the process count in it; a peer sees those of one.

}  // namespace

absl::StatusOr<std::unique_ptr<Transfer>> Transfer::Prepare(const Agent* agent,
                                                            abi::Operation operation,
                                                            const abi::Spans& mine,
                                                            const abi::Spans& theirs,
                                                            const PeerName& peer) {
  if (mine.items.size() != theirs.items.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", mine.items.size(),
                                                   " spans here and ", theirs.items.size(),
                                                   " there: give as many"));
  }
  if (mine.kind != abi::kDram || theirs.kind != abi::kDram) {
    return absl::UnimplementedError("only memory of the host is moved: register it as DRAM");
  }
  std::unique_ptr<Transfer> transfer(new Transfer(agent, operation, peer));
  const bool is_own = peer.worker == agent->worker->name().worker;
  for (size_t i = 0; i < mine.items.size(); ++i) {
    const abi::Span &here = mine.items[i], &there = theirs.items[i];
    absl::Status status = is_own ? transfer->AddCopy(here, there) : transfer->Add(here, there);
    if (!status.ok()) return status;
  }
  absl::Status status = transfer->Seal();
  if (!status.ok()) return status;
  return transfer;
}

absl::Status Transfer::AddCopy(const abi::Span& mine, const abi::Span& theirs) {
  const auto* const here = dynamic_cast<const OwnMemoryHandle*>(mine.memory);
  const auto* const there = dynamic_cast<const OwnMemoryHandle*>(theirs.memory);
  if (here == nullptr || there == nullptr || mine.bytes != theirs.bytes ||
      !here->memory->Has(mine.address, mine.bytes) ||
      !there->memory->Has(theirs.address, theirs.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a span of ", mine.bytes, " bytes does not lie in registered memory"));
  }
  for (const auto& memory : {here->memory, there->memory}) {
    if (std::find(copied_.begin(), copied_.end(), memory) == copied_.end()) {
      copied_.push_back(memory);
    }
  }
  void* const ours = reinterpret_cast<void*>(mine.address);
  void* const others = reinterpret_cast<void*>(theirs.address);
  const bool reads = operation_ == abi::kRead;
  copies_.push_back({reads ? ours : others, reads ? others : ours, mine.bytes});
  bytes_ += mine.bytes;
  return absl::OkStatus();
}

absl::Status Transfer::Add(const abi::Span& mine, const abi::Span& theirs) {
  const auto* const here = dynamic_cast<const OwnMemoryHandle*>(mine.memory);
  const auto* const there = dynamic_cast<const RemoteMemoryHandle*>(theirs.memory);
  if (here == nullptr || there == nullptr || mine.bytes != theirs.bytes ||
      !here->memory->Has(mine.address, mine.bytes) || theirs.address < there->address ||
      theirs.bytes > there->bytes ||
      theirs.address - there->address > there->bytes - theirs.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a span of ", mine.bytes, " bytes does not lie in registered memory"));
  }
  if (mine.bytes == 0) return absl::OkStatus();
  const tryst_span at = {mine.address - here->memory->address(), mine.bytes};
  const tryst_span from = {theirs.address - there->address, theirs.bytes};
  bytes_ += mine.bytes;
  MutexLock lock(&mu_);
  // Spans of one pair of memories mostly follow each other.
  size_t i = parts_.size();
  while (i > 0 && (parts_[i - 1].mine != here->memory || parts_[i - 1].theirs != there->id)) --i;
  if (i == 0) {
    parts_.emplace_back();
    i = parts_.size();
    parts_[i - 1].mine = here->memory;
    parts_[i - 1].theirs = there->id;
  }
  Part& part = parts_[i - 1];
  if (!part.here.empty() && part.here.back().offset + part.here.back().bytes == at.offset &&
      part.there.back().offset + part.there.back().bytes == from.offset) {
    part.here.back().bytes += at.bytes;
    part.there.back().bytes += at.bytes;
  } else {
    part.here.push_back(at);
    part.there.push_back(from);
  }
  return absl::OkStatus();
}

absl::Status Transfer::Seal() {
  MutexLock lock(&mu_);
  if (operation_ == abi::kRead) {
    for (Part& part : parts_) {
      part.key = agent_->worker->Key(peer_, absl::StrCat("|region|", RegionName(part.theirs), "|"));
    }
    return absl::OkStatus();
  }
  std::vector<PutPart> parts;
  for (const Part& part : parts_) {
    PutPart put;
    put.target = part.theirs;
    put.source = part.mine->id();
    for (size_t i = 0; i < part.here.size(); ++i) {
      put.spans.push_back({part.there[i].offset, part.here[i].offset, part.here[i].bytes});
    }
    parts.push_back(std::move(put));
  }
  record_ = WritePutParts(parts);
  return absl::OkStatus();
}

abi::Status Transfer::Post(const std::string* note) {
  MutexLock lock(&mu_);
  if (state_ != State::kIdle) return abi::kStillActive;
  if (note != nullptr && note->size() > kMaxNotification) {
    return EndWith(absl::InvalidArgumentError(absl::StrCat(
        "a notification has ", note->size(), " bytes, and may have ", kMaxNotification)));
  }
  has_note_ = note != nullptr;
  note_ = has_note_ ? *note : std::string();
  state_ = State::kMoving;
  const absl::Status posted = PostLocked();
  if (!posted.ok()) {
    // What did start must end first.
    failure_ = posted;
    if (group_ != nullptr) tryst_group_cancel(group_.get());
  }
  return Advance(operation_ == abi::kRead && bytes_ <= kSmallBytes ? kWaitMs : 0);
}

absl::Status Transfer::PostLocked() {
  failure_ = absl::OkStatus();
  if (!copies_.empty() || peer_.worker == agent_->worker->name().worker) return CopyAll();
  return operation_ == abi::kRead ? PostRead() : PostWrite();
}

absl::Status Transfer::CopyAll() {
  size_t begun = 0;
  while (begun < copied_.size() && copied_[begun]->BeginCopy()) ++begun;
  const bool are_there = begun == copied_.size();
  if (are_there) {
    for (const Copy& copy : copies_) memmove(copy.to, copy.from, copy.bytes);
  }
  while (begun > 0) copied_[--begun]->EndCopy();
  if (are_there) return absl::OkStatus();
  return absl::NotFoundError("memory of the agent's own has been deregistered");
}

absl::Status Transfer::PostRead() {
  absl::StatusOr<Group> group = MakeGroup();
  if (!group.ok()) return group.status();
  group_ = *std::move(group);
  for (Part& part : parts_) {
    if (!part.mine->Enter(group_)) {
      return absl::NotFoundError("the memory that the READ fills has been deregistered");
    }
    const tryst_selection lands = {TRYST_SELECT_SPANS, 0, 0, part.here.data(), part.here.size()};
    const tryst_selection comes = {TRYST_SELECT_SPANS, 0, 0, part.there.data(), part.there.size()};
    tryst_op* op = nullptr;
    const absl::Status started = StatusOf(tryst_gather_start(
        agent_->worker->server(), kStep, part.key.c_str(), &comes, part.mine->tensor(), &lands,
        nullptr, -1, group_.get(), nullptr, nullptr, &op));
    part.op.reset(op);
    if (!started.ok()) return started;
  }
  return absl::OkStatus();
}

absl::Status Transfer::PostWrite() {
  put_id_ = ++last_put;
  if (bytes_ == 0 && !has_note_) return absl::OkStatus();
  auto put = agent_->worker->AskPeer(
      peer_, "put", WritePut(put_id_, agent_->name, has_note_ ? &note_ : nullptr, record_), -1);
  if (!put.ok()) return put.status();
  put_ = *std::move(put);
  return absl::OkStatus();
}

bool Transfer::Moved(int64_t timeout_ms, absl::Status* status) {
  for (Part& part : parts_) {
    if (part.op != nullptr && tryst_op_wait(part.op.get(), timeout_ms) == 0) return false;
  }
  if (put_ != nullptr && !put_->Ended(timeout_ms)) return false;
  *status = failure_;
  for (Part& part : parts_) {
    if (part.op != nullptr && status->ok()) *status = EndOf(part.op.get());
  }
  if (put_ != nullptr && status->ok()) *status = put_->status();
  LeaveMemory();
  put_ = nullptr;
  return true;
}

void Transfer::LeaveMemory() {
  for (Part& part : parts_) {
    part.op = nullptr;
    if (group_ != nullptr) part.mine->Leave(group_);
  }
  group_ = nullptr;
}

abi::Status Transfer::Check(bool waits) {
  MutexLock lock(&mu_);
  return Advance(waits ? kWaitMs : 0);
}

abi::Status Transfer::Advance(int64_t timeout_ms) {
  absl::Status status;
  switch (state_) {
    case State::kIdle:
      return end_;
    case State::kMoving:
      if (!Moved(timeout_ms, &status)) return abi::kInProgress;
      return OnMoved(status);
    case State::kTelling:
      if (!delivery_->Ended(timeout_ms)) return abi::kInProgress;
      return EndWith(delivery_->status());
    case State::kAsking:
      if (!here_->Ended(timeout_ms)) return abi::kInProgress;
      status = here_->status();
      here_ = nullptr;
      if (status.ok()) {
        return EndWith(
            absl::NotFoundError(absl::StrCat("the peer lives, and what it was asked for is gone (",
                                             failure_.message(), "): load its metadata again")));
      }
      return EndWith(failure_);
    case State::kGone:
      return abi::kCancelled;
  }
  return abi::kUnknown;
}

abi::Status Transfer::OnMoved(const absl::Status& status) {
  if (status.ok()) {
    const bool told = operation_ == abi::kWrite && copies_.empty() &&
                      peer_.worker != agent_->worker->name().worker;
    if (!has_note_ || told) return EndWith(status);
    if (peer_.worker == agent_->worker->name().worker) {
      agent_->inbox->Add(agent_->name, {std::move(note_)}, [] {});
      return EndWith(status);
    }
    delivery_ = std::make_shared<Delivery>();
    const absl::Status sent = agent_->outbox->Send(peer_, std::move(note_), delivery_);
    if (!sent.ok()) return EndWith(sent);
    state_ = State::kTelling;
    return Advance(0);
  }
  failure_ = status;
  if (status.code() == absl::StatusCode::kUnavailable) {
    auto here = agent_->worker->AskPeer(peer_, "here", "", kHereMs);
    if (here.ok()) {
      here_ = *std::move(here);
      state_ = State::kAsking;
      return abi::kInProgress;
    }
  }
  return EndWith(status);
}

abi::Status Transfer::EndWith(const absl::Status& status) {
  state_ = State::kIdle;
  delivery_ = nullptr;
  end_ = NixlStatus(status);
  if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
    TRYST_LOG(Warning) << "a " << (operation_ == abi::kRead ? "READ of " : "WRITE to ")
                       << peer_.worker << " at " << peer_.address
                       << " has failed: " << status.message();
  }
  return end_;
}

bool Transfer::Quiet() {
  MutexLock lock(&mu_);
  if (state_ != State::kMoving && state_ != State::kGone) return true;
  const bool again = std::exchange(state_, State::kGone) == State::kGone;
  if (operation_ == abi::kRead) {
    if (group_ == nullptr) return true;
    tryst_group_cancel(group_.get());
    if (tryst_group_fenced(group_.get(), again ? -1 : kQuietMs) == 0) return false;
    LeaveMemory();
    return true;
  }
  if (put_ == nullptr) return true;
  const bool ended = Stopped(again ? kLostMs : kQuietMs);
  if (!ended && !again) return false;
  if (!ended || (stop_ != nullptr && stop_->Ended(0) && !stop_->status().ok())) {
    TRYST_LOG(Warning) << "the target " << peer_.worker << " at " << peer_.address
                       << " has not said that it stopped a WRITE that was released. If it lives, "
                          "bytes may land in its memory until it has heard of it";
  }
  put_ = nullptr;
  return true;
}

// Whether the target has stopped the WRITE, or is gone. It is asked, and waited for so long.
bool Transfer::Stopped(int64_t timeout_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    // What the target has told of its end is an end, too.
    if (put_->Ended(0) && NixlStatus(put_->status()) != abi::kRemoteGone) return true;
    if (stop_ == nullptr) {
      auto stop = agent_->worker->AskPeer(peer_, "stop", WriteNumber(put_id_), -1);
      if (!stop.ok()) return false;
      stop_ = *std::move(stop);
    }
    const int64_t left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                until - std::chrono::steady_clock::now())
                                .count();
    if (!stop_->Ended(std::max<int64_t>(left_ms, 0))) return false;
    if (stop_->status().ok() || NixlStatus(stop_->status()) == abi::kRemoteGone) return true;
    stop_ = nullptr;  // It was refused, and is asked for again.
    if (left_ms <= kQuietMs) return false;
    put_->Ended(kQuietMs);
  }
}

}  // namespace tryst::nixl
