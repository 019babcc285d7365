#include "verbs/soft/soft_queue_pair.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// How long what is under way at the end may stand still, where nobody hears of its arrival, and
// where somebody could have heard and has given up. The first also bounds what a peer that hangs
// costs its many connections: after one such wait the others are short for kShortAfterNs. A peer
// that reads now and then, or talks and reads nothing, is waited for kMostWaits times as long.
constexpr int64_t kLastWaitNs = 1'000'000'000;
constexpr int64_t kShortWaitNs = 20'000'000;
constexpr int64_t kShortAfterNs = 5'000'000'000;
constexpr int64_t kMostWaits = 10;
constexpr useconds_t kLookAgainUs = 50;

// Throws away what has come, and tells how much the peer's kernel does not have. 0 also if the peer
// has ended. One that sends without a pause does not keep us here.
size_t StillUnderWay(SoftStream* stream, bool* heard) {
  char ignored[16 << 10];
  for (int i = 0; i < 256; ++i) {
    const ssize_t got = stream->Discard(ignored, sizeof(ignored));
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) return 0;
    *heard = true;
  }
  return stream->Unsent();
}

}  // namespace

SoftQueuePair::SoftQueuePair(SoftContext* context, SoftCompletionQueue* completions,
                             const QueuePairOptions& options, uint32_t number)
    : shared_(context, completions, this, options, number) {}

SoftQueuePair::~SoftQueuePair() {
  AwaitPeersKernel();
  Break();
  shared_.completions->Detach(this);
  shared_.completions->Unreserve(shared_.options.send_depth + shared_.options.receive_depth);
}

void SoftQueuePair::Attach() const {
  if (attached_) return;
  attached_ = true;
  shared_.completions->Attach(shared_.queue_pair);
}

QueuePairState SoftQueuePair::state() const {
  const bool drained = connection_.state() == QueuePairState::kBroken &&
                       ending_.sends_held() == 0 && ending_.receives_held() == 0;
  return drained ? QueuePairState::kDrained : connection_.state();
}

std::string SoftQueuePair::LocalAddress() const {
  Attach();
  SoftAddress address;
  address.token = shared_.token;
  address.number = shared_.number;
  address.sockets = static_cast<uint8_t>(shared_.context->options.sockets_per_queue_pair);
  address.tls = shared_.context->tls != nullptr;
  address.listener = shared_.completions->listener_address();
  const std::string& secret = shared_.context->options.secret;
  return secret.empty() ? EncodeSoftAddress(address)
                        : SealSoftAddress(address, secret, shared_.context->NewToken());
}

absl::Status SoftQueuePair::Connect(absl::string_view remote_address) {
  Attach();
  const absl::Status connects = connection_.Connect(remote_address);
  if (!connects.ok()) return connects;
  shared_.completions->NoteActive(this);
  shared_.completions->NotePosted();
  return absl::OkStatus();
}

bool SoftQueuePair::Adopt(const SoftHello& hello, SoftStream* stream) {
  if (!connection_.Adopt(hello, stream)) return false;
  shared_.completions->NoteActive(this);
  if (connection_.ready()) Pump();
  return true;
}

// ---- Works ----

absl::Status SoftQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (!connection_.ready()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a transfer is posted while the queue pair is ", QueuePairStateName(connection_.state())));
  }
  if (works.size() > send_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        works.size(), " transfers are posted, and the queue pair has room for ", send_room()));
  }
  for (const SendWork& work : works) {
    const absl::Status checked = shared_.sends.Check(work);
    if (!checked.ok()) return checked;
  }
  // The wait for the peer begins now, not when it last had nothing to do.
  if (!WaitsForPeer()) shared_.waits.NoteMoved();
  shared_.completions->NoteActive(this);
  for (const SendWork& work : works) shared_.sends.Post(work);
  ending_.HoldSends(works.size());
  Pump();
  shared_.completions->NotePosted();
  return absl::OkStatus();
}

absl::Status SoftQueuePair::PostReceive(absl::Span<const ReceiveWork> works) {
  if (connection_.state() == QueuePairState::kBroken) {
    return absl::FailedPreconditionError("a receive is posted while the queue pair is broken");
  }
  if (works.size() > receive_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        works.size(), " receives are posted, and the queue pair has room for ", receive_room()));
  }
  const absl::Status checked = shared_.receives.Check(works);
  if (!checked.ok()) return checked;
  for (const ReceiveWork& work : works) shared_.receives.Post(work);
  ending_.HoldReceives(works.size());
  if (connection_.ready()) shared_.OweAckIfCreditIsDue();
  shared_.completions->NotePosted();
  return absl::OkStatus();
}

void SoftQueuePair::Pump() {
  sender_.Pump();
  ending_.GiveBackSends();
}

bool SoftQueuePair::sends_wait_for_poll() const {
  return connection_.ready() && (shared_.sends.any_waits() || connection_.AnyBatch());
}

