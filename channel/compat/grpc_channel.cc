#include "channel/compat/grpc_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_batches.h"
#include "channel/compat/grpc_fetch_op.h"
#include "channel/ops/peer_words.h"
#include "proto/transport.pb.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr int kMaxOverTold = 256;  // In a request for a tensor.
constexpr int kMaxIncarnationsTried = 8;
constexpr size_t kMostFetching = 256;

// Whether a later attempt may succeed. Every other status is final.
bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

}  // namespace

GrpcChannel::GrpcChannel(std::string peer, PeerDirectory* directory, CallSigner* signer,
                         EventThread* events, Poller* poller, GrpcChannelOptions options)
    : peer_(std::move(peer)),
      poller_(poller),
      options_(options),
      max_fetching_(std::min(options_.max_asked, kMostFetching)),
      track_(options_.trace == nullptr ? nullptr
                                       : options_.trace->Track(TraceRole::kFetch, peer_, "grpc")),
      lines_(std::make_unique<KeyLines>()),
      calls_(
          peer_, directory, signer, events, poller, options_,
          [this](FetchStream* stream) { OnStalled(stream); },
          [this](bool may_judge) { OnQuiet(may_judge); }),
      batches_(std::make_unique<Batches>(this)),
      executors_(poller) {}

GrpcChannel::~GrpcChannel() {
  TRYST_CHECK(Drained()) << "channel to " << peer_;
  poller_->ForgetFlush(this);
}

void GrpcChannel::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                        FetchedFn&& done) {
  TRYST_DCHECK(poller_->OnThread());
  const uint64_t id = next_id_++;
  auto owned = std::make_unique<FetchOp>(this, id, step_id, key, args, std::move(done));
  FetchOp* op = owned.get();
  op->began_ns = poller_->now_ns();
  ops_.emplace(id, std::move(owned));
  if (!closed_.ok()) return FinishSoon(op, closed_);
  if (!args.destination.on_host()) {
    return FinishSoon(op, absl::UnimplementedError(
                              "a receive over gRPC cannot write device memory: receive into host "
                              "memory"));
  }
  if (args.cancellation != nullptr) {
    op->token = args.cancellation->Register([this, id] {
      PostCounted([this, id] {
        if (FetchOp* cancelled = FindOp(id)) {
          Finish(cancelled, Cancelled(), Tensor(), false);
        }
      });
    });
    if (op->token == Cancellation::kNoToken) {
      return FinishSoon(op, Cancelled());
    }
  }
  SetTimer(op);
  Enter(op);
}

void GrpcChannel::Ask(FetchOp* op) {
  if (op->attempt == nullptr) {
    op->attempt = std::make_unique<Attempt>(options_.max_tensor_bytes);
    op->attempt->incoming.Redirect(op->args.destination);
    op->attempt->span.Begin(op->may_be_known ? WaitsFor::kPeerSend : WaitsFor::kSlot, op->began_ns);
    op->attempt->span.id = TraceId(calls_.trace_seed(), op->serial, op->step_id);
  }
  Attempt& attempt = *op->attempt;
  op->state = FetchOp::State::kAsked;
  attempt.span.Enter(WaitsFor::kPeerSend, poller_->now_ns());
  attempt.retry_at_ns = 0;
  auto channel = calls_.ChannelToPeer();
  if (!channel.ok()) {
    if (absl::IsNotFound(channel.status())) return FinishSoon(op, channel.status());
    return Retry(op, channel.status());
  }
  if (!op->may_be_known) attempt.pinned_incarnation = peer_incarnation_;
  attempt.landed = false;
  attempt.incoming.StartAttempt();
  FetchStream* stream = calls_.New(
      &attempt.incoming, op->serial, [this](FetchStream* landed) { OnLanded(landed); },
      [this](FetchStream* ended) { OnEnded(ended); });
  attempt.stream = stream;
  rpc::FetchRequest request;
  request.set_step_id(op->step_id);
  request.set_key(std::string(op->key.text()));
  request.set_serial(op->serial);
  request.set_channel(calls_.number());
  request.set_producer_incarnation(attempt.pinned_incarnation);
  request.set_offset(attempt.incoming.received());
  request.set_digests(options_.digests);
  over_.Fill(&request, kMaxOverTold, over_.LeftOf({op->step_id, op->key}), &stream->over_told);
  calls_.Start(stream, *channel, &request);
}

void GrpcChannel::OnLanded(FetchStream* stream) {
  FetchOp* op = OpOf(*stream);
  if (op == nullptr) return;
  calls_.NoteAnswer();
  if (stream->taken().ok()) ForgetTold(*stream);
  OnTaken(op, stream->taken());
}

