#ifndef TRYST_VERBS_SOFT_SOFT_COMPLETION_QUEUE_H_
#define TRYST_VERBS_SOFT_SOFT_COMPLETION_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_door.h"
#include "verbs/soft/soft_epoll.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_loans.h"

namespace tryst {

// The engine: one thread's queue pairs, their sockets, the listener that their peers
// dial, and the ring of finished works. Nothing in it is shared with another thread but
// Reserve() and Unreserve().
class SoftCompletionQueue final : public CompletionQueue {
 public:
  static absl::StatusOr<std::unique_ptr<SoftCompletionQueue>> Create(SoftContext* context,
                                                                     uint32_t depth);
  ~SoftCompletionQueue() override;

  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override;
  absl::Status Arm() override;
  // Sockets stay readable until they are read.
  bool ArmTellsAll() const override { return true; }
  int event_fd() const override { return epoll_.fd(); }

  // Any thread. Takes room for a queue pair's works, or kResourceExhausted.
  absl::Status Reserve(uint32_t works);
  void Unreserve(uint32_t works);

  // The rest is for this queue's queue pairs, on its thread.
  const std::string& listener_address() const { return door_.address(); }
  void Attach(SoftQueuePair* queue_pair);
  // Also forgets its completions that nobody has polled.
  void Detach(SoftQueuePair* queue_pair);
  void AddLane(SoftLane* lane);
  void RemoveLane(SoftLane* lane);
  void WatchLane(SoftLane* lane);  // For room, too, if it waits for some.
  void NoteFull(SoftLane* lane);
  // It holds bytes for the next turn, whatever its descriptor shows.
  void ServeAgain(SoftLane* lane);
  // Gives one of the lane's hands to a helper; the queue pair's TakeBack() follows.
  void Hand(SoftLane* lane, SoftHand* hand);
  // Messages that several lanes carry are under way: for some turns all lanes are looked after.
  void NoteStriping();
  SoftDoor* door() { return &door_; }
  // `sends_back` and `receives_back` are given back to the queue pair when it is polled.
  void Push(const Completion& completion, SoftQueuePair* queue_pair, uint32_t sends_back,
            uint32_t receives_back);
  // The queue pair may have something to wait for: until it has nothing, its timers and its
  // sockets are looked at. Idle ones cost a turn nothing, however many there are.
  void NoteActive(SoftQueuePair* queue_pair);
  // The queue pair owes its peer an acknowledgement, which waits some turns for company.
  void NoteDebt(SoftQueuePair* queue_pair);
  // To be called at the end of posting, which may leave something to wait for.
  void NotePosted();
  uint64_t turn() const { return turn_; }
  SoftLoans<SoftBatch>* batches() { return &batches_; }
  SoftLoans<SoftStaging>* stagings() { return &stagings_; }

 private:
  struct Finished {
    Completion completion;
    SoftQueuePair* queue_pair = nullptr;
    uint32_t sends_back = 0;
    uint32_t receives_back = 0;
  };
  SoftCompletionQueue(SoftContext* context, uint32_t depth);
  absl::Status Open();

  void GrowRing();
  void TakeTurn();
  bool FewLanes() const;
  void TakeBackHanded();
  void WatchLanes();
  void ServeReady();
  bool DebtsAreDue(bool sleeping) const;
  void PayDebts(bool all);
  void RunTimers();
  void WatchWhatMatters();
  void SetTimer(int64_t at_ns, int64_t now_ns);
  void Wake();

  SoftContext* const context_;
  const uint32_t depth_;
  const int64_t ack_delay_ns_;  // 0: acknowledgements are due when the poller goes to sleep.
  std::atomic<uint32_t> reserved_{0};

  // Constant after Open().
  SoftEpoll epoll_;
  Fd wake_;   // An eventfd.
  Fd timer_;  // A timerfd.

  // Its own thread only.
  std::vector<Finished> ring_;  // Grows to depth_, and stays: mostly few are unpolled.
  uint64_t ring_begin_ = 0;
  uint64_t ring_end_ = 0;
  uint64_t turn_ = 0;
  bool armed_ = false;
  bool polling_ = false;
  bool woken_ = false;                                         // wake_ is readable.
  int64_t timer_at_ns_ = std::numeric_limits<int64_t>::max();  // Never.
  SoftDoor::QueuePairs queue_pairs_;
  std::vector<SoftLane*> lanes_;
  size_t first_lanes_ = 0;         // How many of them are their queue pairs' first.
  uint64_t striping_until_ = 0;    // A turn.
  bool were_few_ = false;          // The last turn tried each of them.
  std::vector<SoftLane*> handed_;  // Those with hands given,
  std::vector<SoftLane*> again_;   // and those that hold bytes which no descriptor shows.
  std::shared_ptr<SoftBell> bell_ = std::make_shared<SoftBell>();
  absl::flat_hash_map<uint64_t, SoftLane*> lane_by_id_;
  std::vector<SoftQueuePair*> active_;
  std::vector<SoftQueuePair*> debtors_;
  int64_t debts_since_ns_ = 0;  // With a delay: when the first of them was noted.
  std::vector<SoftQueuePair*> paying_;
  SoftDoor door_;
  SoftLoans<SoftBatch> batches_;  // Empty ones.
  SoftLoans<SoftStaging> stagings_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_COMPLETION_QUEUE_H_
