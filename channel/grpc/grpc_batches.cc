// What a GrpcChannel asks for in batches: receives beyond max_asked wait at the producer without a
// call of their own. One call waits for all of them; it ends when the producer has something, and
// the next one begins.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_channel.h"
#include "channel/grpc/grpc_fetch_op.h"
#include "channel/grpc/grpc_status.h"
#include "proto/transport.pb.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

// One message holds so much; well below gRPC's 4 MiB, and what a stranger may say at the listener.
constexpr int kMaxAsks = 8192;
constexpr size_t kMaxBytes = 512 << 10;
// Once one has failed: who says that much before it is known may be taken for one who floods.
constexpr size_t kRetriedBytes = 4 << 10;
constexpr size_t kMaxBatches = 4;  // On their way; the producer ends all but the last.

}  // namespace

void GrpcChannel::SendBatch() {
  while (takes_batches_ && !batches_back_off_ && parked_ > 0 &&
         batches_.size() < (batch_attempts_ > 0 ? 1 : kMaxBatches) &&
         (batches_.empty() || !to_park_.empty())) {
    auto channel = directory_->ChannelTo(peer_);
    if (!channel.ok()) return RetryBatch(nullptr, channel.status());
    auto batch = std::make_shared<Batch>(options_.max_tensor_bytes);
    rpc::FetchRequest request;
    request.set_waits(true);
    request.set_channel(channel_);
    request.set_producer_incarnation(parked_incarnation_ != 0 ? parked_incarnation_
                                                              : peer_incarnation_);
    request.set_heard(heard_);
    std::vector<uint64_t> left;
    const size_t most_bytes = batch_attempts_ > 0 ? kRetriedBytes : kMaxBytes;
    size_t bytes = 0;
    for (; !to_park_.empty() && request.asks_size() < kMaxAsks && bytes < most_bytes;
         to_park_.pop_front()) {
      FetchOp* op = Find(to_park_.front());
      if (op == nullptr || op->state != FetchOp::State::kToPark) continue;
      rpc::FetchAsk* ask = request.add_asks();
      ask->set_serial(op->serial);
      ask->set_step_id(op->step_id);
      ask->set_key(std::string(op->key.text()));
      bytes += ask->key().size() + 32;
      batch->asks.push_back({op->serial, op->may_be_known});
      op->may_be_known = true;
      op->state = FetchOp::State::kParked;
      for (uint64_t serial : LeftOf(*op)) left.push_back(serial);
    }
    if (batch->asks.empty() && !batches_.empty()) return;
    auto owned = std::make_unique<FetchStream>(
        poller_, &batch->incoming, 0,
        [this, batch](FetchStream* stream) { OnBatchLanded(batch.get(), stream); },
        [this, batch](FetchStream* stream) { OnBatchEnded(batch.get(), stream); });
    FetchStream* const stream = owned.get();
    streams_.emplace(stream, std::move(owned));
    batches_.insert(stream);
    FillOver(&request, 0, left, &stream->over_told);
    const std::string text = request.SerializeAsString();
    stream->Start(events_->queue(), *channel, signer_->Sign(peer_, kFetchMethod, text), text);
  }
}

void GrpcChannel::OnBatchLanded(Batch* batch, FetchStream* stream) {
  if (!stream->taken().ok() || !closed_.ok()) return;
  const rpc::FetchHeader& header = batch->incoming.header();
  last_failure_ = absl::OkStatus();
  failing_since_ns_ = batches_failing_since_ns_ = 0;
  batch_attempts_ = 0;
  NotePeer(header.producer_incarnation());
  if (header.is_other_incarnation()) return OnBatchOfOtherLife(batch);
  parked_incarnation_ = header.producer_incarnation();
  heard_ = std::max(heard_, header.number());
  batch->asks.clear();  // The producer has them.
  for (uint64_t serial : header.ready()) {
    FetchOp* op = Find(serial);
    if (op == nullptr || !op->parked() || op->state == FetchOp::State::kReady) continue;
    op->state = FetchOp::State::kReady;
    ready_.push_back(serial);
  }
  poller_->FlushThisTurn(&end_of_turn_);
}

