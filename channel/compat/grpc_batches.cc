#include "channel/compat/grpc_batches.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/compat/grpc_fetch_op.h"
#include "channel/ops/peer_words.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

// The limit of one message: well below gRPC's 4 MiB, and below what the listener lets a stranger
// send.
constexpr size_t kMaxBytes = 512 << 10;
// The limit after a failure: a caller that sends much before it has authenticated may be taken for
// a flooder.
constexpr size_t kRetriedBytes = 4 << 10;
constexpr size_t kLeftBytes = 8;  // What naming an ended fetch takes, twice.
// When this many fetches have calls of their own, further small ones share a call, which is sent at
// the end of the turn.
constexpr size_t kAlone = 2;
constexpr int kSmallInTurn = 16;   // After so many small tensors the next counts as small.
constexpr size_t kMaxBatches = 4;  // Batches under way; the producer ends all but the last.
// How long a call stays open although no receive waits, so that the next receive finds it.
constexpr int64_t kLingersNs = int64_t{1000} * 1000 * 1000;

}  // namespace

bool GrpcChannel::Batches::MayAdd() const {
  const size_t most = channel_->options_.max_waiting;
  return taken_ && channel_->asked_ + waiting_ < most && channel_->over_.unwanted() < most;
}

void GrpcChannel::Batches::NoteTensor(const rpc::FetchHeader& header) {
  parcel_bytes_ = header.parcel_bytes();
  if (header.code() != 0) return;
  small_in_turn_ =
      header.tensor().bytes() <= parcel_bytes_ ? std::min(small_in_turn_ + 1, kSmallInTurn) : 0;
}

bool GrpcChannel::Batches::Suits(const FetchOp& op) const {
  if (parcel_bytes_ == 0 || channel_->asked_ < kAlone) return false;
  const Tensor& destination = op.args.destination;
  if (!destination.valid() || destination.dtype() == DType::kString) {
    return small_in_turn_ == kSmallInTurn;
  }
  return destination.bytes() <= parcel_bytes_;
}

void GrpcChannel::Batches::Add(FetchOp* op) {
  op->state = FetchOp::State::kToPark;
  ++waiting_;
  to_park_.push_back(op->serial);
  channel_->poller_->FlushThisTurn(channel_);
}

void GrpcChannel::Batches::Left() {
  if (--waiting_ == 0 && !streams_.empty() && !backs_off_) {
    channel_->poller_->SetTimer(&timer_, channel_->poller_->now_ns() + kLingersNs);
  }
}

void GrpcChannel::Batches::Close() {
  channel_->poller_->CancelTimer(&timer_);
  for (FetchStream* stream : streams_) stream->Cancel();
}

void GrpcChannel::Batches::Send() {
  while (taken_ && !backs_off_ && waiting_ > 0 &&
         streams_.size() < (attempts_ > 0 ? 1 : kMaxBatches) &&
         (streams_.empty() || !to_park_.empty())) {
    auto channel = channel_->calls_.ChannelToPeer();
    if (!channel.ok()) return Retry(nullptr, channel.status());
    auto batch = std::make_shared<Batch>(channel_->options_.max_tensor_bytes);
    rpc::FetchRequest request;
    request.set_producer_incarnation(asked_incarnation_ != 0 ? asked_incarnation_
                                                             : channel_->peer_incarnation_);
    std::vector<uint64_t> left;
    const size_t most_bytes = attempts_ > 0 ? kRetriedBytes : kMaxBytes;
    size_t bytes = 0;
    for (; !to_park_.empty() && request.asks_size() < kMaxAsks && bytes < most_bytes;
         to_park_.pop_front()) {
      FetchOp* op = channel_->Find(to_park_.front());
      if (op == nullptr || op->state != FetchOp::State::kToPark) continue;
      rpc::FetchAsk* ask = request.add_asks();
      ask->set_serial(op->serial);
      ask->set_step_id(op->step_id);
      ask->set_key(std::string(op->key.text()));
      bytes += ask->key().size() + 32;
      batch->asks.push_back({op->serial, op->may_be_known});
      op->may_be_known = true;
      op->state = FetchOp::State::kParked;
      for (uint64_t serial : channel_->over_.LeftOf({op->step_id, op->key})) {
        left.push_back(serial);
        bytes += kLeftBytes;
      }
    }
    if (batch->asks.empty() && !streams_.empty()) return;
    Start(batch, *channel, &request, left);
  }
}