void GrpcChannel::OnTaken(FetchOp* op, const absl::Status& taken) {
  op->attempt->landed = true;
  if (op->attempt->incoming.digest_wrong()) return OnDigestWrong(op, taken);
  if (!taken.ok()) return Finish(op, taken, Tensor(), false);
  OnHeader(op);
}

// The bytes are requested once more, from the first wrong chunk on.
void GrpcChannel::OnDigestWrong(FetchOp* op, const absl::Status& why) {
  ++counts_.digests_wrong;
  TRYST_LOG(Warning) << "a tensor that " << peer_
                     << " sent over gRPC arrived damaged: " << op->key.text() << ": "
                     << why.message();
  Attempt& attempt = *op->attempt;
  if (std::exchange(attempt.digest_was_wrong, true)) return Finish(op, why, Tensor(), false);
  if (attempt.stream != nullptr) {
    attempt.stream->Detach();
    attempt.stream->Cancel();
    attempt.stream = nullptr;
  }
  op->may_be_known = true;
  attempt.pinned_incarnation = attempt.incoming.header().producer_incarnation();
  Ask(op);
}

void GrpcChannel::NotePeer(uint64_t incarnation) {
  if (incarnation == peer_incarnation_) return;
  peer_incarnation_ = incarnation;
  calls_.NoteIncarnation(incarnation);
  batches_->OnNewPeer();
}

void GrpcChannel::OnHeader(FetchOp* op) {
  Attempt& attempt = *op->attempt;
  const rpc::FetchHeader& header = attempt.incoming.header();
  NotePeer(header.producer_incarnation());
  batches_->NoteTensor(header);
  // The peer has restarted since we last heard of it. This fetch may go on if the old incarnation
  // never saw it, or if its key names the new one, as the old one then refused it.
  const bool is_new =
      !op->may_be_known || op->key.src_incarnation() == header.producer_incarnation();
  if (header.is_other_incarnation() && is_new && ++attempt.lives_tried < kMaxIncarnationsTried) {
    if (attempt.stream != nullptr) attempt.stream->Detach();
    attempt.stream = nullptr;
    op->may_be_known = false;
    return Ask(op);
  }
  if (header.code() != 0) {
    attempt.answered = true;
    const absl::Status status =
        header.is_other_incarnation()
            ? Restarted(peer_, attempt.pinned_incarnation, header.producer_incarnation())
            : FailureTold(static_cast<uint32_t>(header.code()), header.message(),
                          header.is_derived());
    return Finish(op, status, Tensor(), false);
  }
  absl::StatusOr<Tensor> tensor = attempt.incoming.Finish();
  if (!tensor.ok()) return Finish(op, tensor.status(), Tensor(), false);
  ++counts_.fetched;
  Finish(op, absl::OkStatus(), *std::move(tensor), header.tensor().is_dead());
}

void GrpcChannel::OnEnded(FetchStream* stream) {
  const std::unique_ptr<FetchStream> owned = calls_.Take(stream);
  if (stream->status().ok()) ForgetTold(*stream);
  if (!line_.empty()) poller_->FlushThisTurn(this);
  FetchOp* op = OpOf(*stream);
  if (op == nullptr) return;
  op->attempt->stream = nullptr;
  op->may_be_known |= stream->may_be_known();
  absl::Status status = calls_.EndOf(*stream);
  if (!IsTransient(status)) calls_.owed()->NoteWord();
  if (status.ok())
    status = absl::UnavailableError("the producer ended the gRPC call without a tensor");
  if (IsTransient(status)) return Retry(op, status);
  Finish(op, status, Tensor(), false);
}

// Others of its key would wait for the same tensor.
void GrpcChannel::OnStalled(FetchStream* stream) {
  FetchOp* op = OpOf(*stream);
  if (op == nullptr || op->attempt->landed) return;
  TRYST_REACHED("rare: a call brings a part of a tensor and stops");
  FailLine(op, absl::UnavailableError(
                   absl::StrCat(peer_, " has begun to send ", op->key.text(),
                                " over gRPC, and nothing more of it has come for ",
                                absl::FormatDuration(options_.patience), " (patience)")));
}

