#ifndef TRYST_CHANNEL_RDMA_MESSAGE_LINK_H_
#define TRYST_CHANNEL_RDMA_MESSAGE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/poller/poller.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/wire.h"
#include "verbs/nic.h"

namespace tryst {

// Receives are posted again in runs of so many, and a queue pair has so many more than can be due.
inline constexpr uint32_t kReceivesInARun = 16;

struct LinkOptions {
  uint32_t slots = 128;      // Fetches that may be out at once: the credits.
  uint32_t ring_slots = 16;  // Messages that the peer may have under way to us.
  // Of one. Its largest tensor is 136 bytes less: one of 8 KiB fits.
  uint32_t message_bytes = 8192 + 256;
  uint32_t queue_pairs = 1;
  uint32_t send_depth = 128;
  int64_t stall_ms = 10'000;    // A link on which no work completes for so long is broken.
  int64_t ack_delay_us = 1000;  // How long an ack may wait for a message to ride on.
  bool digests = true;
  uint8_t ack_timeout = 14;  // Of the queue pairs: see QueuePairOptions.
  uint8_t retry_count = 6;
};

// One epoch of a connection, the part that both ends have alike: the queue pairs, a
// message ring each way, the ack page each way, and the accounting that keeps every
// queue from overrunning. It knows records, not tensors.
//
// A NIC may promise less than an RDMA NIC (NicLimits). Without order the messages wait for
// those before them, and every write of a tensor carries an immediate, so that landing is
// proved by their number; one ack page is under way at a time on every NIC, so none overtakes
// another. Without immediates each is a send of 4 bytes behind its write.
//
// Once broken it never mends: the owner waits for drained() and makes the next one.
// Poller thread only. REQUIRES at destruction: nothing, but only drained() promises
// that no byte lands any more while it lives.
class MessageLink final : public QueuePairUser, public PollerFlush, private PollerTimer {
 public:
  // What it calls. The owner may break the link inside any of them, not destroy it.
  class Owner {
   public:
    virtual ~Owner() = default;
    // An error breaks the link with it.
    virtual absl::Status OnRecord(const wire::Record& record) = 0;
    // On queue pair `lane`, which carries at most one part of each tensor; without order, any
    // number of them.
    virtual absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) = 0;
    // The peer accepted something: accepted() has moved.
    virtual void OnAccepted() = 0;
    // The NIC is done with more of our writes: WriteDone() has moved.
    virtual void OnWritesDone() = 0;
    // There may be room: add records and writes until there is none.
    virtual void OnFlush() = 0;
    // Once: the first cause. Works are still coming back until drained().
    virtual void OnBroken(const absl::Status& why) = 0;
    virtual void OnDrained() = 0;
  };

  static absl::StatusOr<std::unique_ptr<MessageLink>> Create(QueueHub* hub,
                                                             const LinkOptions& options,
                                                             uint32_t epoch, Owner* owner);
  ~MessageLink() override;

  // Our half of the hello: queue_pairs and parameters.
  void DescribeTo(Hello* hello, uint64_t session) const;
  // Takes the peer's half and connects. kInvalidArgument, kDataLoss: it makes no sense.
  absl::Status Connect(const Hello& peer);

  // ---- Sending. What is added leaves at the end of this turn, in order. ----

  // The message being filled, or null while the ring or the send queue is full;
  // OnFlush() comes again when it no longer is. After an Add...() that failed for lack
  // of room call NextMessage() and try once more.
  wire::MessageWriter* message();
  wire::MessageWriter* NextMessage();
  // Has `add` put its record into it, or into the next one; false while neither has room.
  // `bool add(wire::MessageWriter*)` calls one Add...() and returns whether it fitted.
  template <typename AddFn>
  bool Put(AddFn add) {
    wire::MessageWriter* writer = message();
    if (writer == nullptr) return false;
    if (add(writer)) return true;
    writer = NextMessage();
    return writer != nullptr && add(writer);
  }
  bool Send(const wire::Record& record) {
    return Put([&](wire::MessageWriter* writer) { return writer->Add(record); });
  }
  // Queues a write of [from, from + bytes) on queue pair `index`, before the message being
  // filled. With an immediate it is the tensor part's last. REQUIRES: WriteRoom() covers it.
  // Returns a ticket for WriteDone().
  uint64_t Write(size_t index, const Entry& from, uint64_t to, uint32_t key, bool immediate,
                 uint16_t slot, uint16_t generation);
  // True once the NIC is done with the source of that write, and of all before it.
  bool WriteDone(size_t index, uint64_t ticket) const { return lanes_[index].done >= ticket; }
  // Whether what is written lands in order. If not, each Write() must have an immediate.
  bool ordered() const { return ordered_; }
  // How many more Write()s queue pair `index` takes now.
  uint32_t WriteRoom(size_t index) const;
  // Asks for OnFlush() at the end of this turn.
  void FlushSoon() { hub_->poller()->FlushThisTurn(this); }

  // Consumer: `slot`'s generation has arrived and is ours; the peer may drop its tensor.
  void Accept(uint16_t slot, uint16_t next_generation);
  // Producer: the generation after the last one that the consumer accepted.
  uint16_t accepted(uint16_t slot) const;

