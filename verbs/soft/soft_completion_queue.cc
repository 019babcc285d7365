#include "verbs/soft/soft_completion_queue.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

// A receive call costs as much as asking epoll: the first lanes of up to this many queue pairs are
// simply tried, and later ones only while large messages are under way.
constexpr size_t kFewLanes = 2;
constexpr uint64_t kTurnsOfStriping = 64;
// While striping, a turn looks after the listener, strangers and timers only once in this many
// turns.
constexpr uint64_t kTurnsBetweenLooks = 32;
constexpr int kEventsPerTurn = 64;
constexpr uint32_t kFirstRing = 1024;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What epoll is to say of a lane. What a helper receives would wake us in vain, and so would what
// is not read before another lane has brought something.
uint32_t Events(const SoftLane& lane) {
  const bool for_room =
      lane.stream.shows_room_apart() &&
      (lane.full || (lane.state == SoftLane::State::kDialling && !lane.stream.SendWaitsForPeer()));
  return (lane.receiving.given() || lane.parked ? 0u : EPOLLIN) | (for_room ? EPOLLOUT : 0u);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SoftCompletionQueue>> SoftCompletionQueue::Create(
    SoftContext* context, uint32_t depth) {
  std::unique_ptr<SoftCompletionQueue> queue(new SoftCompletionQueue(context, depth));
  const absl::Status opened = queue->Open();
  if (!opened.ok()) return opened;
  return queue;
}

SoftCompletionQueue::SoftCompletionQueue(SoftContext* context, uint32_t depth)
    : context_(context),
      depth_(depth),
      ack_delay_ns_(absl::ToInt64Nanoseconds(context->options.ack_delay)),
      ring_(std::min(depth, kFirstRing)),
      door_(context, &epoll_, &queue_pairs_) {}

SoftCompletionQueue::~SoftCompletionQueue() {
  TRYST_CHECK(queue_pairs_.empty() && lanes_.empty() && reserved_.load() == 0)
      << "a completion queue is destroyed before its queue pairs";
}

absl::Status SoftCompletionQueue::Open() {
  const bool opened = epoll_.Open();
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!opened || !wake_.valid() || !timer_.valid() || bell_->fd() < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the process has no file descriptor left for a completion queue: raise the "
                     "limit of open files (ulimit -n): ",
                     strerror(errno)));
  }
  epoll_.Watch(wake_.get(), EPOLLIN, SoftEpoll::kWakeId, EPOLL_CTL_ADD);
  epoll_.Watch(timer_.get(), EPOLLIN, SoftEpoll::kTimerId, EPOLL_CTL_ADD);
  epoll_.Watch(bell_->fd(), EPOLLIN, SoftEpoll::kBellId, EPOLL_CTL_ADD);
  return door_.Listen();
}

absl::StatusOr<size_t> SoftCompletionQueue::Poll(absl::Span<Completion> out) {
  polling_ = true;  // What this turn finds wakes nobody: it is about to be taken.
  if (ring_end_ - ring_begin_ < out.size()) TakeTurn();
  polling_ = false;
  size_t taken = 0;
  while (taken < out.size() && ring_begin_ < ring_end_) {
    const Finished& finished = ring_[ring_begin_++ % ring_.size()];
    out[taken++] = finished.completion;
    finished.queue_pair->OnPolled(finished.sends_back, finished.receives_back);
  }
  if (taken > 0) armed_ = false;
  if (woken_ && ring_begin_ == ring_end_) {
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    woken_ = false;
  }
  if (armed_ && ring_begin_ < ring_end_) Wake();
  return taken;
}

absl::Status SoftCompletionQueue::Arm() {
  armed_ = true;
  PayDebts(DebtsAreDue(/*sleeping=*/true));
  WatchWhatMatters();
  if (ring_begin_ < ring_end_) Wake();
  return absl::OkStatus();
}

