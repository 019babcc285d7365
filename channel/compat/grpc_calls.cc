#include "channel/compat/grpc_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "channel/grpc/grpc_status.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

constexpr int64_t kChecks = 8;  // Within the patience (Poller::RunningSince).
constexpr int64_t kReads = 4;   // In so much of the patience all that has arrived is read.

}  // namespace

GrpcCalls::GrpcCalls(const std::string& peer, PeerDirectory* directory, CallSigner* signer,
                     EventThread* events, Poller* poller, const GrpcChannelOptions& options,
                     OnStalled on_stalled, OnQuiet on_quiet)
    : peer_(peer),
      directory_(directory),
      signer_(signer),
      events_(events),
      poller_(poller),
      options_(options),
      on_stalled_(std::move(on_stalled)),
      on_quiet_(std::move(on_quiet)),
      number_(signer->NextChannel()),
      owed_(poller, absl::ToInt64Milliseconds(options.patience)) {}

GrpcCalls::~GrpcCalls() {
  poller_->CancelTimer(&cancel_timer_);
  poller_->CancelTimer(&stall_timer_);
}

FetchStream* GrpcCalls::New(IncomingTensor* incoming, uint64_t serial, FetchStream::Event on_landed,
                            FetchStream::Event on_ended) {
  auto owned = std::make_unique<FetchStream>(poller_, incoming, serial, std::move(on_landed),
                                             std::move(on_ended));
  FetchStream* const stream = owned.get();
  if (streams_.empty()) owed_.Begin();
  streams_.emplace(stream, std::move(owned));
  if (!stall_timer_.is_set()) WatchStalls();
  return stream;
}

void GrpcCalls::Start(FetchStream* stream, const std::shared_ptr<grpc::Channel>& channel,
                      rpc::FetchRequest* request) {
  if (options_.seals) request->set_sealed(true);
  const std::string text = request->SerializeAsString();
  const std::string statement = signer_->Sign(peer_, kFetchMethod, text);
  if (options_.seals) stream->Unseal(std::make_unique<CallSealing>(signer_->token(), statement));
  stream->Start(events_->queue(), channel, statement, text);
}

std::unique_ptr<FetchStream> GrpcCalls::Take(FetchStream* stream) {
  const auto found = streams_.find(stream);
  std::unique_ptr<FetchStream> owned = std::move(found->second);
  streams_.erase(found);
  to_cancel_.erase(stream);
  return owned;
}

void GrpcCalls::CancelSoon(FetchStream* stream) {
  to_cancel_.insert(stream);
  // In the next turn, after the deadlines that have passed in this one.
  if (!cancel_timer_.is_set()) poller_->SetTimer(&cancel_timer_, poller_->now_ns() + 1);
}

void GrpcCalls::CancelSome() {
  auto next = to_cancel_.begin();
  for (int i = 0; i < kCancelsInTurn && next != to_cancel_.end(); ++i) {
    FetchStream* const stream = *next;
    to_cancel_.erase(next++);
    stream->Cancel();
  }
  if (!to_cancel_.empty()) poller_->SetTimer(&cancel_timer_, poller_->now_ns() + 1);
}

absl::Status GrpcCalls::EndOf(const FetchStream& stream) const {
  return signer_->Heed(peer_, stream.statement(), FromGrpc(stream.status()));
}

void GrpcCalls::WatchStalls() {
  const int64_t patience_ns = absl::ToInt64Nanoseconds(options_.patience);
  if (patience_ns <= 0 || streams_.empty()) return;
  poller_->SetTimer(&stall_timer_, poller_->clock().NowNs() + patience_ns / kChecks);
}

// Whether what the peers have sent was read. Not while one event, such as a large allocation, keeps
// the events' thread from one look to the next, nor shortly after.
bool GrpcCalls::ReadsAll() {
  const uint64_t step = events_->step();
  if (step % 2 == 1 && step == events_step_) kept_ns_ = poller_->now_ns();
  events_step_ = step;
  return poller_->RunningSince(kept_ns_) >= absl::ToInt64Nanoseconds(options_.patience) / kReads;
}

void GrpcCalls::OnStallTimer() {
  const int64_t patience_ns = absl::ToInt64Nanoseconds(options_.patience);
  const bool may_judge = ReadsAll();
  std::vector<FetchStream*> stalled;
  for (const auto& [stream, owned] : streams_) {
    const uint64_t parts = stream->parts_so_far();
    if (parts != stream->seen_parts) {
      stream->seen_parts = parts;
      stream->seen_ns = poller_->now_ns();
      owed_.NoteWord();
    } else if (may_judge && parts != 0 && poller_->RunningSince(stream->seen_ns) >= patience_ns) {
      stalled.push_back(stream);
    }
  }
  for (FetchStream* stream : stalled) on_stalled_(stream);
  // At every look, except right after a word.
  const bool is_quiet = poller_->RunningSince(owed_.word_ns()) >= patience_ns / (2 * kChecks);
  if (!streams_.empty() && is_quiet) on_quiet_(may_judge);
  WatchStalls();
}

void GrpcCalls::Hurry() {
  for (auto& [stream, owned] : streams_) stream->Hurry();
}

void GrpcCalls::NoteAnswer() {
  last_failure_ = absl::OkStatus();
  failing_since_ns_ = 0;
  owed_.NoteWord();
}

void GrpcCalls::NoteFailure(const absl::Status& why) {
  last_failure_ = directory_->Explain(peer_, why);
  if (failing_since_ns_ == 0) failing_since_ns_ = FailingSinceNs(why);
}

// A call that ended because the peer was silent has been failing since the peer was first asked in
// vain: by us, or by gRPC's keepalive.
int64_t GrpcCalls::FailingSinceNs(const absl::Status& why) const {
  if (unanswered_since_ns() != 0) return unanswered_since_ns();
  const int64_t now_ns = poller_->clock().NowNs();
  if (!absl::StrContains(why.message(), "keepalive")) return now_ns;
  return std::max(owed_.word_ns(), now_ns - absl::ToInt64Nanoseconds(options_.answer_within));
}

// A quarter of the time for which it has been failing, so the pauses grow exponentially. Fetches
// that began to fail together retry together, except for a spread by serial.
int64_t GrpcCalls::BackOffNs(int64_t failing_ns, uint64_t spread) const {
  int64_t wait_ns = std::max(absl::ToInt64Nanoseconds(options_.first_retry), failing_ns / 4);
  wait_ns = std::min(wait_ns, absl::ToInt64Nanoseconds(options_.longest_retry));
  return wait_ns + wait_ns / 16 * static_cast<int64_t>(spread % 8);
}

}  // namespace tryst
