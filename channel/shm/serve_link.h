#ifndef TRYST_CHANNEL_SHM_SERVE_LINK_H_
#define TRYST_CHANNEL_SHM_SERVE_LINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "channel/bootstrap.h"
#include "channel/ops/serve_session.h"
#include "channel/poller/poller.h"
#include "channel/shm/serve_answers.h"
#include "channel/shm/serve_sending.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"
#include "channel/trace/path_view.h"

namespace tryst {

// The producer's end of shared memory with one consumer of this host. When a link is over, the
// arena keeps what the consumer still holds of it. What it has lent of its own memory is lent until
// the consumer comes by another link, or the session ends: then the words of the former link say
// who has it (docs/decisions/0069-one-session.md). Poller thread only.
class ShmServeLink final : public ServeLink,
                           private ShmHub::Host,
                           private ShmHub::Watcher,
                           private ShmHub::Link,
                           private PollerFlush,
                           private PollerTimer {
 public:
  // What the transport decides about all links of one consumer.
  struct Bounds {
    std::function<absl::Status()> may_open;  // Whether there may be another link to it.
    // The link is over, and the consumer holds tensors that came over it.
    std::function<void(const std::shared_ptr<const GivenReferences>&)> on_kept;
  };
  ShmServeLink(ServeSession* session, ShmHub* hub, const ShmOptions& options, Bounds bounds);
  ~ShmServeLink() override;

  size_t references() const { return sender_.given == nullptr ? 0 : sender_.given->held(); }
  // Whether the consumer has joined and must not map memory that others read.
  bool apart() const { return sender_.socket != nullptr && sender_.apart; }

 private:
  enum class State : uint8_t {
    kNone,     // There is no link.
    kInvited,  // Waits for the consumer to connect.
    kWelcome,  // Waits for it to map the memory.
    kOpen,     // Connected.
  };

  // The link (serve_link.cc).
  bool Exists() const override { return state_ != State::kNone; }
  absl::Status Open(const Hello& hello, Hello* answer) override;
  void Break(const absl::Status& why) override;
  ServeEvent EndFormer() override;
  void HearLast() override { (void)HearLeft(); }
  bool Abandoned() const override;
  void View(PathView* view) const override;
  std::string Explain() const override;
  uint64_t messages() const override {
    return state_ == State::kOpen ? sender_.replies.written() : 0;
  }
  void OnGuest(std::unique_ptr<LocalSocket> socket) override;
  absl::Status Welcome();
  void OnSocket() override;
  bool HearPacket();  // False: there was no packet, or the link has ended.
  absl::Status OnReady(const shm_wire::Packet& packet);
  bool HearLeft();  // True: the consumer has left the link.
  void OnSocketEnd();
  void OnProcessGone();
  void ForgetFormer();
  bool PollLink() override;
  bool Ready() const override { return sender_.requests.Ready() || sender_.given->HasReturned(); }
  void FallAsleep() override;
  bool WakeUp() override;
  void Flush() override;
  void OnTimer() override {}  // It only brings a turn, in which accepted answers are found.
  int64_t LookAgainNs();
  bool waits_for_room() const { return answers_.any_wait() || slots_.has_words(); }
  const char* state_text() const;

  // What the consumer says (serve_receiving.cc).
  absl::Status OnCell(const shm_wire::RequestCell& cell);
  absl::Status OnKeyText(const uint8_t* text, size_t bytes);
  absl::Status OnRequest(const shm_wire::RequestCell& cell);
  bool ReleaseAccepted();

  // What it is told (serve_receiving.cc).
  void Answer(ServeOp* op) override { answers_.Answer(op); }
  void Forget(ServeOp* op) override { answers_.Forget(op); }
  Tensor MakeRunTensor(uint64_t bytes) override { return answers_.MakeRunTensor(bytes); }
  size_t tickets_a_word() const override { return shm_wire::kReplyTickets; }
  bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) override;
  bool SayHere(absl::Span<const uint64_t> tickets) override;
  void FlushSoon() override { sender_.FlushSoon(); }
  void SayWaiting();

  ServeSession* const session_;
  ServeSlots& slots_;  // The session's.
  Poller* const poller_;
  const Bounds bounds_;
  ShmServeSender sender_;
  State state_ = State::kNone;
  bool consumer_gone_ = false;  // Its process has ended, as far as can be seen.
  absl::Status end_status_;     // Why the last link ended.
  // The last link that was open, for its words of the slots: until another one is open.
  std::shared_ptr<SharedMemory> former_memory_;
  shm_wire::LinkView former_;
  // The process that was last here is watched, to see its end while there is no link.
  struct Process final : ShmHub::Watcher {
    void OnSocket() override { link->OnProcessGone(); }
    ShmServeLink* link = nullptr;
    OwnedFd fd;
  };
  Process process_;
  shm_wire::Token proof_{};  // In our own memory: the consumer tries to read it here.
  std::string key_text_;     // More cells of it are to come.
  uint32_t key_id_ = 0;
  size_t key_bytes_ = 0;
  bool key_is_run_ = false;
  int64_t accepted_checked_ns_ = 0;
  int64_t accepted_pause_ns_ = 0;
  ShmAnswers answers_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_LINK_H_
