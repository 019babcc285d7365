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
#include "channel/rdma/early_messages.h"
#include "channel/rdma/link_lanes.h"
#include "channel/rdma/link_memory.h"
#include "channel/rdma/link_options.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/wire.h"
#include "rendezvous/tensor.h"
#include "verbs/nic.h"

namespace tryst {

// One epoch of a connection, as far as both ends are alike: the queue pairs, a message ring and an
// ack page in each direction, and the accounting that keeps every queue from overrunning. It knows
// records, not tensors.
//
// A NIC may promise less than an RDMA NIC (NicLimits). On one that reorders, each message waits for
// those before it, and every write of a tensor carries an immediate, so that the number of
// immediates proves that the tensor has landed. Only one ack page is under way at a time, on every
// NIC, so none overtakes another. On a NIC without immediates a send of 4 bytes behind the write
// takes the place of each.
//
// A broken link stays broken: the owner waits for drained() and makes the next one. Poller thread
// only. REQUIRES at destruction: nothing. But only drained() promises that no byte lands any more
// while the link lives.
class MessageLink final : public QueuePairUser, public PollerFlush, private PollerTimer {
 public:
  // What the link calls. Inside a call the owner may break the link, but not destroy it.
  class Owner {
   public:
    virtual ~Owner() = default;
    // An error breaks the link with it.
    virtual absl::Status OnRecord(const wire::Record& record) = 0;
    // A part of a tensor has come on queue pair `lane`. An ordered lane carries at most one part of
    // each tensor, any other lane any number.
    virtual absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) = 0;
    // accepted() has moved: the peer accepted something.
    virtual void OnAccepted() {}
    // WriteDone() has moved: the NIC no longer needs the source of more of our writes.
    virtual void OnWritesDone() {}
    // There may be room: add records and writes until there is none.
    virtual void OnFlush() = 0;
    // Called once, with the first cause. Works still complete until drained().
    virtual void OnBroken(const absl::Status& why) = 0;
    virtual void OnDrained() = 0;
  };

  static absl::StatusOr<std::unique_ptr<MessageLink>> Create(QueueHub* hub,
                                                             const LinkOptions& options,
                                                             uint32_t epoch, Owner* owner);
  ~MessageLink() override;

  // Our half of the hello: queue_pairs and parameters.
  void DescribeTo(Hello* hello, uint64_t session) const;
  // Takes the peer's half and connects. kInvalidArgument, kDataLoss: the peer's half is not valid.
  absl::Status Connect(const Hello& peer);

  // ---- Sending. What is added leaves at the end of this turn, in order. ----

  // The message being filled, or null while the ring or the send queue is full;
  // OnFlush() comes again when it no longer is. After an Add...() that failed for lack
  // of room call NextMessage() and try once more. REQUIRES for that: there is a message.
  wire::MessageWriter* message();
  wire::MessageWriter* NextMessage();
  // Calls `add` with the message being filled and, if the record does not fit, with the next one.
  // `bool add(wire::MessageWriter*)` calls one Add...() and returns whether it fitted. False:
  // neither message has room.
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
  // Queues a write of [from, from + bytes) on queue pair `index`, before the message being filled.
  // `immediate`: it is the last write of a part. `owner` has the bytes; null: nobody may keep them.
  // Returns a ticket for WriteDone(). REQUIRES: WriteRoom() covers it.
  uint64_t Write(size_t index, const Entry& from, uint64_t to, uint32_t key, bool immediate,
                 uint16_t slot, uint16_t generation, const Storage* owner = nullptr);
  // Whether the NIC no longer needs the source of that write, nor of those before it.
  bool WriteDone(size_t index, uint64_t ticket) const { return lanes_[index].done >= ticket; }
  // The ticket of the last work on queue pair `index`, which may be a message. After a
  // ReportWorks() it is done as soon as the peer's NIC has that work, and all before it.
  uint64_t last_ticket(size_t index) const { return lanes_[index].queued; }
  void ReportWorks();
  // Whether writes land in the order of posting. If not, each Write() must have an immediate.
  bool ordered() const { return lanes_.ordered(); }
  // How many more Write()s queue pair `index` takes now.
  uint32_t WriteRoom(size_t index) const;
  // Asks for OnFlush() at the end of this turn.
  void FlushSoon() { hub_->poller()->FlushThisTurn(this); }

