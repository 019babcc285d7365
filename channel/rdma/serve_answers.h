#ifndef TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_
#define TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_op.h"
#include "channel/rdma/wire.h"
#include "channel/trace/trace.h"

namespace tryst {

struct ServeChannelOptions {
  LinkOptions link;  // Our sizes bound those that a consumer asks for.
  std::string path;
  std::string self;
  uint64_t self_incarnation = 0;
  // Up to this size a tensor travels inside the message, if it fits.
  uint64_t eager_bytes = 8192;
  uint64_t stripe_bytes = 1 << 20;  // From this size on a tensor uses every queue pair.
  // The most that one work writes, so that completions show progress.
  uint64_t write_bytes = 16 << 20;
  Trace* trace = nullptr;  // The poller's; may be null.
  uint32_t protocol_newest = kProtocolNewest;
  int64_t retain_ms = 60'000;       // How long we wait for a consumer whose link broke.
  uint32_t max_parked = 1'000'000;  // Requests of the consumer that may wait here without a slot.
};

struct ServeCounters {
  uint64_t requests = 0;
  uint64_t eager = 0;
  uint64_t direct = 0;  // Tensors written to a destination.
  uint64_t destinations_asked = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t standing = 0;    // Requests that were standing receives.
  uint64_t given_back = 0;  // Tensors taken for a fetch that ended early.
  uint64_t resent = 0;      // Tensors sent again after a break or a wrong digest.
  uint64_t parked = 0;      // Requests that waited for their Send without a slot.
  uint64_t bytes = 0;

  ServeCounters& operator+=(const ServeCounters& other);
};

// How the producer answers over rdma: inside the message, with a write to the consumer's
// destination, or with the size of the destination that it needs. Poller thread only.
class ServeAnswers {
 public:
  // The arguments outlive it. `give_back` gets each tensor that cannot be sent.
  ServeAnswers(QueueHub* hub, const ServeChannelOptions* options, ServeCounters* counters,
               std::function<void(ServeOp*)> give_back)
      : hub_(hub), options_(*options), counters_(counters), give_back_(std::move(give_back)) {}

  // Answers go over `link` from now on.
  void Use(MessageLink* link, bool digests) {
    link_ = link;
    digests_ = digests;
  }
  // False: there is no room now.
  bool Send(ServeOp* op);

 private:
  bool SendFailed(ServeOp* op);
  bool FailTaken(ServeOp* op, const absl::Status& why);
  bool SendEager(ServeOp* op, const wire::TensorMeta& meta, const void* payload);
  bool SendWrites(ServeOp* op, wire::TensorMeta meta, const void* payload);
  bool PutMeta(const wire::Record& record, const wire::TensorMeta& meta);
  bool SendNeedDestination(ServeOp* op, const wire::TensorMeta& meta);
  absl::Status PrepareSource(ServeOp* op, const void* payload, uint64_t bytes);
  uint64_t PiecesOf(uint64_t bytes, uint64_t part_bytes, size_t parts) const;
  uint64_t WorkBytes() const;
  bool IsBare(const ServeOp& op, const wire::TensorMeta& meta) const;
  bool WritePart(ServeOp* op, size_t lane, uint64_t begin, uint64_t end, bool immediate);
  wire::Record Word(const ServeOp& op, wire::RecordType type) const;

  QueueHub* const hub_;
  const ServeChannelOptions& options_;
  ServeCounters* const counters_;
  const std::function<void(ServeOp*)> give_back_;
  MessageLink* link_ = nullptr;
  bool digests_ = true;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_