void SoftCompletionQueue::NotePosted() {
  if (!armed_) return;
  PayDebts(DebtsAreDue(/*sleeping=*/true));
  WatchWhatMatters();
}

absl::Status SoftCompletionQueue::Reserve(uint32_t works) {
  uint32_t reserved = reserved_.load();
  do {
    if (works > depth_ - reserved) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the completion queue has ", depth_ - reserved, " of ", depth_,
                       " entries left, and another queue pair takes ", works,
                       ": connect fewer peers, or raise max_peers"));
    }
  } while (!reserved_.compare_exchange_weak(reserved, reserved + works));
  return absl::OkStatus();
}

void SoftCompletionQueue::Unreserve(uint32_t works) { reserved_.fetch_sub(works); }

void SoftCompletionQueue::Attach(SoftQueuePair* queue_pair) {
  queue_pairs_[queue_pair->number()] = queue_pair;
}

void SoftCompletionQueue::Detach(SoftQueuePair* queue_pair) {
  queue_pairs_.erase(queue_pair->number());
  active_.erase(std::remove(active_.begin(), active_.end(), queue_pair), active_.end());
  debtors_.erase(std::remove(debtors_.begin(), debtors_.end(), queue_pair), debtors_.end());
  uint64_t kept = ring_begin_;
  for (uint64_t i = ring_begin_; i < ring_end_; ++i) {
    const Finished& finished = ring_[i % ring_.size()];
    if (finished.queue_pair != queue_pair) ring_[kept++ % ring_.size()] = finished;
  }
  ring_end_ = kept;
}

void SoftCompletionQueue::Push(const Completion& completion, SoftQueuePair* queue_pair,
                               uint32_t sends_back, uint32_t receives_back) {
  TRYST_CHECK(ring_end_ - ring_begin_ < depth_);
  if (ring_end_ - ring_begin_ == ring_.size()) GrowRing();
  ring_[ring_end_++ % ring_.size()] = {completion, queue_pair, sends_back, receives_back};
  if (armed_ && !polling_) Wake();
}

void SoftCompletionQueue::GrowRing() {
  std::vector<Finished> ring(std::min<size_t>(2 * ring_.size(), depth_));
  uint64_t kept = 0;
  while (ring_begin_ < ring_end_) ring[kept++] = ring_[ring_begin_++ % ring_.size()];
  ring_.swap(ring);
  ring_begin_ = 0;
  ring_end_ = kept;
}

void SoftCompletionQueue::NoteActive(SoftQueuePair* queue_pair) {
  if (queue_pair->SetActive(true)) active_.push_back(queue_pair);
}

void SoftCompletionQueue::NoteDebt(SoftQueuePair* queue_pair) {
  if (ack_delay_ns_ > 0 && debtors_.empty()) debts_since_ns_ = context_->clock->NowNs();
  debtors_.push_back(queue_pair);
}

bool SoftCompletionQueue::DebtsAreDue(bool sleeping) const {
  if (ack_delay_ns_ == 0) return sleeping;
  return !debtors_.empty() && context_->clock->NowNs() - debts_since_ns_ >= ack_delay_ns_;
}

void SoftCompletionQueue::PayDebts(bool all) {
  paying_.swap(debtors_);
  for (SoftQueuePair* debtor : paying_) {
    if (debtor->DebtMayWait(turn_, all)) {
      debtors_.push_back(debtor);
    } else {
      debtor->PayDebt();
    }
  }
  paying_.clear();
}

bool SoftCompletionQueue::FewLanes() const {
  if (first_lanes_ == 0 || first_lanes_ > kFewLanes || turn_ < striping_until_ ||
      door_.any_stranger()) {
    return false;
  }
  return std::all_of(lanes_.begin(), lanes_.end(), [](const SoftLane* lane) { return lane->up(); });
}

