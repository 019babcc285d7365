#include "channel/grpc/grpc_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/fetch_stream.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/grpc/grpc_status.h"
#include "proto/transport.pb.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr size_t kMaxOver = 4096;
constexpr int kMaxOverTold = 256;
constexpr int kMaxIncarnationsTried = 8;
constexpr int64_t kDeliverAgainNs = 1000 * 1000;
// How long the producer may wait for the word that a tensor has landed.
constexpr int64_t kNoteAfterNs = 2 * 1000 * 1000;
constexpr int64_t kNoteLongestNs = int64_t{2} * 1000 * 1000 * 1000;

// What may go away when one tries again. Everything else is an answer.
bool IsTransient(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:  // Ended without a tensor.
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return true;
    default:
      return false;
  }
}

// Host memory of the caller's that the bytes can be copied into as they come.
Tensor HostDestination(const Args& args) {
  return args.destination.valid() && args.destination.space().host_readable() ? args.destination
                                                                              : Tensor();
}

}  // namespace

class GrpcChannel::OpTimer final : public PollerTimer {
 public:
  OpTimer(GrpcChannel* channel, FetchOp* op) : channel_(channel), op_(op) {}
  void OnTimer() override { channel_->OnTimer(op_); }

 private:
  GrpcChannel* const channel_;
  FetchOp* const op_;
};

struct GrpcChannel::FetchOp {
  enum class State {
    kInLine,      // For one of max_asked.
    kAsked,       // A stream is out.
    kBackingOff,  // The last attempt failed; the next is at retry_at_ns.
    kStaging,     // Landed on the host; a copy to where it belongs runs.
  };

  FetchOp(GrpcChannel* channel, uint64_t serial, int64_t step_id, const TensorKey& key,
          const Args& args, DoneFn done, uint64_t max_bytes)
      : serial(serial),
        step_id(step_id),
        key(key),
        args(args),
        done(std::move(done)),
        incoming(HostDestination(args), max_bytes),
        timer(channel, this) {}

  const uint64_t serial;
  const int64_t step_id;
  const TensorKey key;
  const Args args;
  DoneFn done;
  State state = State::kInLine;
  TraceSpan span;
  IncomingTensor incoming;
  FetchStream* stream = nullptr;
  OpTimer timer;
  Cancellation::Token token = Cancellation::kNoToken;
  int64_t retry_at_ns = 0;       // 0: none.
  int64_t failing_since_ns = 0;  // 0: the last attempt went on.
  uint64_t received_at_failure = 0;
  int attempts = 0;
  bool digest_was_wrong = false;
  bool may_be_known = false;  // The producer may have seen an attempt.
  uint64_t pinned_incarnation = 0;
  absl::Status broken;  // While staging: what to end with.
  Tensor staged;
};

GrpcChannel::GrpcChannel(std::string peer, PeerDirectory* directory, CallSigner* signer,
                         EventThread* events, Poller* poller, GrpcChannelOptions options)
    : peer_(std::move(peer)),
      directory_(directory),
      signer_(signer),
      events_(events),
      poller_(poller),
      options_(options),
      channel_(signer->NextChannel()),
      track_(options_.trace == nullptr ? nullptr
                                       : options_.trace->Track(TraceRole::kFetch, peer_, "grpc")) {}

GrpcChannel::~GrpcChannel() { TRYST_CHECK(Drained()) << "channel to " << peer_; }

void GrpcChannel::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  TRYST_DCHECK(poller_->OnThread());
  auto owned = std::make_unique<FetchOp>(this, next_serial_++, step_id, key, args, std::move(done),
                                         options_.max_tensor_bytes);
  FetchOp* op = owned.get();
  op->span.Begin(WaitsFor::kSlot, poller_->now_ns());
  op->span.id = TraceId(signer_->self().incarnation ^ channel_, op->serial, step_id);
  ops_.emplace(op->serial, std::move(owned));
  if (!closed_.ok()) return FinishSoon(op, closed_);
  if (args.destination.valid() && !args.destination.space().host_readable() &&
      args.device_context == nullptr) {
    return FinishSoon(
        op, absl::InvalidArgumentError("a destination on a device needs the device's context"));
  }
  if (args.cancellation != nullptr) {
    const uint64_t serial = op->serial;
    op->token = args.cancellation->Register([this, serial] {
      PostCounted([this, serial] {
        if (FetchOp* cancelled = Find(serial)) {
          Break(cancelled, MarkDerived(absl::CancelledError("the fetch was cancelled")));
        }
      });
    });
    if (op->token == Cancellation::kNoToken) {
      return FinishSoon(op, MarkDerived(absl::CancelledError("the fetch was cancelled")));
    }
  }
  SetTimer(op);
  if (asked_ >= options_.max_asked) {
    line_.push_back(op->serial);
    return;
  }
  ++asked_;
  Ask(op);
}