  // For the consumer: `slot`'s tensor has arrived and is ours; the peer may drop it.
  void Accept(uint16_t slot, uint16_t next_generation);
  // For the consumer: what came on `slot` before that generation is over, which the peer hears with
  // the next acknowledgement. Each word begins so, because one that was never written would accept
  // half of all generations.
  void NoteOver(uint16_t slot, uint16_t next_generation);
  // For the producer: the generation after the last one that the consumer accepted.
  uint16_t accepted(uint16_t slot) const;

  // ---- State ----
  // Ends the link for `why` (the first cause wins). Idempotent.
  void Break(const absl::Status& why);
  bool broken() const { return broken_; }
  // Whether it is broken, and no byte can land through it any more.
  bool drained() const { return broken_ && !draining_; }
  const wire::ChannelParameters& peer() const { return peer_; }
  const LinkOptions& options() const { return options_; }
  size_t queue_pairs() const { return lanes_.size(); }
  // As QueuePair::Networks().
  std::string Networks() const {
    return lanes_.size() == 0 ? std::string() : lanes_[0].queue_pair->Networks();
  }
  // When the peer's NIC last acknowledged a work of ours that reports its completion.
  int64_t last_completed_ns() const { return lanes_.last_completed_ns(); }
  // The message being filled, or the next one, shall report when the peer's NIC has it.
  void SignalMessage() { signal_message_ = true; }
  uint64_t messages_sent() const { return messages_sent_; }
  // The number of the message being filled, or of the next one; and whether the peer says that it
  // has read a message.
  uint32_t message_number() const { return sent_; }
  bool HasRead(uint32_t number) const { return static_cast<int32_t>(peer_consumed_ - number) > 0; }

  // QueuePairUser, PollerFlush.
  void OnCompletion(const Completion& completion) override;
  void OnNicLost(const absl::Status& why) override;
  void OnQueuePairFatal(const absl::Status& why) override { Break(why); }
  void Flush() override;

 private:
  MessageLink(QueueHub* hub, const LinkOptions& options, uint32_t epoch, Owner* owner);
  absl::Status Open();
  void OnArrival(size_t lane, uint32_t immediate);
  absl::Status OnMessage(uint32_t sequence);
  absl::Status TakeMessage();
  absl::Status TakeUnordered(uint32_t sequence);
  absl::Status OnAckPage();
  absl::Status SetPeerConsumed(uint32_t consumed);
  void OnTimer() override;  // The ack has waited long enough.
  void OnStall();
  void OnMessageLost();
  void NoteAckOwed();
  void AddAck();
  void FinishMessage();
  void CheckDrained();

  // Constant after Open().
  QueueHub* const hub_;
  const LinkOptions options_;
  const uint32_t epoch_;
  Owner* const owner_;
  LinkMemory memory_;
  LinkLanes lanes_;  // Destroyed before the memory that they use.
  wire::ChannelParameters peer_;

  // Poller thread only.
  bool connected_ = false;
  bool broken_ = false;
  bool draining_ = false;
  // Messages, counted per direction from 0; they wrap.
  uint32_t sent_ = 0;           // Finished by us.
  uint32_t peer_consumed_ = 0;  // How many of those the peer has handled.
  uint32_t consumed_ = 0;       // How many of the peer's messages we have handled.
  EarlyMessages early_;         // Used on a NIC that reorders.
  // Tensor immediates on the first queue pair. Each message tells how many went before it.
  uint32_t tensor_immediates_sent_ = 0;
  uint32_t tensor_immediates_received_ = 0;
  uint32_t consumed_told_ = 0;  // The part of consumed_ that the peer was told.
  bool message_open_ = false;
  wire::MessageWriter writer_;
  uint32_t accepts_owed_ = 0;
  uint64_t ack_ticket_ = 0;  // The last ack that was sent; only one is under way at a time.
  bool ack_due_ = false;
  bool signal_message_ = false;
  uint64_t messages_sent_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_MESSAGE_LINK_H_