  // ---- State ----
  // Ends the link for `why` (the first cause wins). Idempotent.
  void Break(const absl::Status& why);
  bool broken() const { return broken_; }
  // Broken, and no byte can land through it any more.
  bool drained() const { return broken_ && !draining_; }
  const wire::ChannelParameters& peer() const { return peer_; }
  const LinkOptions& options() const { return options_; }
  size_t queue_pairs() const { return lanes_.size(); }
  uint32_t epoch() const { return epoch_; }
  int64_t last_heard_ns() const { return last_heard_ns_; }
  // When the peer's NIC last acknowledged a work of ours that was to tell.
  int64_t last_completed_ns() const { return last_completed_ns_; }
  // The message being filled, or the next one, is to tell when the peer's NIC has it.
  void SignalMessage() { signal_message_ = true; }
  uint64_t messages_sent() const { return messages_sent_; }
  uint64_t messages_received() const { return messages_received_; }

  // QueuePairUser, PollerFlush.
  void OnCompletion(const Completion& completion) override;
  void OnNicLost(const absl::Status& why) override;
  void OnQueuePairFatal(const absl::Status& why) override { Break(why); }
  void Flush() override;

 private:
  // One queue pair and what this turn has for it.
  struct Lane {
    std::unique_ptr<QueuePair> queue_pair;
    std::vector<SendWork> works;
    std::vector<Entry> entries;
    uint32_t unsignaled = 0;
    bool has_payload = false;  // Among `works`: somebody waits for its completion.
    uint64_t queued = 0;       // Works ever added; their ids count from 1.
    uint64_t last_signaled = 0;
    uint64_t done = 0;           // Of those, completed.
    uint32_t receives_owed = 0;  // Taken by arrivals, to be posted again.
    // Of a NIC without immediates: where the next send's 4 bytes are taken from, and the
    // next receive's go to, in this lane's part of the words.
    uint32_t next_word_out = 0;
    uint32_t next_word_in = 0;
  };

  MessageLink(QueueHub* hub, const LinkOptions& options, uint32_t epoch, Owner* owner);
  absl::Status Open();
  uint32_t ReceiveDepth(size_t lane) const;
  void OnArrival(size_t lane, uint32_t immediate);
  absl::Status OnMessage(uint32_t sequence);
  absl::Status TakeMessage();
  absl::Status TakeUnordered(uint32_t sequence);
  size_t WordsBytes() const;
  uint64_t WordOut(size_t lane, uint32_t word) const;
  uint64_t WordIn(size_t lane, uint32_t word) const;
  void AddImmediate(Lane* lane, uint32_t immediate, bool signaled);
  absl::Status OnAckPage();
  absl::Status SetPeerConsumed(uint32_t consumed);
  void OnTimer() override;  // The ack has waited long enough.
  void OnStallTimer();
  void WatchHole();
  void OnHoleTimer();
  void NoteAckOwed();
  void AddAck();
  void FinishMessage();
  void AddWork(Lane* lane, SendWork work, const Entry& entry);
  absl::Status PostReceives(Lane* lane);
  absl::Status PostWordReceives(Lane* lane);
  absl::Status PostSends(Lane* lane);
  void BreakByPost(const absl::Status& posted);
  void CheckDrained();

  // Constant after Open().
  QueueHub* const hub_;
  const LinkOptions options_;
  const uint32_t epoch_;
  Owner* const owner_;
  std::vector<Lane> lanes_;
  // [our ack page, written by the peer][our ring, written by the peer]
  // [the ack page we are sending][the messages we are sending]
  // A quiet link uses the first page of each half.
  uint8_t* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint8_t* ring_in_ = nullptr;
  uint8_t* ack_in_ = nullptr;
  uint8_t* ring_out_ = nullptr;
  uint8_t* ack_out_ = nullptr;
  uint32_t inline_bytes_ = 0;
  bool ordered_ = true;
  bool immediates_ = true;
  uint8_t* words_ = nullptr;              // Of a NIC without immediates: those in, those out.
  std::unique_ptr<Region> words_region_;  // Ours alone.
  std::unique_ptr<Region> in_region_;     // Ring and ack page: the peer may write here.
  std::unique_ptr<Region> out_region_;    // Ours alone.
  wire::ChannelParameters peer_;

  // Poller thread only.
  bool connected_ = false;
  bool broken_ = false;
  bool draining_ = false;
  // Messages, counted per direction from 0; they wrap.
  uint32_t sent_ = 0;           // Finished by us.
  uint32_t peer_consumed_ = 0;  // Of those, done with by the peer.
  uint32_t consumed_ = 0;       // Of the peer's, done with by us.
  // Without order: which of the next messages have come, by ring slot.
  std::vector<bool> arrived_;
  // Tensor immediates on the first queue pair, which messages count along.
  uint32_t tensor_immediates_sent_ = 0;
  uint32_t tensor_immediates_received_ = 0;
  uint32_t consumed_told_ = 0;  // Of those, told to the peer.
  bool message_open_ = false;
  wire::MessageWriter writer_;
  uint32_t accepts_owed_ = 0;
  struct StallTimer final : PollerTimer {
    explicit StallTimer(MessageLink* link) : link(link) {}
    void OnTimer() override { link->OnStallTimer(); }
    MessageLink* const link;
  };
  StallTimer stall_timer_{this};
  // Without order: set while messages wait for one before them.
  struct HoleTimer final : PollerTimer {
    explicit HoleTimer(MessageLink* link) : link(link) {}
    void OnTimer() override { link->OnHoleTimer(); }
    MessageLink* const link;
  };
  HoleTimer hole_timer_{this};
  uint32_t hole_ = 0;        // The sequence that was missing when it was set.
  int64_t progress_ns_ = 0;  // When a work of ours last completed.
  uint64_t ack_ticket_ = 0;  // Of the last ack sent: one at a time is under way.
  bool ack_due_ = false;
  int64_t last_heard_ns_ = 0;
  int64_t last_completed_ns_ = 0;
  bool signal_message_ = false;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_MESSAGE_LINK_H_