void GrpcChannel::Ask(FetchOp* op) {
  op->state = FetchOp::State::kAsked;
  op->span.Enter(WaitsFor::kPeerSend, poller_->now_ns());
  op->retry_at_ns = 0;
  auto channel = directory_->ChannelTo(peer_);
  if (!channel.ok()) {
    if (absl::IsNotFound(channel.status())) return FinishSoon(op, channel.status());
    return Retry(op, channel.status());
  }
  if (!op->may_be_known) op->pinned_incarnation = peer_incarnation_;
  ++op->attempts;
  op->incoming.StartAttempt();
  auto owned = std::make_unique<FetchStream>(
      poller_, &op->incoming, op->serial, [this](FetchStream* stream) { OnLanded(stream); },
      [this](FetchStream* stream) { OnEnded(stream); });
  FetchStream* stream = owned.get();
  streams_.emplace(stream, std::move(owned));
  op->stream = stream;
  rpc::FetchRequest request;
  FillRequest(op, &request);
  const std::string bytes = request.SerializeAsString();
  stream->Start(events_->queue(), *channel, signer_->Sign(peer_, kFetchMethod, bytes), bytes);
}

void GrpcChannel::FillRequest(FetchOp* op, rpc::FetchRequest* request) {
  request->set_step_id(op->step_id);
  request->set_key(std::string(op->key.text()));
  request->set_serial(op->serial);
  request->set_channel(channel_);
  request->set_producer_incarnation(op->pinned_incarnation);
  request->set_offset(op->incoming.received());
  request->set_digests(options_.digests);
  FillOver(request, &op->stream->over_told);
}

void GrpcChannel::FillOver(rpc::FetchRequest* request, std::vector<uint64_t>* told) {
  poller_->CancelTimer(&note_timer_);
  uint64_t oldest = ops_.empty() ? next_serial_ : ops_.begin()->first;
  over_.erase(
      std::remove_if(over_.begin(), over_.end(),
                     [oldest](const Over& over) { return over.delivered && over.serial < oldest; }),
      over_.end());
  // What goes back to the producer first: `oldest` alone would say that it was delivered.
  for (const bool delivered : {false, true}) {
    for (const Over& over : over_) {
      if (over.delivered != delivered) continue;
      if (request->over_size() == kMaxOverTold) {
        if (!delivered) oldest = std::min(oldest, over.serial);
        if (closed_.ok()) SetNote(poller_->now_ns() + kNoteAfterNs);
        continue;
      }
      request->add_over(over.serial);
      if (!delivered) request->add_unwanted(over.serial);
      told->push_back(over.serial);
    }
  }
  request->set_oldest_serial(oldest);
}

void GrpcChannel::SetNote(int64_t at_ns) {
  if (!note_timer_.is_set() || at_ns < note_at_ns_)
    poller_->SetTimer(&note_timer_, note_at_ns_ = at_ns);
}

// Nobody repeats a note: one that is lost is in the next request, and a producer that never
// hears of it keeps the tensor for as long as it keeps those of a consumer that is gone.
void GrpcChannel::SendNote() {
  auto channel = directory_->ChannelTo(peer_);
  if (!channel.ok()) return;
  auto owned = std::make_unique<FetchStream>(
      poller_, nullptr, 0, [](FetchStream*) {}, [this](FetchStream* stream) { OnEnded(stream); });
  FetchStream* stream = owned.get();
  streams_.emplace(stream, std::move(owned));
  rpc::FetchRequest note;
  note.set_ends(true);
  note.set_channel(channel_);
  note.set_serial(next_serial_);
  FillOver(&note, &stream->over_told);
  stream->EndWithin(kNoteLongestNs);
  const std::string bytes = note.SerializeAsString();
  stream->Start(events_->queue(), *channel, signer_->Sign(peer_, kFetchMethod, bytes), bytes);
  if (!closed_.ok()) stream->Hurry();
}

