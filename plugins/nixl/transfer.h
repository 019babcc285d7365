#ifndef TRYST_PLUGINS_NIXL_TRANSFER_H_
#define TRYST_PLUGINS_NIXL_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/memory.h"
#include "plugins/nixl/notes.h"
#include "plugins/nixl/records.h"
#include "plugins/nixl/worker.h"

namespace tryst::nixl {

// What a transfer needs of its agent.
struct Agent {
  std::string name;
  Worker* worker = nullptr;
  Outbox* outbox = nullptr;
  Inbox* inbox = nullptr;
};

// A request of NIXL's, which may be posted again and again. A READ is a fetch of the target's
// regions. A WRITE is a question to the target, which fetches of ours. Of the agent's own memory it
// is a copy. Thread-safe but for its destruction.
class Transfer final : public abi::RequestHandle {
 public:
  // kInvalidArgument: a span is not in its memory; spans to be written overlap.
  static absl::StatusOr<std::unique_ptr<Transfer>> Prepare(const Agent* agent,
                                                           abi::Operation operation,
                                                           const abi::Spans& mine,
                                                           const abi::Spans& theirs,
                                                           const PeerName& peer);

  // `note`, unless it is null, is told to the target when all has landed.
  abi::Status Post(const std::string* note);
  // `waits`: the caller has nothing else to do, and so it may take a millisecond.
  abi::Status Check(bool waits);
  // True: of what was posted no byte lands any more. It waits for that for some milliseconds; when
  // it is called again, until it is so.
  bool Quiet();

 private:
  // What goes from one memory to one of the peer's.
  struct Part {
    std::shared_ptr<OwnMemory> mine;
    uint64_t theirs = 0;
    std::vector<tryst_span> here, there;
    std::string key;               // READ.
    Owned<tryst_op> op = nullptr;  // READ: under way.
  };
  struct Copy {
    void* to;
    const void* from;
    uint64_t bytes;
  };
  enum class State {
    kIdle,     // Never posted, or ended.
    kMoving,   // Bytes are on their way.
    kTelling,  // The note is.
    kAsking,   // It has failed, and we ask whether the peer is there at all.
    kGone,     // What was released while it moved.
  };

  Transfer(const Agent* agent, abi::Operation operation, const PeerName& peer)
      : agent_(agent), operation_(operation), peer_(peer) {}
  absl::Status Add(const abi::Span& mine, const abi::Span& theirs);
  absl::Status AddCopy(const abi::Span& mine, const abi::Span& theirs);
  absl::Status Seal();

  absl::Status PostLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status PostRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status PostWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CopyAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  abi::Status Advance(int64_t timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  abi::Status OnMoved(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  abi::Status EndWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Moved(int64_t timeout_ms, absl::Status* status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Stopped(int64_t timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after Prepare().
  const Agent* const agent_;
  const abi::Operation operation_;
  const PeerName peer_;
  uint64_t bytes_ = 0;
  std::vector<Copy> copies_;                        // Within the agent's own memory; else parts.
  std::vector<std::shared_ptr<OwnMemory>> copied_;  // Each that they read or write, once.
  std::string record_;                              // A WRITE's parts.

  Mutex mu_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  abi::Status end_ ABSL_GUARDED_BY(mu_) = abi::kNotPosted;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool has_note_ ABSL_GUARDED_BY(mu_) = false;
  std::string note_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Delivery> delivery_ ABSL_GUARDED_BY(mu_);
  Group group_ ABSL_GUARDED_BY(mu_);
  uint64_t put_id_ ABSL_GUARDED_BY(mu_) = 0;
  // A WRITE's; whether the peer is there; to stop a WRITE.
  std::unique_ptr<Worker::Question> put_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Worker::Question> here_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Worker::Question> stop_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_TRANSFER_H_