void SoftQueuePair::OnPolled(uint32_t sends_back, uint32_t receives_back) {
  ending_.OnPolled(sends_back, receives_back);
}

// ---- Frames ----

void SoftQueuePair::Serve(SoftLane* lane) {
  shared_.completions->NoteActive(this);
  if (!connection_.Serve(lane)) return;
  const bool came = receiver_.Read(lane);
  if (receiver_.any_parked()) {
    receiver_.TakeParked();
    ending_.LoseIfStuck();
  } else if (!came && !lane->full && !sender_.AnythingToSend()) {
    return;  // Most looks of a poller that does not sleep.
  }
  if (!connection_.ready()) return;
  lane->full = false;
  Pump();
}

void SoftQueuePair::TakeBack(SoftLane* lane) {
  if (lane->receiving.done()) {
    receiver_.FinishHanded(lane);
    if (connection_.ready() && receiver_.any_parked()) receiver_.TakeParked();
    ending_.LoseIfStuck();
  }
  if (connection_.ready() && lane->sending.done()) sender_.FinishHanded(lane);
  if (connection_.ready()) Pump();
}

bool SoftQueuePair::DebtMayWait(uint64_t turn, bool due) const {
  return shared_.progress.DebtMayWait(turn, due, landing_.message().total);
}

void SoftQueuePair::PayDebt() {
  shared_.progress.EndDebt();
  if (!connection_.ready() || !shared_.progress.AnythingUnsaid()) return;
  shared_.completions->NoteActive(this);
  sender_.Acknowledge();
}

// ---- The end ----

// Sends without a completion may be under way. The peer can read what its kernel has; what ours
// still has is thrown away if we close while words of the peer's are unread, or if some come later.
// So they are read, until the peer's kernel has all.
void SoftQueuePair::AwaitPeersKernel() {
  if (!connection_.ready() || sends_wait_for_poll()) return;
  const bool left = shared_.options.ends_when_left;
  const bool unheard = (left && !shared_.progress.all_acked()) || shared_.sends.AnyUnsignaled();
  if (!unheard) return;  // The code that waits for them has given up.
  PayDebt();
  if (!connection_.ready()) return;
  for (const std::unique_ptr<SoftLane>& lane : connection_.lanes()) lane->Recall();
  const Clock& clock = *shared_.context->clock;
  std::atomic<int64_t>& in_vain_ns = shared_.context->waited_in_vain_ns;
  const int64_t began_ns = clock.NowNs();
  int64_t moved_ns = began_ns;
  const bool is_short = !left || began_ns < in_vain_ns.load() + kShortAfterNs;
  const int64_t wait_ns = is_short ? kShortWaitNs : kLastWaitNs;
  size_t before = 0;
  for (;; usleep(kLookAgainUs)) {
    size_t under_way = 0;
    bool heard = false;
    for (const std::unique_ptr<SoftLane>& lane : connection_.lanes()) {
      if (lane->up()) under_way += StillUnderWay(&lane->stream, &heard);
    }
    if (under_way == 0) return;
    const int64_t now_ns = clock.NowNs();
    if (heard || under_way != before) moved_ns = now_ns;
    before = under_way;
    if (now_ns - moved_ns > wait_ns || now_ns - began_ns > kMostWaits * wait_ns) break;
  }
  if (!is_short) in_vain_ns.store(clock.NowNs());
}

void SoftQueuePair::Break() {
  if (connection_.state() == QueuePairState::kBroken) return;
  // Tell the peer what has landed, so that it need not guess.
  PayDebt();
  ending_.Break(CompletionStatus::kFlushed, SoftSendRing::kNone);
}

// ---- Timers ----

// Whether we wait for the peer's answer. Waiting for the peer's receive does not count.
bool SoftQueuePair::WaitsForPeer() const {
  if (connection_.hanging_up()) return true;
  if (shared_.sends.empty()) return false;
  return !shared_.waits.starved() || shared_.sends.any_started();
}

bool SoftQueuePair::SetActive(bool active) {
  if (active == active_) return false;
  active_ = active;
  shared_.waits.Restart();
  return true;
}

void SoftQueuePair::OnTimer(int64_t now_ns) {
  if (!connection_.ready()) return;
  connection_.RedialWhatIsDue(now_ns);
  switch (shared_.waits.OnTimer(now_ns, WaitedFor())) {
    case SoftWaits::TooLong::kNothing:
      return;
    case SoftWaits::TooLong::kPeer:
      return ending_.Lost();
    case SoftWaits::TooLong::kReceive:
      shared_.sends.at(shared_.sends.next()).error = CompletionStatus::kReceiverNotReady;
      return ending_.GiveBackSends();
  }
}

int64_t SoftQueuePair::next_timer_ns(int64_t now_ns) const {
  if (!connection_.ready()) return Patience::kForEver;
  return std::min(connection_.next_redial_ns(), shared_.waits.next_ns(now_ns, WaitedFor()));
}

}  // namespace tryst