// The producer has read what this request said is over.
void GrpcChannel::ForgetTold(const FetchStream& stream) {
  for (uint64_t told : stream.over_told) {
    over_.erase(std::remove_if(over_.begin(), over_.end(),
                               [told](const Over& over) { return over.serial == told; }),
                over_.end());
  }
}

void GrpcChannel::OnLanded(FetchStream* stream) {
  FetchOp* op = Find(stream->serial());
  if (op == nullptr) return;  // Detached: SendEnds() was called.
  last_failure_ = absl::OkStatus();
  failing_since_ns_ = 0;
  if (op->incoming.digest_wrong()) return OnDigestWrong(op, stream->taken());
  if (!stream->taken().ok()) return Finish(op, stream->taken(), Tensor(), false);
  ForgetTold(*stream);
  OnHeader(op);
}

// Once, the bytes are asked for again, from where they were good.
void GrpcChannel::OnDigestWrong(FetchOp* op, const absl::Status& why) {
  ++digests_wrong_;
  TRYST_LOG(Warning) << peer_ << " by grpc, " << op->key.text() << ": " << why.message();
  if (std::exchange(op->digest_was_wrong, true)) return Finish(op, why, Tensor(), false);
  op->stream->Detach();
  op->stream->Cancel();
  op->stream = nullptr;
  op->may_be_known = true;
  op->pinned_incarnation = op->incoming.header().producer_incarnation();
  Ask(op);
}

void GrpcChannel::OnHeader(FetchOp* op) {
  const rpc::FetchHeader& header = op->incoming.header();
  peer_incarnation_ = header.producer_incarnation();
  if (header.is_other_incarnation() && !op->may_be_known && op->attempts < kMaxIncarnationsTried) {
    // The peer has restarted since we last heard of it; this fetch is new to both lives.
    op->stream->Detach();
    op->stream = nullptr;
    return Ask(op);
  }
  if (header.code() != 0) {
    absl::Status status(static_cast<absl::StatusCode>(header.code()), header.message());
    return Finish(op, header.is_derived() ? MarkDerived(status) : status, Tensor(), false);
  }
  absl::StatusOr<Tensor> tensor = op->incoming.Finish();
  if (!tensor.ok()) return Finish(op, tensor.status(), Tensor(), false);
  Stage(op, *std::move(tensor), header.tensor().is_dead());
}

void GrpcChannel::Stage(FetchOp* op, Tensor landed, bool is_dead) {
  const Args& args = op->args;
  const bool to_device = args.destination.valid()
                             ? !args.destination.space().host_readable()
                             : args.device_context != nullptr && !args.alloc_attrs.on_host;
  if (!to_device || !landed.valid() || landed.dtype() == DType::kString) {
    ++fetched_;
    return Finish(op, absl::OkStatus(), std::move(landed), is_dead);
  }
  absl::StatusOr<Tensor> into = args.destination;
  if (!args.destination.valid()) {
    into = args.device_context->Allocate(landed.dtype(), landed.shape(), args.alloc_attrs);
  } else if (landed.dtype() != into->dtype() || landed.shape() != into->shape()) {
    into = absl::InvalidArgumentError(
        absl::StrCat("the tensor is ", DTypeName(landed.dtype()), landed.shape().ToString(),
                     ", the destination ", DTypeName(into->dtype()), into->shape().ToString()));
  }
  if (!into.ok()) return Finish(op, into.status(), Tensor(), false);
  op->state = FetchOp::State::kStaging;
  op->span.Enter(WaitsFor::kCopy, poller_->now_ns());
  op->staged = *std::move(into);
  posted_.fetch_add(1);
  args.device_context->StartCopy(landed, op->staged, [this, op](absl::Status status) {
    poller_->PostFn([this, op, status] {
      posted_.fetch_sub(1);
      const absl::Status end = op->broken.ok() ? status : op->broken;
      if (end.ok()) ++fetched_;
      Finish(op, end, end.ok() ? std::move(op->staged) : Tensor(), false);
    });
  });
}

