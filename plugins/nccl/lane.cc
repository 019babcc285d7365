#include "plugins/nccl/lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst::nccl {
namespace {

constexpr size_t kCompletionsPerPoll = 32;
constexpr uint32_t kReceivesPerPost = 32;
// Sends beyond the probe and the pieces and small messages that the options ask for.
constexpr uint32_t kSpareSends = 4;
// The control socket finds out quickly that a peer has died, so the NIC may wait long.
constexpr uint8_t kAckTimeout = 18;  // About a second.
constexpr uint8_t kRetries = 6;      // How many such waits.

}  // namespace

uint32_t PieceSource::Publish() {
  const uint32_t turn = static_cast<uint32_t>(ticket.load(std::memory_order_relaxed) >> 32) + 1;
  pieces_left.store(pieces, std::memory_order_relaxed);
  ticket.store(uint64_t{turn} << 32, std::memory_order_release);
  return turn;
}

Lane::Lane(const Options& options, LaneListener* listener)
    : options_(options),
      listener_(listener),
      posted_(options.window + options.small_sends + kSpareSends) {}

absl::StatusOr<std::unique_ptr<Lane>> Lane::Open(const Options& options, Nic* nic,
                                                 CompletionQueue* completions,
                                                 LaneListener* listener) {
  std::unique_ptr<Lane> lane(new Lane(options, listener));
  QueuePairOptions wanted;
  wanted.completions = completions;
  wanted.send_depth = static_cast<uint32_t>(lane->posted_.size());
  wanted.receive_depth = options.receives;
  wanted.max_entries = 2;
  wanted.max_inline_bytes = options.inline_bytes;
  wanted.ends_when_left = true;
  wanted.port = options.port;
  wanted.ack_timeout = options.patient ? 0 : kAckTimeout;
  wanted.retry_count = kRetries;
  wanted.rnr_retry_count = 7;
  absl::StatusOr<std::unique_ptr<QueuePair>> pair = nic->CreateQueuePair(wanted);
  if (!pair.ok()) return pair.status();
  lane->queue_pair_ = *std::move(pair);
  const absl::Status posted = lane->PostReceives(options.receives);
  if (!posted.ok()) return posted;
  return lane;
}

absl::Status Lane::PostReceives(uint32_t count) {
  ReceiveWork works[kReceivesPerPost];
  for (ReceiveWork& work : works) work.id = reinterpret_cast<uint64_t>(this);
  while (count > 0) {
    const uint32_t some = std::min(count, kReceivesPerPost);
    const absl::Status posted =
        queue_pair_->PostReceive(absl::Span<const ReceiveWork>(works, some));
    if (!posted.ok()) return posted;
    count -= some;
  }
  return absl::OkStatus();
}

absl::Status Lane::Connect(const std::string& address, size_t remote_rail) {
  remote_rail_ = remote_rail;
  return queue_pair_->Connect(address);
}

void Lane::Broken(const std::string& why) {
  if (broken_) return;
  broken_ = true;
  listener_->OnLaneBroken(options_.index, why);
}

bool Lane::Post(absl::Span<const SendWork> works, const Posted& posted) {
  if (broken_) return false;
  const absl::Status status = queue_pair_->PostSend(works);
  if (!status.ok()) {
    Broken(std::string(status.message()));
    return false;
  }
  for (const SendWork& work : works) {
    Posted& one = posted_[posted_end_++ % posted_.size()];
    one = posted;
    if (!work.signaled) one.what = Sent::kUnheard;
  }
  return true;
}

// Only some of these writes are signaled. The completion of one also frees the room of those before
// it.
bool Lane::Write(absl::Span<SendWork> works, PieceSource* source) {
  for (SendWork& work : works) {
    work.id = reinterpret_cast<uint64_t>(this);
    work.signaled = source != nullptr || ++unheard_ >= kUnheardSends;
    if (work.signaled) unheard_ = 0;
  }
  return Post(works, {Sent::kSmall, source, 0});
}

void Lane::Probe() {
  Immediate immediate;
  immediate.kind = Immediate::Kind::kProbe;
  SendWork work;
  work.id = reinterpret_cast<uint64_t>(this);
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = immediate.Pack();
  Post(absl::MakeConstSpan(&work, 1), {Sent::kSmall, nullptr, 0});
}