// `left`: what has ended and must be told before what `request` asks for.
FetchStream* GrpcChannel::Batches::Start(const std::shared_ptr<Batch>& batch,
                                         const std::shared_ptr<grpc::Channel>& channel,
                                         rpc::FetchRequest* request,
                                         const std::vector<uint64_t>& left) {
  request->set_waits(true);
  request->set_channel(channel_->calls_.number());
  request->set_heard(heard_);
  request->set_takes_parcels(true);
  request->set_digests(channel_->options_.digests);
  FetchStream* const stream = channel_->calls_.New(
      &batch->incoming, 0, [this, batch](FetchStream* landed) { OnLanded(batch.get(), landed); },
      [this, batch](FetchStream* ended) { OnEnded(batch.get(), ended); });
  streams_.insert(stream);
  channel_->over_.Fill(request, 0, left, &stream->over_told);
  channel_->calls_.Start(stream, channel, request);
  return stream;
}

// It names no incarnation, because who is asked by a stranger tells its own at once.
bool GrpcChannel::Batches::AskForWord() {
  if (word_stream_ != nullptr) return true;
  auto channel = channel_->calls_.ChannelToPeer();
  if (!taken_ || !channel.ok()) return false;
  auto batch = std::make_shared<Batch>(channel_->options_.max_tensor_bytes);
  batch->is_word = true;
  rpc::FetchRequest request;
  word_stream_ = Start(batch, *channel, &request, {});
  return true;
}

void GrpcChannel::Batches::EndAskForWord() {
  if (word_stream_ != nullptr) word_stream_->Cancel();
  word_stream_ = nullptr;
}

void GrpcChannel::Batches::OnLanded(Batch* batch, FetchStream* stream) {
  if (!stream->taken().ok() || !channel_->closed_.ok()) return;
  const rpc::FetchHeader& header = batch->incoming.header();
  channel_->calls_.NoteAnswer();
  failing_since_ns_ = 0;
  attempts_ = 0;
  channel_->NotePeer(header.producer_incarnation());
  const bool is_other = batch->is_word && asked_incarnation_ != 0 &&
                        asked_incarnation_ != header.producer_incarnation();
  if (header.is_other_incarnation() || is_other) return OnOtherLife(batch);
  asked_incarnation_ = header.producer_incarnation();
  heard_ = std::max(heard_, header.number());
  batch->asks.clear();  // The producer has the asks now.
  for (const rpc::FetchParcel& parcel : header.parcels()) {
    TakeParcel(parcel);
    if (!channel_->closed_.ok()) return;  // In a callback.
  }
  for (uint64_t serial : header.ready()) {
    FetchOp* op = channel_->Find(serial);
    if (op == nullptr || !op->parked() || op->state == FetchOp::State::kReady) continue;
    op->state = FetchOp::State::kReady;
    channel_->ready_.push_back(serial);
  }
  channel_->poller_->FlushThisTurn(channel_);
}

void GrpcChannel::Batches::TakeParcel(const rpc::FetchParcel& parcel) {
  FetchOp* op = channel_->Find(parcel.serial());
  if (op == nullptr || !op->parked()) return;
  channel_->StartFetching(op);
  op->state = FetchOp::State::kAsked;
  Attempt& attempt = *op->attempt;
  const absl::Status taken = attempt.incoming.TakeParcel(parcel.response());
  const bool whole = attempt.incoming.complete() || attempt.incoming.header().code() != 0;
  if (taken.ok() && !whole) return channel_->Ask(op);  // For the rest.
  channel_->OnTaken(op, taken);
}

void GrpcChannel::Batches::OnEnded(Batch* batch, FetchStream* stream) {
  streams_.erase(stream);
  if (stream == word_stream_) word_stream_ = nullptr;
  const std::unique_ptr<FetchStream> owned = channel_->calls_.Take(stream);
  if (!channel_->closed_.ok()) return;
  absl::Status status = stream->taken().ok() ? channel_->calls_.EndOf(*stream) : stream->taken();
  if (status.ok() && !batch->incoming.header_seen()) {
    status = absl::UnavailableError("the producer ended the gRPC call without an answer");
  }
  if (status.ok()) {
    channel_->ForgetTold(*stream);
    channel_->poller_->FlushThisTurn(channel_);
  } else if (absl::IsInvalidArgument(status)) {
    channel_->calls_.owed()->NoteWord();
    Leave();
  } else if (batch->is_word) {
    // What ended this call ends those that ask for something, too.
    channel_->poller_->FlushThisTurn(channel_);
  } else if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status) ||
             absl::IsResourceExhausted(status) || absl::IsAborted(status)) {
    AskAgain(batch);  // FailWaiting() will find its patience over.
    channel_->PostCounted([this, status] { channel_->FailWaiting(status); });
  } else {
    Retry(batch, status);
  }
}

