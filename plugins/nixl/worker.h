#ifndef TRYST_PLUGINS_NIXL_WORKER_H_
#define TRYST_PLUGINS_NIXL_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "plugins/nixl/handles.h"
#include "plugins/nixl/records.h"

namespace tryst::nixl {

inline constexpr int64_t kStep = 1;  // Asks and regions know no steps.

// A peer's question, which is answered once: by the last of its owners at the latest.
class Ask {
 public:
  Ask() = default;
  explicit Ask(tryst_ask* ask) : ask_(ask) {}
  Ask(Ask&& other) noexcept : ask_(std::exchange(other.ask_, nullptr)) {}
  Ask& operator=(Ask&& other) noexcept {
    std::swap(ask_, other.ask_);
    return *this;
  }
  ~Ask() { End(absl::CancelledError("the agent goes")); }
  void End(const absl::Status& status);
  void EndWith(const tryst_tensor& tensor);

 private:
  tryst_ask* ask_ = nullptr;
};

// A life of an agent in Tryst: a server, the questions that its peers ask, and one thread that
// sleeps until an operation of ours has ended. Thread-safe.
class Worker {
 public:
  using EndedFn = std::function<void(tryst_op* op)>;
  // A question with its record, on a thread of the server's or on ours. `taken` is to be kept until
  // it was answered: it counts what the peer makes us hold. Null: it asks to stop something.
  using HeardFn =
      std::function<void(Worker* worker, const std::string& verb, const PeerName& asker,
                         const std::string& record, Ask ask, std::shared_ptr<void> taken)>;

  // `settings` as of tryst_server_create().
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const std::vector<std::string>& settings,
                                                       HeardFn heard);
  ~Worker();

  // From now on nobody is heard, and operations are cancelled. When it returns no callback runs.
  void Stop();

  const PeerName& name() const { return name_; }
  tryst_server* server() const { return server_; }
  absl::Status AddPeer(const PeerName& peer) const;
  std::string Key(const PeerName& peer, const std::string& edge) const;

  // Calls `ended` on our thread when the operation that `start` starts with our queue has ended.
  absl::Status StartOp(
      const std::function<tryst_status*(tryst_queue* queue, void* tag, tryst_op** op)>& start,
      EndedFn ended);

  // A question to a peer, until it is destroyed; that gives it up.
  class Question {
   public:
    ~Question();
    // Whether it was answered; waits so long for it.
    bool Ended(int64_t timeout_ms) const { return tryst_op_wait(op_.get(), timeout_ms) == 1; }
    absl::Status status() const { return EndOf(op_.get()); }

   private:
    friend class Worker;
    Worker* worker_ = nullptr;
    uint64_t record_id_ = 0;
    Owned<tryst_op> op_;
  };
  absl::StatusOr<std::unique_ptr<Question>> AskPeer(const PeerName& peer, const std::string& verb,
                                                    std::string record, int64_t timeout_ms);
  // As above; `answered` runs once, on our thread.
  void AskPeer(const PeerName& peer, const std::string& verb, std::string record,
               std::function<void(const absl::Status&)> answered);

 private:
  struct Taken;
  struct Held {
    size_t questions = 0;
    uint64_t bytes = 0;  // Their records have so many.
  };

  Worker(tryst_server* server, HeardFn heard);
  static void OnAsk(void* arg, tryst_ask* ask, const char* peer, const char* text);
  void Hear(Ask ask, const std::string& peer, absl::string_view text);
  void HearLong(Ask ask, const PeerName& peer, const nixl::Question& question,
                std::shared_ptr<void> taken);
  void AnswerWithRecord(Ask ask, absl::string_view text);
  absl::StatusOr<std::shared_ptr<void>> Take(const std::string& peer, uint64_t bytes);
  std::string EdgeOf(const std::string& verb, std::string record, uint64_t* record_id);
  void DropRecord(uint64_t id);
  void Run();

  tryst_server* const server_;
  const HeardFn heard_;
  PeerName name_;
  tryst_queue* queue_ = nullptr;
  tryst_answers* answers_ = nullptr;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<tryst_op*, EndedFn> waiting_ ABSL_GUARDED_BY(mu_);  // What has not ended.
  uint64_t last_record_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Owned<tryst_tensor>> records_ ABSL_GUARDED_BY(mu_);  // That peers may fetch.
  // What peers make us hold.
  std::map<std::string, Held> held_by_ ABSL_GUARDED_BY(mu_);
  Held held_ ABSL_GUARDED_BY(mu_);  // By all.

  std::thread thread_;  // NOLINT: it is joined by Stop().
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_WORKER_H_
