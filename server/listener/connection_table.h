#ifndef TRYST_SERVER_LISTENER_CONNECTION_TABLE_H_
#define TRYST_SERVER_LISTENER_CONNECTION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tryst {

// A listener's limits. docs/CONFIG.md has their sum.
struct ConnectionLimits {
  size_t connections = 2048;  // All callers together.
  size_t strangers = 128;     // Connections on which no call has been authenticated yet.
  size_t strangers_of_address = 64;
  int64_t stranger_ns = 10'000'000'000;  // The time until the first authenticated call.
  // What may arrive on a connection before its first authenticated call, and on all such
  // connections together: gRPC can turn each byte into seventy bytes of memory. An honest first
  // message has up to 512 KiB, and after a break a thousand calls may come at once. What strangers
  // of one host have sent who left within a second has the bound of one.
  uint64_t stranger_bytes = 1 << 20;
  uint64_t strangers_bytes = 2 << 20;
  // How much strangers together may send in a tenth of a second. One that has sent more than a
  // little waits for the next tenth, because gRPC's time for it is taken from the members.
  uint64_t burst_bytes = 128 << 10;
  // What may arrive between two authenticated calls, beside one byte for every 64 that were sent
  // meanwhile: a tensor's receiver needs those to grant more of the stream. 0: no bound.
  uint64_t member_bytes = 8 << 20;
};

struct ConnectionCounts {
  uint64_t accepted = 0;
  uint64_t authenticated = 0;
  uint64_t crowded_out = 0;     // Strangers that newer ones displaced.
  uint64_t timed_out = 0;       // Strangers that did not authenticate in time.
  uint64_t flooded = 0;         // Connections that sent too much.
  uint64_t held_back = 0;       // How often a stranger had to wait.
  uint64_t refused = 0;         // Connections for which there was no room or no descriptor.
  uint64_t listener_rests = 0;  // How often there was no descriptor left to accept with.
  uint64_t open = 0;            // The present number.
  uint64_t strangers = 0;       // How many of the open ones are strangers.
};

// Decides which connections of a server to close. Touches no sockets. Not thread-safe.
class ConnectionTable {
 public:
  using Id = uint64_t;
  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // Adds a connection from "host:port". Adds to `end` those that must be closed for it. 0: there is
  // no room.
  Id Add(const std::string& address, int64_t now_ns, std::vector<Id>* end);
  // It has left, and `received` is all that arrived on it; 0: nobody knows.
  void Remove(Id id, uint64_t received, int64_t now_ns);
  // A call from that address was authenticated. True: some who wait may go on; call Resume().
  bool Authenticated(absl::string_view address);
  // `received` and `sent` count from the connection's beginning. False: it must be closed.
  bool Saw(Id id, uint64_t received, uint64_t sent, int64_t now_ns);
  // Call it after Saw(). True: nothing more may arrive on it until Resume() names it.
  bool MustWait(Id id, int64_t now_ns);
  void Resume(int64_t now_ns, std::vector<Id>* go_on);
  // When Resume() next has something to do; INT64_MAX: no connection waits.
  int64_t next_resume_ns() const;
  // How long a new connection from that address waits before gRPC gets it: 0, unless others from
  // there have flooded us; longer with each that has.
  int64_t DelayNs(absl::string_view address, int64_t now_ns) const;
  // Adds to `end` the strangers that did not authenticate in time.
  void Expire(int64_t now_ns, std::vector<Id>* end);
  // When Expire() next has something to do; INT64_MAX: there is no stranger.
  int64_t next_expiry_ns() const;
  bool is_stranger(Id id) const;
  // Counts a connection that could not be accepted.
  void Refused() { ++counts_.refused; }
  void Rested() { ++counts_.listener_rests; }

  ConnectionCounts counts() const;

 private:
  struct Connection {
    std::string address;
    int64_t since_ns = 0;
    bool member = false;
    bool called = false;  // A call was authenticated since the last Saw().
    bool ending = false;
    bool flooded = false;
    bool waits = false;
    uint64_t received = 0;       // At the last Saw().
    uint64_t received_base = 0;  // At the last authenticated call.
    uint64_t sent_base = 0;
  };
  Connection* Find(Id id);
  // Stops counting it as a stranger.
  void LeaveStrangers(Id id, const Connection& connection);
  void End(Id id, Connection* connection, std::vector<Id>* end);

  // A host from which connections have flooded us lately; at most kMostFlooders are kept.
  struct Flooder {
    int floods = 0;
    int64_t last_ns = 0;
  };
  static constexpr size_t kMostFlooders = 4096;
  static constexpr int64_t kFloodMemoryNs = 60'000'000'000;
  static constexpr int64_t kDelayNs = 20'000'000;
  // Less than the second within which peers must connect.
  static constexpr int64_t kLongestDelayNs = 500'000'000;
  // What each stranger from a flooding host may send, and how many strangers it may have.
  static constexpr uint64_t kFlooderBytes = 8 << 10;
  static constexpr size_t kFlooderStrangers = 8;
  // What arrived on a stranger's connection costs gRPC memory for a while after its end.
  void ChargeHost(const Connection& connection, int64_t now_ns);
  const Flooder* FlooderAt(absl::string_view address, int64_t now_ns) const;
  void NoteFlood(absl::string_view address, int64_t now_ns);

  const ConnectionLimits limits_;
  Id next_id_ = 1;
  std::map<Id, Connection> connections_;
  std::map<Id, Connection*> strangers_;  // Oldest first.
  absl::flat_hash_map<std::string, Id> by_address_;
  absl::flat_hash_map<std::string, size_t> strangers_of_host_;
  absl::flat_hash_map<std::string, Flooder> flooders_;  // By host.
  uint64_t strangers_bytes_ = 0;
  static constexpr int64_t kChargeNs = 1'000'000'000;
  int64_t charged_until_ns_ = 0;
  absl::flat_hash_map<std::string, uint64_t> charged_bytes_;  // By host; at most kMostFlooders.
  static constexpr int64_t kBurstNs = 100'000'000;
  static constexpr uint64_t kLittleBytes = 16 << 10;
  int64_t burst_until_ns_ = 0;
  uint64_t burst_bytes_ = 0;
  std::vector<Id> waiting_;
  bool one_is_known_ = false;  // Whether one of those that wait was authenticated.
  ConnectionCounts counts_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_LISTENER_CONNECTION_TABLE_H_
