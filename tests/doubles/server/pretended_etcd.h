#ifndef TRYST_TESTS_DOUBLES_SERVER_PRETENDED_ETCD_H_
#define TRYST_TESTS_DOUBLES_SERVER_PRETENDED_ETCD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "grpcpp/server.h"
#include "proto/etcd.grpc.pb.h"

namespace tryst {

// A server with etcd's protocol, for tests: one process's memory holds what etcd would replicate.
// It does what etcd does to what EtcdClient asks: keys end with their lease, a lease that is not
// renewed expires, a watch tells all changes since a revision, and a key cannot be put under a
// lease that is lost. Thread-safe.
class PretendedEtcd {
 public:
  explicit PretendedEtcd(const std::shared_ptr<grpc::ServerCredentials>& credentials =
                             grpc::InsecureServerCredentials());
  ~PretendedEtcd();

  std::string address() const;

  // ---- What a test looks at, and does ----
  std::string Get(const std::string& key) const;  // Empty: there is none.
  int64_t LeaseOf(const std::string& key) const;  // 0: there is no such key, or it has none.
  uint64_t renewals() const;                      // LeaseKeepAlive of leases that were there.
  uint64_t expired() const;                       // Leases that nobody renewed in time.
  void Put(const std::string& key, const std::string& value);
  void LoseLease(int64_t lease);  // As if it had expired.
  std::map<std::string, std::string> All() const;
  void Erase(const std::string& key);  // Watches are not told.
  void SetAnswers(bool answers);       // False: reads and transactions fail.
  void LoseNextAnswer();               // Does the next transaction, and says that it failed.
  // Does the next transaction that writes, then `meanwhile`, and says that it failed.
  void LoseAnswerOfNextWrite(std::function<void()> meanwhile);
  void RefuseLeases();        // Answers from now on with no lease.
  void SetPause(int64_t ms);  // Before each lease that it grants.
  uint64_t leases_asked() const;
  void RequireLogin();  // Keys are for the user tryst, whose password is secret.
  void EndWatches();    // Those that are under way.
  uint64_t writes(const std::string& key) const;  // How often it was put or deleted.

 private:
  class Keys;
  class Leases;
  class Watches;
  class Logins;
  struct Lease {
    int64_t ttl_s = 0;
    int64_t until_ns = 0;
  };

  void Set(const std::string& key, const std::string& value, int64_t lease)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Admits(const grpc::ServerContext& context) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(int64_t lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Note(etcdserverpb::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLeases();  // Until it stops.

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<etcdserverpb::Event> events_ ABSL_GUARDED_BY(mu_);  // They made revisions 2, 3, ...
  std::map<std::string, etcdserverpb::KeyValue> keys_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Lease> leases_ ABSL_GUARDED_BY(mu_);
  int64_t next_lease_ ABSL_GUARDED_BY(mu_) = 1000;
  uint64_t renewals_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t expired_ ABSL_GUARDED_BY(mu_) = 0;
  bool answers_ ABSL_GUARDED_BY(mu_) = true;
  bool lose_answer_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> after_write_ ABSL_GUARDED_BY(mu_);
  bool refuses_leases_ ABSL_GUARDED_BY(mu_) = false;
  int64_t pause_ms_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t leases_asked_ ABSL_GUARDED_BY(mu_) = 0;
  bool requires_login_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t watches_ended_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<Keys> keys_service_;
  std::unique_ptr<Leases> leases_service_;
  std::unique_ptr<Watches> watches_service_;
  std::unique_ptr<Logins> logins_service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread expirer_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SERVER_PRETENDED_ETCD_H_
