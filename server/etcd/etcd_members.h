#ifndef TRYST_SERVER_ETCD_ETCD_MEMBERS_H_
#define TRYST_SERVER_ETCD_ETCD_MEMBERS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/etcd/etcd_client.h"
#include "server/members/member.h"
#include "server/members/membership.h"

namespace tryst {

// Tells Membership which members etcd holds. Any client of etcd could have written these keys, so
// their number is bounded. Not thread-safe.
class MemberMirror {
 public:
  static constexpr size_t kMostMembers = 65536;
  static constexpr size_t kMostLapsed = 4096;
  // A member that has left keeps its address for so long: perhaps only its lease has lapsed.
  static constexpr int64_t kForgetNs = 600'000'000'000;

  MemberMirror(std::string prefix, std::string self, Membership* members);

  // Replaces all that was known.
  void SetAll(const etcdserverpb::RangeResponse& all, int64_t now_ns);
  void OnEvent(const etcdserverpb::Event& event, int64_t now_ns);
  bool Has(const Member& member) const;  // Whether this incarnation is there.
  size_t size() const { return known_.size(); }
  uint64_t refused() const { return refused_; }

 private:
  void Put(const Member& member);
  void Delete(const std::string& worker, int64_t now_ns);
  void Forget(int64_t now_ns);

  const std::string prefix_;
  const std::string self_;
  Membership* const members_;
  std::map<std::string, Member> known_;    // By worker.
  std::map<std::string, int64_t> lapsed_;  // Worker -> since when.
  uint64_t refused_ = 0;                   // Keys that name no member, or are too many.
};

// Keeps our key in etcd under a lease, and watches the other members' keys. When one server of etcd
// does not answer, it goes to the next; meanwhile the members stay as they are, and age() grows. It
// has two threads, which sleep except for a call every 0.7 s.
class EtcdMembers {
 public:
  struct Options {
    EtcdAccess access;
    std::string cluster;
    Member self;
    absl::Duration lease;  // A worker whose lease is not renewed is a member for so long.
  };
  EtcdMembers(Options options, Membership* members, const Clock* clock);
  ~EtcdMembers();  // Deletes our key, if etcd answers within a second or two.

  struct View {
    std::string endpoint;     // The server that we use, or used last.
    double age_s = -1;        // The age of what we know; -1: etcd has not answered yet.
    size_t members = 0;       // Members with a key, including us.
    uint64_t sessions = 0;    // Sessions begun.
    uint64_t leases = 0;      // Leases granted; more than one means that one was lost.
    uint64_t refused = 0;     // Keys that name no member.
    bool superseded = false;  // A newer incarnation of this worker is registered.
    std::string trouble;      // The last session's error; empty: it goes on.
  };
  View Look() const;
  std::string Text() const;  // One line for people.
  std::string Json() const;

 private:
  void Run();
  bool Closing() const { return closing_.load(std::memory_order_acquire); }
  absl::Status Serve(EtcdClient* client);
  absl::Status Register(EtcdClient* client);
  absl::Status Watch(EtcdClient* client);
  void Pause(int failures);
  void Heard(const std::string& trouble);
  void NoteMembers();

  // Constant after construction.
  const Options options_;
  const std::string prefix_;
  const Clock* const clock_;

  // Used by the main thread only.
  int64_t lease_ = 0;
  absl::optional<int64_t> former_;  // The revision of an earlier incarnation's key; 0: none was.

  // Used by the main thread; during a session by the one that watches.
  MemberMirror mirror_;

  std::atomic<bool> closing_{false};
  mutable Mutex mu_;
  CondVar changed_;
  View view_ ABSL_GUARDED_BY(mu_);
  int64_t heard_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: never.
  bool watching_ ABSL_GUARDED_BY(mu_) = false;
  bool listed_ ABSL_GUARDED_BY(mu_) = false;  // Whether etcd holds our key with our value.
  absl::Status watch_end_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_ETCD_ETCD_MEMBERS_H_