void SoftCompletionQueue::TakeTurn() {
  ++turn_;
  PayDebts(DebtsAreDue(/*sleeping=*/false));
  if (!handed_.empty()) TakeBackHanded();
  // Backwards: a lane that is lost leaves the list, and one that is to be served again comes last.
  for (size_t i = again_.size(); i-- > 0;) {
    if (i >= again_.size()) continue;
    SoftLane* const lane = again_[i];
    again_.erase(again_.begin() + static_cast<ptrdiff_t>(i));
    lane->again = false;
    lane->owner->Serve(lane);
  }
  const bool few = FewLanes();
  // From now on only epoll says that one of them has room again.
  if (std::exchange(were_few_, few) && !few) WatchLanes();
  // Backwards: a lane that is lost leaves the list.
  for (size_t i = few ? lanes_.size() : 0; i-- > 0;) {
    const bool is_due = i < lanes_.size() && lanes_[i]->index == 0 && !lanes_[i]->again;
    if (is_due) lanes_[i]->owner->Serve(lanes_[i]);
  }
  // Whoever slept may have been woken by a timer or a stranger, unless this is what for.
  const bool found = ring_begin_ < ring_end_;
  const bool look = (armed_ && !found) || turn_ % kTurnsBetweenLooks == 0;
  if (!few || look) ServeReady();
  if (look) RunTimers();
  if (armed_ && !found) WatchWhatMatters();
}

void SoftCompletionQueue::ServeReady() {
  epoll_event events[kEventsPerTurn];
  const int ready = epoll_wait(epoll_.fd(), events, kEventsPerTurn, 0);
  bool strangers = false;
  bool leaving = false;
  for (int i = 0; i < ready; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == SoftEpoll::kListenerId) {
      door_.Accept();
      strangers = true;  // Whose hello has often come along.
    } else if (id == SoftEpoll::kTimerId) {
      uint64_t ignored;
      // Only to make it unreadable; RunTimers() looks at the clock.
      [[maybe_unused]] const ssize_t got = read(timer_.get(), &ignored, sizeof(ignored));
      timer_at_ns_ = kNever;
      RunTimers();
    } else if (id == SoftEpoll::kBellId) {
      bell_->Clear();  // The next turn takes back.
    } else if (id != SoftEpoll::kWakeId) {
      // By number, because what came before it in `events` may have closed it.
      const auto lane = lane_by_id_.find(id);
      if (lane != lane_by_id_.end()) {
        // One that is to be served again has brought all that it may in this turn.
        if (!lane->second->again) lane->second->owner->Serve(lane->second);
      } else {
        strangers = leaving = true;
      }
    }
  }
  if (strangers) door_.HearStrangers();
  if (leaving) door_.SeeOff();
}

void SoftCompletionQueue::RunTimers() {
  const int64_t now_ns = context_->clock->NowNs();
  for (SoftLane* lane : handed_) {
    lane->sending.Hurry(now_ns);
    lane->receiving.Hurry(now_ns);
  }
  for (SoftQueuePair* queue_pair : active_) queue_pair->OnTimer(now_ns);
  door_.RunTimers(now_ns);
}

void SoftCompletionQueue::WatchWhatMatters() {
  const int64_t now_ns = context_->clock->NowNs();
  int64_t at_ns = door_.next_timer_ns();
  for (size_t i = active_.size(); i-- > 0;) {
    SoftQueuePair* const queue_pair = active_[i];
    queue_pair->WatchLanes();
    const int64_t next_ns = queue_pair->next_timer_ns(now_ns);
    at_ns = std::min(at_ns, next_ns);
    if (next_ns != kNever) continue;
    queue_pair->SetActive(false);
    active_[i] = active_.back();
    active_.pop_back();
  }
  if (ack_delay_ns_ > 0 && !debtors_.empty()) {
    at_ns = std::min(at_ns, debts_since_ns_ + ack_delay_ns_);
  }
  SetTimer(at_ns, now_ns);
  if (handed_.empty() && again_.empty()) return;
  bell_->Listen();
  const bool done =
      !again_.empty() || std::any_of(handed_.begin(), handed_.end(), [](const SoftLane* lane) {
        return lane->sending.done() || lane->receiving.done();
      });
  if (done) bell_->Ring();
}

