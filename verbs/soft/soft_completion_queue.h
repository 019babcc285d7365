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
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_context.h"
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
  int event_fd() const override { return epoll_.get(); }

  // Any thread. Takes room for a queue pair's works, or kResourceExhausted.
  absl::Status Reserve(uint32_t works);
  void Unreserve(uint32_t works);

  // The rest is for this queue's queue pairs, on its thread.
  const std::string& listener_address() const { return listener_address_; }
  void Attach(SoftQueuePair* queue_pair);
  // Also forgets its completions that nobody has polled.
  void Detach(SoftQueuePair* queue_pair);
  void AddLane(SoftLane* lane);
  void RemoveLane(SoftLane* lane);
  void WatchLane(SoftLane* lane);  // For room, too, if it waits for some.
  void NoteFull(SoftLane* lane);
  // Sends `last` if it can within the handshake's time, then closes without a reset, so
  // that the peer can still read what we sent before.
  void CloseGently(SoftStream stream, std::vector<uint8_t> last);
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
  struct Stranger {  // Accepted; has not said who it is.
    SoftStream stream;
    int64_t deadline_ns = 0;
    size_t got = 0;
    uint8_t hello[kHelloBytes];
  };
  struct Leaving {
    SoftStream stream;
    uint64_t id = 0;
    int64_t deadline_ns = 0;
    std::vector<uint8_t> last;
    size_t sent = 0;
  };

  // What epoll calls the sockets; lanes and strangers are counted on from the last.
  static constexpr uint64_t kListenerId = 1;
  static constexpr uint64_t kWakeId = 2;
  static constexpr uint64_t kTimerId = 3;
  static constexpr uint64_t kFirstFreeId = 4;

  SoftCompletionQueue(SoftContext* context, uint32_t depth);
  absl::Status Open();

  void GrowRing();
  void TakeTurn();
  bool FewLanes() const;
  void ServeReady();
  void PayDebts(bool all);
  absl::Status Listen();
  void Accept();
  void PauseListening(int64_t until_ns);
  void ExpireStrangers(int64_t now_ns);
  SoftStream Greet(Fd fd);
  void HearStrangers();
  bool HearStranger(Stranger* stranger);  // False when it is to be dropped.
  void SeeOff();
  bool SeeOffOne(Leaving* leaving);
  void RunTimers();
  void WatchWhatMatters();
  void SetTimer(int64_t at_ns, int64_t now_ns);
  void Watch(int fd, uint32_t events, uint64_t id, int operation);
  void Wake();

  SoftContext* const context_;
  const uint32_t depth_;
  std::atomic<uint32_t> reserved_{0};

  // Constant after Open().
  Fd epoll_;
  Fd listener_;
  Fd wake_;   // An eventfd.
  Fd timer_;  // A timerfd.
  std::string listener_address_;

  // Its own thread only.
  std::vector<Finished> ring_;  // Grows to depth_, and stays: mostly few are unpolled.
  uint64_t ring_begin_ = 0;
  uint64_t ring_end_ = 0;
  uint64_t turn_ = 0;
  bool armed_ = false;
  bool polling_ = false;
  bool woken_ = false;     // wake_ is readable.
  bool listening_ = true;  // The listener is in epoll.
  int64_t listen_again_ns_ = 0;
  int64_t nuisances_since_ns_ = 0;
  int nuisances_ = 0;  // Since then: who connected and came to nothing.
  int64_t timer_at_ns_ = std::numeric_limits<int64_t>::max();  // Never.
  uint64_t next_id_ = kFirstFreeId;
  absl::flat_hash_map<uint32_t, SoftQueuePair*> queue_pairs_;
  std::vector<SoftLane*> lanes_;
  absl::flat_hash_map<uint64_t, SoftLane*> lane_by_id_;
  std::vector<SoftQueuePair*> active_;
  std::vector<SoftQueuePair*> debtors_;
  std::vector<SoftQueuePair*> paying_;
  std::vector<Stranger> strangers_;
  std::vector<Leaving> leaving_;
  SoftLoans<SoftBatch> batches_;  // Empty ones.
  SoftLoans<SoftStaging> stagings_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_COMPLETION_QUEUE_H_
