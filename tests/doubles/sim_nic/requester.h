#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_REQUESTER_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_REQUESTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tests/doubles/sim_nic/fabric.h"
#include "tests/doubles/sim_nic/faults.h"
#include "verbs/nic.h"

namespace tryst {

class SimQueuePair;

// The sending half of a queue pair: the send queue, the numbers of chunks, what is not acknowledged
// yet, and when to send it again. Works end in the order of posting, so an error waits until all
// before it have ended.
//
// On a NIC without order some writes go on the wire late, after works that were posted later. They
// still complete in the order of posting; an error there ends everything at once.
class Requester {
 public:
  explicit Requester(SimQueuePair* queue_pair) : qp_(*queue_pair) {}

  absl::Status Post(absl::Span<const SendWork> works);
  uint32_t outstanding() const { return outstanding_; }
  void OnPolled(uint32_t released) { outstanding_ -= released; }

  bool HasPacket();
  bool NextPacket(SimPacket* packet);  // REQUIRES: HasPacket().
  void OnAnswer(const SimPacket& packet);
  void OnReadResponse(const SimPacket& packet);
  void OnRetryTimer();
  void OnReceiverWaitOver();
  void OnLateSend();
  // Ends everything that is left with kFlushed.
  void Flush();
  // Releases the memory that works name; nothing completes any more.
  void Forget();

 private:
  struct Send {
    SendWork work;  // Its spans are empty.
    absl::InlinedVector<Entry, 2> entries;
    absl::InlinedVector<uint8_t, 16> inline_bytes;
    uint64_t bytes = 0;
    uint64_t first = 0;  // The sequence of its first chunk.
    uint64_t chunks = 0;
    uint64_t received = 0;  // For a READ.
    bool started = false;
    bool requested = false;  // For a READ: the peer was asked.
    bool ended = false;      // For a READ: all has come.
    CompletionStatus status = CompletionStatus::kOk;
    WorkFault fault;
    uint64_t posted = 0;  // Its number among all works of the queue pair, from 0.
    int64_t due_ns = 0;   // For a late one: when it goes on the wire.
  };

  absl::Status Check(const SendWork& work) const;
  Send Make(const SendWork& work);
  void Append(Send send);
  bool IsLate(const Send& send) const;
  void ReleaseLate(int64_t until_ns);
  std::vector<Send> TakeAll();  // Those that have not ended, in the order of posting.
  void EndInOrder(Send send);
  bool Finished(const Send& send) const;
  bool Started(Send* send);  // False: it has failed, or the queue pair has broken.
  bool EntriesValid(const Send& send) const;
  bool Gather(const Send& send, uint64_t offset, SimPacket* packet);
  bool Scatter(const Send& send, uint64_t offset, const SimPacket& packet);
  Send* Holding(uint64_t sequence);
  void Acknowledged(uint64_t sequence);
  void GoBack(uint64_t sequence);
  void Retire();
  void End(Send* send, CompletionStatus status);
  void StartTimer(int64_t from_ns);
  int64_t TimeoutNs() const;

  SimQueuePair& qp_;
  std::deque<Send> sends_;         // In the order of the wire.
  std::vector<Send> late_;         // Not on the wire yet.
  std::map<uint64_t, Send> done_;  // They wait for works that were posted before them.
  uint64_t next_to_end_ = 0;       // Its Send::posted.
  size_t cursor_ = 0;              // The next send to go on the wire ...
  uint64_t chunk_ = 0;             // ... and its next chunk.
  uint64_t posted_ = 0;            // All works ever posted.
  uint64_t next_sequence_ = 0;
  uint64_t acknowledged_ = 0;  // All sequences before it.
  uint32_t outstanding_ = 0;
  uint32_t silent_ = 0;  // Works that ended unsignaled since the last completion.
  uint32_t reads_in_flight_ = 0;
  uint32_t attempts_ = 0;
  uint32_t receiver_attempts_ = 0;
  bool receiver_wait_ = false;
  bool timer_scheduled_ = false;
  int64_t deadline_ns_ = 0;  // The oldest unacknowledged work's; 0: none.
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_REQUESTER_H_