// A producer whose tensors have not been sent yet has nothing to say, but it answers when it is
// asked to. One that does not, although the call stays open, ends what it was asked before.
void GrpcChannel::OnQuiet(bool may_judge) {
  if (!closed_.ok() || asked_ + fetching_ + batches_->waiting() == 0) return;
  if (!batches_->AskForWord()) return;
  calls_.NoteAsked();
  const int64_t silent_ns = poller_->RunningSince(calls_.unanswered_since_ns());
  const int64_t patience_ns = absl::ToInt64Nanoseconds(options_.patience);
  if (!may_judge || silent_ns < patience_ns) return;
  TRYST_REACHED("rare: a producer owes a word by grpc");
  batches_->EndAskForWord();
  const absl::Status why = calls_.owed()->Silent(peer_, "grpc", silent_ns / 1'000'000);
  std::vector<uint64_t> ids;
  for (const auto& [serial, op] : asks_) {
    const bool is_new = poller_->RunningSince(op->began_ns) < patience_ns / 4;
    if (!is_new) ids.push_back(op->id);
  }
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    if (FetchOp* op = FindOp(id)) FailLine(op, why);
  }
}

void GrpcChannel::Retry(FetchOp* op, const absl::Status& why) {
  Attempt& attempt = *op->attempt;
  const int64_t now_ns = poller_->clock().NowNs();
  calls_.NoteFailure(why);
  if (attempt.incoming.header_seen()) {
    attempt.pinned_incarnation = attempt.incoming.header().producer_incarnation();
  }
  if (attempt.pinned_incarnation == 0) attempt.pinned_incarnation = peer_incarnation_;
  const uint64_t received = attempt.incoming.received();
  if (attempt.failing_since_ns == 0 || received > attempt.received_at_failure) {
    attempt.failing_since_ns = calls_.FailingSinceNs(why);
    attempt.received_at_failure = received;
  }
  const int64_t failing_ns = poller_->RunningSince(attempt.failing_since_ns);
  if (failing_ns >= absl::ToInt64Nanoseconds(options_.patience)) {
    return EndOfPatience(op->id);
  }
  op->state = FetchOp::State::kBackingOff;
  attempt.span.Enter(WaitsFor::kRetry, now_ns);
  attempt.retry_at_ns = now_ns + calls_.BackOffNs(failing_ns, op->serial);
  SetTimer(op);
}

// If the peer has been silent on all calls, no other fetch need wait longer. For a batch `id` is 0.
void GrpcChannel::EndOfPatience(uint64_t id) {
  PostCounted([this, id,
               why = NotAnswered(peer_, "grpc", absl::ToInt64Milliseconds(options_.patience),
                                 calls_.last_failure())] {
    FetchOp* op = FindOp(id);
    const bool heard =
        calls_.failing_since_ns() == 0 || poller_->RunningSince(calls_.failing_since_ns()) <
                                              absl::ToInt64Nanoseconds(options_.patience);
    if (!heard) {
      if (op != nullptr) FailLine(op, why);
      FailWaiting(why);
    } else if (op != nullptr) {
      Finish(op, why, Tensor(), false);
    } else if (id == 0) {
      AskNext();  // A batch, which nobody else would send again.
    }
  });
}

void GrpcChannel::SetTimer(FetchOp* op) {
  int64_t at_ns = op->args.deadline.at_ns();
  const int64_t retry_at_ns = op->attempt == nullptr ? 0 : op->attempt->retry_at_ns;
  if (retry_at_ns != 0) at_ns = std::min(at_ns, retry_at_ns);
  if (retry_at_ns == 0 && op->args.deadline.is_never()) return;
  poller_->SetTimer(op, at_ns);
}

void GrpcChannel::OnTimer(FetchOp* op) {
  const int64_t now_ns = poller_->clock().NowNs();
  if (op->args.deadline.Passed(now_ns)) {
    const std::string why =
        calls_.last_failure().ok() ? "" : absl::StrCat(" (", calls_.last_failure().message(), ")");
    return Finish(op, Late(FetchStateName(op->LikeState()), peer_, why), Tensor(), false);
  }
  if (op->state == FetchOp::State::kBackingOff) Ask(op);
  if (!op->is_set()) SetTimer(op);
}

void GrpcChannel::FinishSoon(FetchOp* op, absl::Status status) {
  PostCounted([this, id = op->id, status = std::move(status)] {
    if (FetchOp* ended = FindOp(id)) Finish(ended, status, Tensor(), false);
  });
}

void GrpcChannel::Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (op->token != Cancellation::kNoToken) op->args.cancellation->Deregister(op->token);
  poller_->CancelTimer(op);
  TraceSpan span;
  if (track_ != nullptr) span = op->Span();
  Leave(op, status.ok() || (op->attempt != nullptr && op->attempt->answered));
  if (track_ != nullptr) {
    // What it has asked for may be another fetch's now, and its name with it.
    if (op->serial == 0) span.id = 0;
    // A retry of this turn has read the clock anew.
    const int64_t end_ns = std::max(poller_->now_ns(), span.since_ns());
    options_.trace->End(span, track_, op->step_id, op->key, tensor.valid() ? tensor.bytes() : 0,
                        status.code(), end_ns);
  }
  const auto it = ops_.find(op->id);
  std::unique_ptr<FetchOp> owned = std::move(it->second);
  ops_.erase(it);

  Received received{std::move(status), std::move(tensor), is_dead};
  Executor* const executor = owned->args.executor;
  if (executor == nullptr) return std::move(owned->done)(std::move(received));
  Executor::Work work = [op = std::move(owned), received = std::move(received)]() mutable {
    std::move(op->done)(std::move(received));
  };
  executors_.Run(executor, std::move(work));
}

void GrpcChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, op] : ops_) {
    if (op->step_id == step_id) ids.push_back(id);
  }
  FinishAll(std::move(ids), MarkDerived(why));
}

void GrpcChannel::FinishAll(std::vector<uint64_t> ids, const absl::Status& why) {
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    if (FetchOp* op = FindOp(id)) Finish(op, why, Tensor(), false);
  }
}

void GrpcChannel::Close(absl::Status why) {
  if (!closed_.ok()) return;
  closed_ = std::move(why);
  std::vector<uint64_t> ids;
  for (const auto& [id, op] : ops_) ids.push_back(id);
  FinishAll(std::move(ids), closed_);
  if (note_timer_.is_set() || note_due_) {
    poller_->CancelTimer(&note_timer_);
    SendNote();
  }
  batches_->Close();
  calls_.Hurry();
}

bool GrpcChannel::Drained() const {
  return !closed_.ok() && ops_.empty() && calls_.size() == 0 && executors_.empty() &&
         !note_timer_.is_set() && posted_.load() == 0;
}

std::string GrpcChannel::Explain() const {
  std::string out =
      absl::StrCat("grpc to ", peer_, ": ", counts_.fetched, " fetched, ", asked_, " asked, ",
                   batches_->waiting(), " asked in batches, ",
                   ops_.size() - asked_ - batches_->waiting() - fetching_, " in line");
  if (counts_.digests_wrong != 0)
    absl::StrAppend(&out, ", ", counts_.digests_wrong, " digests wrong");
  if (!closed_.ok()) absl::StrAppend(&out, "; closed: ", closed_.message());
  if (calls_.failing_since_ns() != 0) {
    absl::StrAppend(&out, "; no answer for ",
                    (poller_->clock().NowNs() - calls_.failing_since_ns()) / 1000000,
                    " ms: ", calls_.last_failure().message());
  }
  return out;
}

FetchState GrpcChannel::FetchOp::LikeState() const {
  if (state == State::kReady) return FetchState::kHere;
  return parked() || state == State::kAsked ? FetchState::kAsked : FetchState::kQueued;
}

TraceSpan GrpcChannel::FetchOp::Span() const {
  if (attempt != nullptr) return attempt->span;
  TraceSpan span;
  span.Begin(parked() ? WaitsFor::kPeerSend : WaitsFor::kSlot, began_ns);
  if (serial != 0) span.id = TraceId(channel->calls_.trace_seed(), serial, step_id);
  return span;
}

void GrpcChannel::ListOps(LiveOps* ops) const {
  for (const auto& [id, op] : ops_) {
    const uint64_t bytes = op->attempt == nullptr ? 0 : op->attempt->incoming.received();
    LiveOp live{TraceRole::kFetch, peer_, "grpc", op->step_id, op->key, op->Span(), bytes, ""};
    if (op->state == FetchOp::State::kBackingOff) {
      live.detail = std::string(calls_.last_failure().message());
    }
    ops->Add(std::move(live));
  }
}

GrpcChannel::FetchOp* GrpcChannel::Find(uint64_t serial) const {
  auto it = asks_.find(serial);
  return it == asks_.end() ? nullptr : it->second;
}

// What has left its call has detached it, so that the call has no serial any more.
GrpcChannel::FetchOp* GrpcChannel::OpOf(const FetchStream& stream) const {
  FetchOp* op = Find(stream.serial());
  TRYST_DCHECK(op == nullptr || op->attempt != nullptr);
  return op == nullptr || op->attempt->stream != &stream ? nullptr : op;
}

GrpcChannel::FetchOp* GrpcChannel::FindOp(uint64_t id) const {
  auto it = ops_.find(id);
  return it == ops_.end() ? nullptr : it->second.get();
}

void GrpcChannel::PostCounted(absl::AnyInvocable<void() &&> fn) {
  posted_.fetch_add(1);
  poller_->PostFn([this, fn = std::move(fn)]() mutable {
    posted_.fetch_sub(1);
    std::move(fn)();
  });
}

}  // namespace tryst
