#ifndef TRYST_SERVER_WEIGHTS_PART_LINE_H_
#define TRYST_SERVER_WEIGHTS_PART_LINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "rendezvous/executor.h"
#include "server/weights/parked_asks.h"
#include "weights/asks.h"

namespace tryst {

// Makes answers that have many bytes, on an executor (the server's own, since an embedder's may be
// busy, may run work in the call, and is not waited for at the end) and within bounds: of the bytes
// that are made and have not been given back, and of the asks of one peer that wait for room. Asks
// are answered in the order in which they come; one whose peer has no room lets others pass.
// Thread-safe.
class PartLine : public std::enable_shared_from_this<PartLine> {
 public:
  struct Limits {
    // A single answer may be larger than either limit.
    uint64_t bytes = 4 * kMaxPartBytes;
    uint64_t bytes_of_one = 2 * kMaxPartBytes;
    uint64_t least = 2 << 10;    // So much counts an answer at least, even an empty one.
    size_t waiting_of_one = 64;  // kResourceExhausted ends one more.
    size_t waiting = 16'384;
  };
  // Makes the answer, or says why there is none.
  using MakeFn = std::function<absl::StatusOr<Tensor>(const AskOfPeer&)>;
  PartLine(const Limits& limits, Executor* executor, MakeFn make);

  // REQUIRES: ask.bytes bounds what the answer has, and what making it takes.
  void Enter(AskOfPeer ask);
  // Ends what waits, and what comes later.
  void Close(absl::Status why);
  uint64_t bytes() const;  // That are made, or being made.
  size_t waiting() const { return parked_->size(); }

 private:
  enum class Room { kYes, kNotForThisPeer, kNot };
  Room Take(const AskOfPeer& ask);
  void Give(const std::string& peer, uint64_t bytes);
  void Go();
  void Answer(AskOfPeer ask);

  const Limits limits_;
  Executor* const executor_;
  const MakeFn make_;
  const std::shared_ptr<ParkedAsks> parked_;
  mutable Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t> bytes_of_ ABSL_GUARDED_BY(mu_);  // By peer that has some.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_PART_LINE_H_
