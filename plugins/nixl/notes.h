#ifndef TRYST_PLUGINS_NIXL_NOTES_H_
#define TRYST_PLUGINS_NIXL_NOTES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/records.h"
#include "plugins/nixl/worker.h"

namespace tryst::nixl {

// What became of a notification. Thread-safe.
class Delivery {
 public:
  void End(const absl::Status& status);
  // Whether it has ended; waits so long for that.
  bool Ended(int64_t timeout_ms);
  absl::Status status();

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

// Notifications to peers. Those to one peer come in the order of the calls: a batch is out at a
// time. Thread-safe.
class Outbox {
 public:
  Outbox(Worker* worker, std::string agent) : worker_(worker), agent_(std::move(agent)) {}

  // kResourceExhausted: the peer takes none, and as many wait as may. `delivery` may be null.
  absl::Status Send(const PeerName& peer, std::string note, std::shared_ptr<Delivery> delivery);
  // Waits so long until all have been taken.
  void Drain(int64_t timeout_ms);

 private:
  struct Item {
    std::string note;
    std::shared_ptr<Delivery> delivery;
  };
  struct Line {
    std::deque<Item> waiting;
    uint64_t bytes = 0;
    bool out = false;
  };

  void SendBatch(const PeerName& peer);
  void OnAnswer(const PeerName& peer, const std::vector<Item>& batch, const absl::Status& status);

  Worker* const worker_;
  const std::string agent_;
  Mutex mu_;
  CondVar changed_;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mu_);  // By worker, those with a batch out.
};

// Notifications of peers until the agent takes them. Thread-safe.
class Inbox {
 public:
  using TakenFn = std::function<void()>;

  // Adds them, once there is room; `added` runs then, perhaps in here.
  void Add(std::string agent, std::vector<std::string> notes, TakenFn added);
  void TakeAll(abi::Notifications* taken);
  // Lets go of all that waits for room.
  void Clear();

 private:
  struct Waiting {
    std::string agent;
    std::vector<std::string> notes;
    TakenFn added;
  };
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Put(Waiting* notes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  abi::Notifications here_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // As many as questions may be held.
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_NOTES_H_