bool Lane::Offer(PieceSource* source, uint32_t turn) {
  const uint64_t end = offered_.load(std::memory_order_relaxed);
  if (end - taken_.load(std::memory_order_acquire) == kOffers) return false;
  jobs_[end % kOffers] = {source, turn, source->pieces};
  offered_.store(end + 1, std::memory_order_release);
  return true;
}

// The source may already serve another message. Then its ticket has another turn, and the lane
// touches nothing else of it.
bool Lane::TakePiece(const Job& job, uint32_t* piece) {
  uint64_t ticket = job.source->ticket.load(std::memory_order_acquire);
  do {
    *piece = static_cast<uint32_t>(ticket);
    if (static_cast<uint32_t>(ticket >> 32) != job.turn || *piece >= job.pieces) return false;
  } while (
      !job.source->ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
  return true;
}

bool Lane::PostPiece(PieceSource* source, uint32_t piece) {
  const uint64_t offset = piece * source->piece_bytes;
  Entry entry;
  entry.address = reinterpret_cast<uint64_t>(source->data) + offset;
  entry.bytes = std::min(source->bytes - offset, source->piece_bytes);
  entry.local_key = source->bytes > 0 ? source->local_keys[options_.rail] : 0;
  SendWork work;
  work.id = reinterpret_cast<uint64_t>(this);
  work.op = SendOp::kWriteWithImmediate;
  if (entry.bytes > 0) work.entries = absl::Span<const Entry>(&entry, 1);
  work.remote_address = source->remote_address + offset;
  work.remote_key = source->remote_keys[remote_rail_];
  work.immediate = source->immediate;
  if (!Post(absl::MakeConstSpan(&work, 1), {Sent::kPiece, source, entry.bytes})) return false;
  unheard_ = 0;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  bytes_in_flight_ += entry.bytes;
  return true;
}

void Lane::Turn() {
  if (receives_owed_ > 0 && !broken_) {
    const absl::Status posted = PostReceives(std::exchange(receives_owed_, 0));
    if (!posted.ok()) Broken(std::string(posted.message()));
  }
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  while (!broken_ && in_flight_ < options_.window && bytes_in_flight_ < options_.window_bytes &&
         taken != offered_.load(std::memory_order_acquire)) {
    const Job& job = jobs_[taken % kOffers];
    uint32_t piece = 0;
    if (!TakePiece(job, &piece)) {
      taken_.store(++taken, std::memory_order_release);
    } else if (!PostPiece(job.source, piece)) {
      return;
    }
  }
}

void Lane::OnCompletion(const Completion& completion) {
  if (completion.status != CompletionStatus::kOk) {
    Broken(CompletionStatusName(completion.status));
    return;
  }
  listener_->OnMoved();
  if (completion.op == CompletionOp::kReceiveWriteImmediate) {
    ++receives_owed_;
    listener_->OnImmediate(options_.index, completion.immediate, completion.bytes);
    return;
  }
  while (posted_begin_ != posted_end_ &&
         posted_[posted_begin_ % posted_.size()].what == Sent::kUnheard) {
    ++posted_begin_;
  }
  if (completion.op != CompletionOp::kSend || posted_begin_ == posted_end_) {
    Broken("the NIC reports the end of a transfer that is not under way");
    return;
  }
  const Posted posted = posted_[posted_begin_++ % posted_.size()];
  if (posted.what == Sent::kPiece) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    bytes_in_flight_ -= posted.bytes;
  }
  if (posted.source != nullptr) posted.source->pieces_left.fetch_sub(1, std::memory_order_acq_rel);
}

absl::StatusOr<size_t> Lane::Poll(CompletionQueue* completions) {
  Completion done[kCompletionsPerPoll];
  const absl::StatusOr<size_t> count = completions->Poll(absl::MakeSpan(done));
  if (!count.ok()) return count;
  for (size_t i = 0; i < *count; ++i) {
    Lane* const lane = reinterpret_cast<Lane*>(done[i].id);
    lane->OnCompletion(done[i]);
    if (lane->receives_owed_ >= lane->options_.receives / 4) lane->Turn();
  }
  for (size_t i = 0; i < *count; ++i) reinterpret_cast<Lane*>(done[i].id)->Turn();
  return count;
}

}  // namespace tryst::nccl