void GrpcChannel::Batches::AskAgain(Batch* batch) {
  for (const Batch::Ask& ask : batch->asks) {
    FetchOp* op = channel_->Find(ask.serial);
    if (op == nullptr || op->state != FetchOp::State::kParked) continue;
    op->state = FetchOp::State::kToPark;
    to_park_.push_back(ask.serial);
  }
  batch->asks.clear();
}

void GrpcChannel::Batches::Retry(Batch* batch, const absl::Status& why) {
  if (batch != nullptr) AskAgain(batch);
  if (waiting_ == 0 || backs_off_) return;
  const int64_t now_ns = channel_->poller_->clock().NowNs();
  channel_->calls_.NoteFailure(why);
  if (failing_since_ns_ == 0) failing_since_ns_ = channel_->calls_.FailingSinceNs(why);
  if (asked_incarnation_ == 0) asked_incarnation_ = channel_->peer_incarnation_;
  ++attempts_;
  // Time counts since the last answer on any call, because a large tensor on another call may have
  // kept the connection busy.
  const int64_t failing_ns = channel_->poller_->RunningSince(
      std::max(failing_since_ns_, channel_->calls_.failing_since_ns()));
  if (failing_ns >= absl::ToInt64Nanoseconds(channel_->options_.patience)) {
    attempts_ = 0;
    failing_since_ns_ = 0;
    return channel_->EndOfPatience(0);
  }
  backs_off_ = true;
  channel_->poller_->SetTimer(&timer_, now_ns + channel_->calls_.BackOffNs(failing_ns, 0));
}

void GrpcChannel::Batches::OnTimer() {
  if (std::exchange(backs_off_, false)) return channel_->AskNext();
  if (waiting_ > 0) return;
  for (FetchStream* stream : streams_) stream->Cancel();
}

// What was requested from the old incarnation fails as it would in a call of its own; the rest is
// requested from the new one.
void GrpcChannel::Batches::OnOtherLife(Batch* batch) {
  const absl::Status why =
      Restarted(channel_->peer_, asked_incarnation_, channel_->peer_incarnation_);
  asked_incarnation_ = channel_->peer_incarnation_;
  heard_ = 0;
  for (const Batch::Ask& ask : batch->asks) {
    FetchOp* op = channel_->Find(ask.serial);
    if (op != nullptr && !ask.may_be_known) op->may_be_known = false;
  }
  AskAgain(batch);
  std::vector<uint64_t> ended;
  for (const auto& [serial, op] : channel_->asks_) {
    if (!op->parked() || !op->may_be_known) continue;
    if (op->key.src_incarnation() != channel_->peer_incarnation_) {
      ended.push_back(op->id);
      continue;
    }
    op->may_be_known = false;
    if (op->state == FetchOp::State::kToPark) continue;
    op->state = FetchOp::State::kToPark;
    to_park_.push_back(serial);
  }
  std::sort(ended.begin(), ended.end());
  for (uint64_t id : ended) {
    if (FetchOp* op = channel_->FindOp(id)) channel_->FailLine(op, why);
  }
  channel_->poller_->FlushThisTurn(channel_);
}

// The producer is of an earlier release, so receives must wait in line.
void GrpcChannel::Batches::Leave() {
  taken_ = false;
  asked_incarnation_ = 0;
  std::vector<uint64_t> serials;
  for (const auto& [serial, op] : channel_->asks_) {
    if (!op->parked()) continue;
    op->state = FetchOp::State::kInLine;
    op->may_be_known = false;
    serials.push_back(serial);
  }
  std::sort(serials.begin(), serials.end());
  channel_->line_.insert(channel_->line_.end(), serials.begin(), serials.end());
  waiting_ = 0;
  to_park_.clear();
  channel_->ready_.clear();
  channel_->poller_->FlushThisTurn(channel_);
}

}  // namespace tryst
