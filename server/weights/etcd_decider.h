#ifndef TRYST_SERVER_WEIGHTS_ETCD_DECIDER_H_
#define TRYST_SERVER_WEIGHTS_ETCD_DECIDER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/etcd/etcd_client.h"
#include "weights/decider.h"

namespace tryst {

// Keeps a set's log and its leader's lease in etcd, under /tryst.weights/CLUSTER/SET/:
//   head       the log's life and length
//   leader     who leads, and by which lease of etcd; the key ends with the lease
//   entry/NN   the newest kKeptEntries, each with its life and index
//   base       what the entries before some index say together
// An append is one transaction that compares head and leader, so that a late one is done under its
// own lease and length or not at all. Where a server of etcd does not answer, it goes to the next;
// the leader asks again.
class EtcdDecider final : public Decider {
 public:
  struct Options {
    EtcdAccess access;
    std::string cluster;
    std::string set;  // CheckSetName() accepts it.
    // The leader's GroupTimes have the same lease. Etcd counts whole seconds, and its shortest
    // lease is about two of them.
    int64_t lease_ns = 3'000'000'000;
  };
  // For the leader's GroupTimes: a call to etcd may take this long, and a caller that asks again
  // before it has ended is not told of its end.
  static constexpr int64_t kRetryNs = 800'000'000;

  // `answer` runs on a thread of its own.
  EtcdDecider(Options options, std::function<void(const DeciderAnswer&)> answer);
  // Gives the lease back, where etcd answers within EtcdClient::kCallTimeout.
  ~EtcdDecider() override;

  void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) override;
  void ReadFrom(uint64_t call, uint64_t index) override;
  void TakeLease(uint64_t call) override;
  void KeepLease(uint64_t call, uint64_t lease) override;

  // What all keys of the set begin with.
  static std::string Prefix(const std::string& cluster, const std::string& set);
  // The last error, which the log has, too. Empty: etcd has answered since.
  std::string Trouble() const override;

 private:
  enum class What : uint8_t { kAppend, kRead, kTakeLease, kKeepLease };
  struct Ask {
    What what = What::kRead;
    uint64_t call = 0;
    uint64_t number = 0;  // kAppend: the length. kRead: the index.
    uint64_t lease = 0;
    LogEntry entry;
  };
  using AnswerOr = absl::StatusOr<DeciderAnswer>;

  void Put(std::optional<Ask>* slot, Ask ask);
  std::optional<Ask> Next();  // None: it closes.
  void Run();
  absl::Status Serve(EtcdClient* client);
  void NoteTrouble(const std::string& endpoint, const absl::Status& ended);
  AnswerOr Do(EtcdClient* client, const Ask& ask);
  AnswerOr DoAppend(EtcdClient* client, const Ask& ask);
  AnswerOr DoRead(EtcdClient* client, uint64_t index);
  AnswerOr DoTakeLease(EtcdClient* client);
  AnswerOr DoKeepLease(EtcdClient* client, uint64_t lease);
  absl::Status BeginLog(EtcdClient* client);
  absl::Status HearHead(const std::string& head);
  DeciderAnswer Say(DeciderOutcome outcome) const;

  const Options options_;
  const std::string prefix_, head_key_, leader_key_, base_key_;
  const uint64_t self_;  // Random; tells whose the leader's key is.
  const std::function<void(const DeciderAnswer&)> answer_;

  // Its thread alone uses these. The log in etcd has this life and this length, as last heard:
  uint64_t life_ = 0;
  uint64_t length_ = 0;
  uint64_t lease_ = 0;          // 0: it has none.
  LogState state_;              // Says what was read of the log, and appended.
  bool of_log_ = false;         // The last error was another's than a renewal's.
  std::set<std::string> told_;  // The errors that were logged.

  mutable Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  // A newer one takes the place of one that waits.
  std::optional<Ask> lease_ask_ ABSL_GUARDED_BY(mu_);
  std::optional<Ask> log_ask_ ABSL_GUARDED_BY(mu_);
  std::string trouble_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_ETCD_DECIDER_H_