void GrpcChannel::OnBatchEnded(Batch* batch, FetchStream* stream) {
  batches_.erase(stream);
  const std::unique_ptr<FetchStream> owned = std::move(streams_[stream]);
  streams_.erase(stream);
  if (!closed_.ok()) return;
  absl::Status status = stream->taken().ok() ? FromGrpc(stream->status()) : stream->taken();
  if (status.ok() && !batch->incoming.header_seen()) {
    status = absl::UnavailableError("the call ended without an answer");
  }
  if (status.ok()) {
    ForgetTold(*stream);
    poller_->FlushThisTurn(&end_of_turn_);
  } else if (absl::IsInvalidArgument(status)) {
    LeaveBatches();
  } else if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status) ||
             absl::IsResourceExhausted(status) || absl::IsAborted(status)) {
    AskAgain(batch);  // Found by FailWaiting().
    PostCounted([this, status] { FailWaiting(status); });
  } else {
    RetryBatch(batch, status);
  }
}

void GrpcChannel::AskAgain(Batch* batch) {
  for (const Batch::Ask& ask : batch->asks) {
    FetchOp* op = Find(ask.serial);
    if (op == nullptr || op->state != FetchOp::State::kParked) continue;
    op->state = FetchOp::State::kToPark;
    to_park_.push_back(ask.serial);
  }
  batch->asks.clear();
}

void GrpcChannel::RetryBatch(Batch* batch, const absl::Status& why) {
  if (batch != nullptr) AskAgain(batch);
  if (parked_ == 0 || batches_back_off_) return;
  const int64_t now_ns = poller_->clock().NowNs();
  last_failure_ = directory_->Explain(peer_, why);
  if (failing_since_ns_ == 0) failing_since_ns_ = FailingSinceNs(why);
  if (batches_failing_since_ns_ == 0) batches_failing_since_ns_ = FailingSinceNs(why);
  if (parked_incarnation_ == 0) parked_incarnation_ = peer_incarnation_;
  ++batch_attempts_;
  // Since the last word on any call: a tensor that was on its way may have come meanwhile.
  const int64_t failing_ns = now_ns - std::max(batches_failing_since_ns_, failing_since_ns_);
  if (failing_ns >= absl::ToInt64Nanoseconds(options_.patience)) {
    const int attempts = std::exchange(batch_attempts_, 0);
    batches_failing_since_ns_ = 0;
    return EndOfPatience(0, failing_ns, attempts);
  }
  batches_back_off_ = true;
  poller_->SetTimer(&batch_timer_, now_ns + BackOffNs(failing_ns, 0));
}

void GrpcChannel::OnBatchTimer() {
  if (std::exchange(batches_back_off_, false)) return AskNext();
  if (parked_ > 0) return;
  for (FetchStream* stream : batches_) stream->Cancel();
}

// What was asked of the old life ends as it does by a call; the rest is asked of the new one.
void GrpcChannel::OnBatchOfOtherLife(Batch* batch) {
  const absl::Status why = absl::AbortedError(
      absl::StrFormat("%s has restarted: asked of its incarnation %016x, found %016x", peer_,
                      parked_incarnation_, peer_incarnation_));
  parked_incarnation_ = peer_incarnation_;
  heard_ = 0;
  for (const Batch::Ask& ask : batch->asks) {
    FetchOp* op = Find(ask.serial);
    if (op != nullptr && !ask.may_be_known) op->may_be_known = false;
  }
  AskAgain(batch);
  std::vector<uint64_t> ended;
  for (const auto& [serial, op] : asks_) {
    if (!op->parked() || !op->may_be_known) continue;
    if (op->key.src_incarnation() != peer_incarnation_) {
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
    if (FetchOp* op = FindOp(id)) FailLine(op, why);
  }
  poller_->FlushThisTurn(&end_of_turn_);
}

// The producer is of an earlier release: whoever waits does so in line.
void GrpcChannel::LeaveBatches() {
  takes_batches_ = false;
  parked_incarnation_ = 0;
  std::vector<uint64_t> serials;
  for (const auto& [serial, op] : asks_) {
    if (!op->parked()) continue;
    op->state = FetchOp::State::kInLine;
    op->may_be_known = false;
    serials.push_back(serial);
  }
  std::sort(serials.begin(), serials.end());
  line_.insert(line_.end(), serials.begin(), serials.end());
  parked_ = 0;
  to_park_.clear();
  ready_.clear();
  poller_->FlushThisTurn(&end_of_turn_);
}

}  // namespace tryst