void SoftCompletionQueue::SetTimer(int64_t at_ns, int64_t now_ns) {
  // One that is set for sooner will do: it is set anew when it has rung.
  if (at_ns >= timer_at_ns_ && timer_at_ns_ > now_ns) return;
  timer_at_ns_ = at_ns;
  if (at_ns == kNever) return;
  const int64_t after_ns = std::max<int64_t>(at_ns - now_ns, 1);
  itimerspec spec = {};
  spec.it_value.tv_sec = after_ns / 1'000'000'000;
  spec.it_value.tv_nsec = after_ns % 1'000'000'000;
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void SoftCompletionQueue::AddLane(SoftLane* lane) {
  lane->id = epoll_.NewId();
  lanes_.push_back(lane);
  lane_by_id_[lane->id] = lane;
  lane->watched_for = Events(*lane);
  epoll_.Watch(lane->stream.fd(), lane->watched_for, lane->id, EPOLL_CTL_ADD);
  if (lane->index == 0) ++first_lanes_;
}

void SoftCompletionQueue::RemoveLane(SoftLane* lane) {
  // Closing a socket also takes it out of epoll, but CloseGently() keeps some open.
  epoll_.Unwatch(lane->stream.fd());
  lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), lane), lanes_.end());
  if (lane->index == 0) --first_lanes_;
  if (lane->handed) handed_.erase(std::find(handed_.begin(), handed_.end(), lane));
  lane->handed = false;
  if (lane->again) again_.erase(std::find(again_.begin(), again_.end(), lane));
  lane->again = false;
  lane_by_id_.erase(lane->id);
  lane->id = 0;
}

void SoftCompletionQueue::WatchLane(SoftLane* lane) {
  const uint32_t events = Events(*lane);
  if (events == lane->watched_for) return;
  lane->watched_for = events;
  epoll_.Watch(lane->stream.fd(), events, lane->id, EPOLL_CTL_MOD);
}

void SoftCompletionQueue::WatchLanes() {
  for (SoftLane* lane : lanes_) WatchLane(lane);
}

void SoftCompletionQueue::ServeAgain(SoftLane* lane) {
  if (std::exchange(lane->again, true)) return;
  again_.push_back(lane);
}

void SoftCompletionQueue::NoteFull(SoftLane* lane) {
  // A few first lanes are tried each turn anyway, which saves two calls each time one fills.
  if (lane->index > 0 || !FewLanes()) WatchLane(lane);
}

// ---- Helpers ----

void SoftCompletionQueue::NoteStriping() { striping_until_ = turn_ + kTurnsOfStriping; }

void SoftCompletionQueue::Hand(SoftLane* lane, SoftHand* hand) {
  hand->Give(context_->options.crew.get(), bell_, context_->clock->NowNs());
  if (lane->handed) return;
  lane->handed = true;
  handed_.push_back(lane);
}

void SoftCompletionQueue::TakeBackHanded() {
  NoteStriping();
  // Backwards: a lane that is lost leaves the list, and one that goes on stays.
  for (size_t i = handed_.size(); i-- > 0;) {
    if (i >= handed_.size()) continue;
    SoftLane* const lane = handed_[i];
    if (lane->sending.done() || lane->receiving.done()) {
      lane->owner->TakeBack(lane);
      if (i >= handed_.size() || handed_[i] != lane) continue;
    }
    if (lane->sending.given() || lane->receiving.given()) continue;
    lane->handed = false;
    handed_[i] = handed_.back();
    handed_.pop_back();
  }
}

void SoftCompletionQueue::Wake() {
  if (woken_) return;
  woken_ = true;
  eventfd_write(wake_.get(), 1);
}

}  // namespace tryst
