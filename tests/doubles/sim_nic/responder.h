#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_RESPONDER_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_RESPONDER_H_

#include <cstdint>
#include <deque>

#include "absl/container/inlined_vector.h"
#include "tests/doubles/sim_nic/fabric.h"
#include "verbs/nic.h"

namespace tryst {

class SimQueuePair;

// The receiving half of a queue pair: checks what the peer asks against this NIC's keys before any
// byte moves, lands it chunk by chunk, and answers.
class Responder {
 public:
  explicit Responder(SimQueuePair* queue_pair) : qp_(*queue_pair) {}

  absl::Status Post(absl::Span<const ReceiveWork> works);
  uint32_t outstanding() const { return outstanding_; }
  void OnPolled(uint32_t released) { outstanding_ -= released; }

  bool HasPacket() const { return !responses_.empty(); }
  bool NextPacket(SimPacket* packet);  // A chunk of a READ's response.
  void OnData(SimPacket& packet);
  void OnReadRequest(const SimPacket& packet);
  void OnBreak() { responses_.clear(); }
  // Ends everything that is left with kFlushed.
  void Flush();
  // Releases the memory that receives name; nothing completes any more.
  void Forget();

 private:
  struct Receive {
    uint64_t id = 0;
    absl::InlinedVector<Entry, 2> entries;
  };
  struct Response {
    uint64_t sequence = 0;
    uint32_t remote_key = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t offset = 0;
    uint64_t begin = 0;  // The offset from which it was asked.
  };

  bool InTurn(uint64_t sequence);
  // Whether the whole message may land; if not, refuses it.
  bool Admit(const SimPacket& packet);
  bool AdmitSend(const SimPacket& packet);
  bool Land(SimPacket& packet);
  bool LandInReceive(SimPacket& packet);
  void Flip(SimPacket& packet);
  void Place(uint8_t* to, const uint8_t* bytes, uint64_t count);
  void Finish(const SimPacket& packet);
  // Whether a fault makes the packet fail here; then it is refused.
  bool FailsAt(const SimPacket& packet, FaultPoint point);
  void Refuse(const SimPacket& packet, CompletionStatus status);
  void EndReceive(CompletionStatus status, const SimPacket& packet);

  SimQueuePair& qp_;
  std::deque<Receive> receives_;
  std::deque<Response> responses_;
  uint64_t expected_ = 0;  // The sequence of the next chunk.
  bool gap_told_ = false;  // Whether the peer was told to go back.
  uint32_t outstanding_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_RESPONDER_H_
