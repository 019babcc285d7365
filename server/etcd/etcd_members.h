#ifndef TRYST_SERVER_ETCD_ETCD_MEMBERS_H_
#define TRYST_SERVER_ETCD_ETCD_MEMBERS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/etcd/etcd_client.h"
#include "server/member.h"
#include "server/membership.h"

namespace tryst {

// What etcd says of the members, told to Membership: those whose key another etcd client
// could have written too, so bounded. Not thread-safe.
class MemberMirror {
 public:
  static constexpr size_t kMostMembers = 65536;
  static constexpr size_t kMostLapsed = 4096;
  // A member that has left is remembered with its address, in case only its lease has lapsed.
  static constexpr int64_t kForgetNs = 600'000'000'000;

  MemberMirror(std::string prefix, std::string self, Membership* members);

  // All there is, at once.
  void SetAll(const etcdserverpb::RangeResponse& all, int64_t now_ns);
  void OnEvent(const etcdserverpb::Event& event, int64_t now_ns);
  bool Has(const Member& member) const;  // In this life.
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
  uint64_t refused_ = 0;                   // Keys that are none, or too many.
};

// Keeps our key in etcd under a lease, and watches the others'. Goes from one server of etcd
// to the next when one does not answer; meanwhile members stay as they are, and age() grows.
// Two threads of its own, asleep but for a call every 0.7 s.
class EtcdMembers {
 public:
  struct Options {
    EtcdAccess access;
    std::string cluster;
    Member self;
    absl::Duration lease;  // How long a worker that says nothing is a member.
  };
  EtcdMembers(Options options, Membership* members, const Clock* clock);
  ~EtcdMembers();  // Takes our key away, if etcd answers. Waits for a second or two at most.

  struct View {
    std::string endpoint;     // Whom we ask; or asked last.
    double age_s = -1;        // Of what we know; -1: etcd has not answered yet.
    size_t members = 0;       // With a key, ourselves included.
    uint64_t sessions = 0;    // Conversations begun.
    uint64_t leases = 0;      // Granted; above 1: one was lost.
    uint64_t refused = 0;     // Keys that name no member.
    bool superseded = false;  // Another life of us is registered.
    std::string trouble;      // Of the last conversation; empty: it goes on.
  };
  View Look() const;
  std::string Text() const;  // A line for people.
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

  // The thread's own.
  int64_t lease_ = 0;
  bool registered_ = false;  // Once in this life.

  // Of the thread, and while a conversation watches, of the one that does.
  MemberMirror mirror_;

  std::atomic<bool> closing_{false};
  mutable Mutex mu_;
  CondVar changed_;
  View view_ ABSL_GUARDED_BY(mu_);
  int64_t heard_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: never.
  bool watching_ ABSL_GUARDED_BY(mu_) = false;
  bool listed_ ABSL_GUARDED_BY(mu_) = false;  // Our key is there, and ours.
  absl::Status watch_end_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_ETCD_ETCD_MEMBERS_H_