void GrpcChannel::OnEnded(FetchStream* stream) {
  auto owned = std::move(streams_[stream]);
  streams_.erase(stream);
  if (stream->status().ok()) ForgetTold(*stream);
  FetchOp* op = Find(stream->serial());
  if (op == nullptr || op->stream != stream) return;
  op->stream = nullptr;
  op->may_be_known |= stream->may_be_known();
  absl::Status status = FromGrpc(stream->status());
  if (status.ok()) status = absl::UnavailableError("the stream ended without a tensor");
  if (IsTransient(stream->status())) return Retry(op, status);
  Finish(op, status, Tensor(), false);
}

void GrpcChannel::Retry(FetchOp* op, const absl::Status& why) {
  const int64_t now_ns = poller_->clock().NowNs();
  last_failure_ = directory_->Explain(peer_, why);
  if (failing_since_ns_ == 0) failing_since_ns_ = now_ns;
  if (op->incoming.header_seen()) {
    op->pinned_incarnation = op->incoming.header().producer_incarnation();
  }
  const uint64_t received = op->incoming.received();
  if (op->failing_since_ns == 0 || received > op->received_at_failure) {
    op->failing_since_ns = now_ns;
    op->received_at_failure = received;
  }
  const int64_t failing_ns = now_ns - op->failing_since_ns;
  if (failing_ns >= absl::ToInt64Nanoseconds(options_.patience)) {
    return FinishSoon(op, absl::UnavailableError(absl::StrCat(
                              peer_, " did not answer for ", failing_ns / 1000000000, " s and ",
                              op->attempts, " attempts; last: ", last_failure_.message())));
  }
  // A quarter of the time that it has been failing: exponential, and the same for all
  // fetches that began to fail at once but for a spread by serial.
  int64_t wait_ns = std::max(absl::ToInt64Nanoseconds(options_.first_retry), failing_ns / 4);
  wait_ns = std::min(wait_ns, absl::ToInt64Nanoseconds(options_.longest_retry));
  wait_ns += wait_ns / 16 * static_cast<int64_t>(op->serial % 8);
  op->state = FetchOp::State::kBackingOff;
  op->span.Enter(WaitsFor::kRetry, now_ns);
  op->retry_at_ns = now_ns + wait_ns;
  SetTimer(op);
}

void GrpcChannel::SetTimer(FetchOp* op) {
  int64_t at_ns = op->args.deadline.at_ns();
  if (op->retry_at_ns != 0) at_ns = std::min(at_ns, op->retry_at_ns);
  if (op->retry_at_ns == 0 && op->args.deadline.is_never()) return;
  poller_->SetTimer(&op->timer, at_ns);
}

void GrpcChannel::OnTimer(FetchOp* op) {
  const int64_t now_ns = poller_->clock().NowNs();
  if (op->args.deadline.Passed(now_ns)) {
    return Break(op, absl::DeadlineExceededError(absl::StrCat(
                         "the deadline has passed; ", last_failure_.ok()
                                                          ? "the tensor was not sent"
                                                          : std::string(last_failure_.message()))));
  }
  if (op->state == FetchOp::State::kBackingOff) Ask(op);
  if (!op->timer.is_set()) SetTimer(op);
}

void GrpcChannel::Break(FetchOp* op, const absl::Status& why) {
  if (op->state == FetchOp::State::kStaging) {
    if (op->broken.ok()) op->broken = why;
    return;
  }
  Finish(op, why, Tensor(), false);
}

void GrpcChannel::FinishSoon(FetchOp* op, absl::Status status) {
  PostCounted([this, serial = op->serial, status = std::move(status)] {
    if (FetchOp* ended = Find(serial)) Finish(ended, status, Tensor(), false);
  });
}

