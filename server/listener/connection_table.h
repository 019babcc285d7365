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

// What a listener allows. docs/CONFIG.md has the sum.
struct ConnectionLimits {
  size_t connections = 2048;  // In all.
  size_t strangers = 128;     // That nobody has authenticated a call on yet, in all.
  size_t strangers_of_address = 64;
  int64_t stranger_ns = 10'000'000'000;  // To authenticate in.
  // What may arrive on a connection before its first authenticated call, and on all such
  // connections together: gRPC makes up to seventy bytes of memory of each.
  // An honest first message has up to 512 KiB, and after a break a thousand calls come at once.
  uint64_t stranger_bytes = 1 << 20;
  uint64_t strangers_bytes = 2 << 20;
  // So much of it in a tenth of a second, of all strangers; who has said more than a little waits
  // for the next: what gRPC is kept with is not there for the members.
  uint64_t burst_bytes = 128 << 10;
  // What may arrive between two authenticated calls beside a sixty-fourth of what was sent
  // meanwhile, which is how a tensor's receiver says how far it is. 0: no bound.
  uint64_t member_bytes = 8 << 20;
};

struct ConnectionCounts {
  uint64_t accepted = 0;
  uint64_t authenticated = 0;
  uint64_t crowded_out = 0;     // Strangers, by newer ones.
  uint64_t timed_out = 0;       // Strangers.
  uint64_t flooded = 0;         // Ended because of what they sent.
  uint64_t held_back = 0;       // Times that a stranger had to wait.
  uint64_t refused = 0;         // No room in all, or no descriptor.
  uint64_t listener_rests = 0;  // No descriptor was left to accept with.
  uint64_t open = 0;            // Now.
  uint64_t strangers = 0;       // Of these.
};

// The connections of a server, and the choice which of them to close. Touches no sockets. Not
// thread-safe.
class ConnectionTable {
 public:
  using Id = uint64_t;
  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // A new connection from "host:port". Adds to `end` who must go for it. 0: there is no room.
  Id Add(const std::string& address, int64_t now_ns, std::vector<Id>* end);
  void Remove(Id id);
  // A call from there was authenticated. True: somebody who waited may go on, see Resume().
  bool Authenticated(absl::string_view address);
  // So much has come and gone on it since it began. False: it must go.
  bool Saw(Id id, uint64_t received, uint64_t sent, int64_t now_ns);
  // After it was seen: nothing more is to come from it until Resume() names it.
  bool MustWait(Id id, int64_t now_ns);
  void Resume(int64_t now_ns, std::vector<Id>* go_on);
  // When Resume() next has something to do; INT64_MAX: nobody waits.
  int64_t next_resume_ns() const;
  // How long a connection from there is to wait before gRPC gets it: nothing, unless others from
  // there have flooded, and longer with each of them.
  int64_t DelayNs(absl::string_view address, int64_t now_ns) const;
  // Strangers whose time is over.
  void Expire(int64_t now_ns, std::vector<Id>* end);
  // When Expire() next has something to do; INT64_MAX: no stranger is there.
  int64_t next_expiry_ns() const;
  bool is_stranger(Id id) const;
  // Counts one that could not be taken in.
  void Refused() { ++counts_.refused; }
  void Rested() { ++counts_.listener_rests; }

  ConnectionCounts counts() const;

 private:
  struct Connection {
    std::string address;
    int64_t since_ns = 0;
    bool member = false;
    bool called = false;  // Since the last Saw().
    bool ending = false;
    bool waits = false;
    uint64_t received = 0;       // As last seen.
    uint64_t received_base = 0;  // At the last authenticated call.
    uint64_t sent_base = 0;
  };
  Connection* Find(Id id);
  // It is no longer counted as a stranger.
  void LeaveStrangers(Id id, const Connection& connection);
  void End(Id id, Connection* connection, std::vector<Id>* end);

  // Addresses from which somebody has flooded of late; at most kMostFlooders.
  struct Flooder {
    int floods = 0;
    int64_t last_ns = 0;
  };
  static constexpr size_t kMostFlooders = 4096;
  static constexpr int64_t kFloodMemoryNs = 60'000'000'000;
  static constexpr int64_t kDelayNs = 20'000'000;
  static constexpr int64_t kLongestDelayNs = 500'000'000;  // Peers wait a second to connect.
  static constexpr uint64_t kFlooderBytes = 8 << 10;       // Of each stranger from there.
  static constexpr size_t kFlooderStrangers = 8;
  const Flooder* FlooderAt(absl::string_view address, int64_t now_ns) const;
  void NoteFlood(absl::string_view address, int64_t now_ns);

  const ConnectionLimits limits_;
  Id next_id_ = 1;
  std::map<Id, Connection> connections_;
  std::map<Id, Connection*> strangers_;  // The oldest first.
  absl::flat_hash_map<std::string, Id> by_address_;
  absl::flat_hash_map<std::string, size_t> strangers_of_host_;
  absl::flat_hash_map<std::string, Flooder> flooders_;  // By host.
  uint64_t strangers_bytes_ = 0;
  static constexpr int64_t kBurstNs = 100'000'000;
  static constexpr uint64_t kLittleBytes = 16 << 10;
  int64_t burst_until_ns_ = 0;
  uint64_t burst_bytes_ = 0;
  std::vector<Id> waiting_;
  bool one_is_known_ = false;  // Of those that wait.
  ConnectionCounts counts_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_LISTENER_CONNECTION_TABLE_H_
