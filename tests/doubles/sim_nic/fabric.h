#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_FABRIC_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_FABRIC_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/doubles/sim_nic/event_queue.h"
#include "tests/doubles/sim_nic/faults.h"
#include "tests/doubles/sim_nic/link_model.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_trace.h"
#include "verbs/nic.h"

namespace tryst {

enum class PacketKind : uint8_t {
  kData,  // A chunk of a write or a send.
  kReadRequest,
  kReadResponse,  // A chunk of the answer to a READ.
  // These take no wire time.
  kAcknowledge,       // Everything before `sequence` is done.
  kOutOfSequence,     // Send again from `sequence` on.
  kReceiverNotReady,  // As kOutOfSequence, after a pause.
  kRefuse,            // The work that holds `sequence` ends with `status`.
};

// Where a queue pair is: a place is a socket of the network, into which one NIC at a time is
// plugged. The version distinguishes a place's successive GIDs.
struct SimAddress {
  static constexpr uint32_t kNobody = ~0u;
  uint32_t place = 0;
  uint32_t version = 0;
  uint32_t queue_pair = kNobody;  // Its number in the world.
  uint8_t port = 1;
};

struct SimPacket {
  PacketKind kind = PacketKind::kData;
  SendOp op = SendOp::kWrite;
  CompletionStatus status = CompletionStatus::kOk;
  bool first = false;
  bool last = false;
  uint32_t immediate = 0;
  uint32_t remote_key = 0;
  uint64_t remote_address = 0;
  uint64_t sequence = 0;
  uint64_t message_bytes = 0;
  uint64_t offset = 0;  // In the message.
  uint32_t bytes = 0;   // The payload's.
  SimAddress from;
  SimAddress to;
  WorkFault fault;
  std::unique_ptr<uint8_t[]> payload;
  uint32_t payload_room = 0;
  uint32_t behind = 0;  // Used by the fabric: the packet that arrives next.

  uint8_t* Payload(uint32_t wanted);  // Makes room for `wanted` bytes; what was there is lost.
};

// What the fabric carries packets for: a queue pair.
class FabricUser {
 public:
  virtual ~FabricUser() = default;
  virtual bool HasPacket() = 0;
  // Fills in the next packet, except `from`. False: there is none after all.
  virtual bool NextPacket(SimPacket* packet) = 0;
  virtual void OnPacket(SimPacket& packet) = 0;
};

// Wires, and the packets on them. A wire carries what goes from one port to one place, one chunk at
// a time, from the waiting queue pairs in an order drawn from the seed. What one queue pair sends
// arrives in order, or does not arrive.
class Fabric {
 public:
  // `shared_ports`: everything that leaves a port shares one wire, and everything that arrives at a
  // place shares another.
  Fabric(EventQueue* events, SimTrace* trace, SimRandom random, const LinkModel& link,
         bool shared_ports = false);

  uint32_t Attach(FabricUser* user);  // Returns a number that is never used again.
  void Detach(uint32_t user);         // Packets on their way to it vanish.
  // Whether the number was ever given out.
  bool Known(uint32_t user) const { return user < next_user_; }
  FabricUser* user(uint32_t id) const;  // Null: it is detached.

  // `user` has a packet for `to_place`. Cheap if it waits already.
  void Ready(uint32_t user, const SimAddress& from, uint32_t to_place);
  // Sends an acknowledgement or refusal.
  void Answer(const SimPacket& packet);

  void OnWireFree(uint32_t wire);
  void OnArrival(uint32_t lane);

  void SetLink(uint32_t from_place, uint32_t to_place, const LinkModel& link);
  const LinkModel& link(uint32_t from_place, uint32_t to_place) const;
  // Packets between the two places vanish, in both directions.
  void SetCut(uint32_t place, uint32_t other_place, bool cut);
  void SetSilent(uint32_t place, bool silent);  // All packets from it and to it vanish.
  void SetPort(uint32_t place, uint8_t port, bool up);
  bool port_up(uint32_t place, uint8_t port) const;
  void ChangeAddress(uint32_t place);
  uint32_t address_version(uint32_t place) const;

  uint64_t packets_sent() const { return packets_sent_; }
  // Counts first chunks, including repeated ones.
  uint64_t messages_sent() const { return messages_sent_; }
  uint64_t packets_dropped() const { return packets_dropped_; }

 private:
  // One user's packets on their way, in order, whatever the order of their events.
  struct Lane {
    uint32_t first = 0;
    uint32_t last = 0;
    uint32_t count = 0;
    int64_t last_arrival_ns = 0;
  };
  struct User {
    FabricUser* user = nullptr;
    bool waiting = false;
    Lane lanes[2];  // For packets that use the wire, and for answers.

    // It is detached, and nothing of it is under way.
    bool over() const {
      return user == nullptr && !waiting && lanes[0].count == 0 && lanes[1].count == 0;
    }
  };
  // Never iterated, because its order is not defined.
  using Users = std::unordered_map<uint32_t, User>;
  struct Wire {
    uint32_t from_place = 0;
    int64_t free_at_ns = 0;
    bool scheduled = false;
    std::vector<uint32_t> waiting;
  };
  struct Place {
    bool silent = false;
    uint32_t version = 0;
    uint64_t ports_down = 0;  // A bit for each port.
    // With shared_ports: when the last byte that was sent to it has arrived.
    int64_t receives_from_ns = 0;
  };

  uint32_t WireFor(const SimAddress& from, uint32_t to_place);
  uint32_t TakePacket();
  void GivePacket(uint32_t index) { free_packets_.push_back(index); }
  void Ship(uint32_t index, int64_t leaves_at_ns, int64_t cost_ns);
  bool Vanishes(const SimPacket& packet) const;
  void Drop(uint32_t index);
  Place& place(uint32_t number);

  EventQueue* const events_;
  SimTrace* const trace_;
  SimRandom random_;
  const LinkModel default_link_;
  const bool shared_ports_;
  uint32_t next_user_ = 0;
  Users users_;
  std::vector<Wire> wires_;
  // By place and port, then by destination place.
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> wire_of_;
  std::map<std::pair<uint32_t, uint32_t>, LinkModel> links_;
  std::map<std::pair<uint32_t, uint32_t>, bool> cut_;
  std::vector<Place> places_;
  std::deque<SimPacket> packets_;  // A deque, so that references stay valid when it grows.
  std::vector<uint32_t> free_packets_;
  uint64_t packets_sent_ = 0;
  uint64_t messages_sent_ = 0;
  uint64_t packets_dropped_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_FABRIC_H_