void GrpcChannel::Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (op->stream != nullptr) {
    op->stream->Detach();
    if (!status.ok()) op->stream->Cancel();
  }
  if (op->stream != nullptr || op->may_be_known) {
    if (over_.size() == kMaxOver) over_.erase(over_.begin());
    over_.push_back({op->serial, status.ok()});
    SetNote(poller_->now_ns() + (status.ok() ? kNoteAfterNs : 0));
  }
  if (op->token != Cancellation::kNoToken) op->args.cancellation->Deregister(op->token);
  poller_->CancelTimer(&op->timer);
  const bool was_in_line = op->state == FetchOp::State::kInLine;
  auto owned = std::move(ops_[op->serial]);
  ops_.erase(op->serial);
  if (!was_in_line) --asked_;
  AskNext();
  if (track_ != nullptr) {
    options_.trace->End(owned->span, track_, owned->step_id, owned->key,
                        tensor.valid() ? tensor.bytes() : 0, status.code(), poller_->now_ns());
  }

  Executor* const executor = owned->args.executor;
  if (executor == nullptr) {
    std::move(owned->done)(std::move(status), Args(), owned->args, std::move(tensor), is_dead);
    return;
  }
  Executor::Work work = [op = std::move(owned), status = std::move(status),
                         tensor = std::move(tensor), is_dead]() mutable {
    std::move(op->done)(std::move(status), Args(), op->args, std::move(tensor), is_dead);
  };
  Deliver(executor, std::move(work));
}

void GrpcChannel::Deliver(Executor* executor, Executor::Work work) {
  if (executor->TryRun(&work)) return;
  // No room. This thread must go on, and comes back to it.
  undelivered_.emplace_back(executor, std::move(work));
  if (!deliver_timer_.is_set()) {
    poller_->SetTimer(&deliver_timer_, poller_->clock().NowNs() + kDeliverAgainNs);
  }
}

void GrpcChannel::DeliverTimer::OnTimer() {
  std::deque<std::pair<Executor*, Executor::Work>> works;
  works.swap(channel->undelivered_);
  for (auto& [executor, work] : works) channel->Deliver(executor, std::move(work));
}

void GrpcChannel::AskNext() {
  while (closed_.ok() && !line_.empty() && asked_ < options_.max_asked) {
    FetchOp* next = Find(line_.front());
    line_.pop_front();
    if (next == nullptr) continue;
    ++asked_;
    Ask(next);
  }
}

void GrpcChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  std::vector<uint64_t> serials;
  for (const auto& [serial, op] : ops_) {
    if (op->step_id == step_id) serials.push_back(serial);
  }
  for (uint64_t serial : serials) {
    if (FetchOp* op = Find(serial)) Break(op, why);
  }
}

void GrpcChannel::Close(absl::Status why) {
  if (!closed_.ok()) return;
  closed_ = std::move(why);
  std::vector<uint64_t> serials;
  for (const auto& [serial, op] : ops_) serials.push_back(serial);
  for (uint64_t serial : serials) {
    if (FetchOp* op = Find(serial)) Break(op, closed_);
  }
  if (note_timer_.is_set()) {
    poller_->CancelTimer(&note_timer_);
    SendNote();
  }
  // A peer that says nothing must not keep us longer than one that does.
  for (auto& [stream, owned] : streams_) stream->Hurry();
}

bool GrpcChannel::Drained() const {
  return !closed_.ok() && ops_.empty() && streams_.empty() && undelivered_.empty() &&
         !note_timer_.is_set() && posted_.load() == 0;
}

std::string GrpcChannel::Explain() const {
  std::string out = absl::StrCat("grpc to ", peer_, ": ", fetched_, " fetched, ", asked_,
                                 " asked, ", line_.size(), " in line");
  if (digests_wrong_ != 0) absl::StrAppend(&out, ", ", digests_wrong_, " digests wrong");
  if (!closed_.ok()) absl::StrAppend(&out, "; closed: ", closed_.message());
  if (failing_since_ns_ != 0) {
    absl::StrAppend(&out, "; no answer for ",
                    (poller_->clock().NowNs() - failing_since_ns_) / 1000000,
                    " ms: ", last_failure_.message());
  }
  return out;
}

void GrpcChannel::ListOps(LiveOps* ops) const {
  for (const auto& [serial, op] : ops_) {
    LiveOp live{TraceRole::kFetch,       peer_, "grpc", op->step_id, op->key, op->span,
                op->incoming.received(), ""};
    if (op->state == FetchOp::State::kBackingOff) {
      live.detail = std::string(last_failure_.message());
    }
    ops->Add(std::move(live));
  }
}

GrpcChannel::FetchOp* GrpcChannel::Find(uint64_t serial) const {
  auto it = ops_.find(serial);
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
