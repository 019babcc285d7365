#ifndef TRYST_CHANNEL_RDMA_SERVE_LINK_H_
#define TRYST_CHANNEL_RDMA_SERVE_LINK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "channel/bootstrap.h"
#include "channel/ops/link_kind.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/serve_session.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_answers.h"
#include "channel/rdma/serve_leftovers.h"
#include "channel/rdma/serve_source.h"
#include "channel/trace/path_view.h"

namespace tryst {

// The producer's end of a link over a NIC. Nothing of it is remotely readable or writable but its
// message ring and ack page. Poller thread only.
class RdmaServeLink final : public ServeLink, private MessageLink::Owner {
 public:
  RdmaServeLink(ServeSession* session, QueueHub* hub, const RdmaOptions& options);
  // This kind of link over a NIC, whose path is `path`. The hub outlives what it makes.
  static ServeKind Kind(const std::string& path, QueueHub* hub, const RdmaOptions& options);

 private:
  // serve_link.cc
  bool Exists() const override { return link_ != nullptr; }
  absl::Status Open(const Hello& hello, Hello* answer) override;
  void Break(const absl::Status& why) override { link_->Break(why); }
  void View(PathView* view) const override;
  void OnBroken(const absl::Status& why) override;
  void OnDrained() override;

  // What the consumer says (serve_receiving.cc).
  absl::Status OnRecord(const wire::Record& record) override;
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override;
  void OnAccepted() override;
  absl::Status OnRequest(const wire::Record& record);
  absl::Status OnCancel(const wire::Record& record);

  // What it is told (serve_receiving.cc).
  void Answer(ServeOp* op) override;
  void Forget(ServeOp* op) override;
  void Retire(StorageRef* storage) override;
  bool SaysGoneLater(const ServeOp& op) override;
  bool Arrives(const ServeOp& op) override;
  uint64_t most_run_bytes() const override;
  size_t tickets_a_word() const override { return wire::kMaxTickets; }
  bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) override;
  bool SayHere(absl::Span<const uint64_t> tickets) override;
  void FlushSoon() override;
  void OnFlush() override;
  void OnWritesDone() override;

  // Constant after construction.
  ServeSession* const session_;
  ServeSlots& slots_;  // The session's.
  QueueHub* const hub_;
  const RdmaOptions options_;

  // Poller thread only.
  std::unique_ptr<MessageLink> link_;
  bool pong_due_ = false;
  RingLine<ServeOp*> ready_line_;
  bool answered_ = false;     // Since a look at whether answers arrive,
  LaneTickets arrives_at_{};  // which they do once these works are done.
  ServeLeftovers leftovers_;
  RdmaAnswers answers_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_LINK_H_
