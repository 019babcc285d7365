#include "channel/rdma/message_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "verbs/completion_policy.h"

namespace tryst {
namespace {

// How long the works of a broken queue pair may take to complete. Then the queue pair is destroyed,
// which also ends every access.
constexpr int64_t kDrainNs = 5'000'000'000;

// Every write of at least this size is signaled, so that a slow link can be told from a stuck one.
constexpr uint64_t kLargeWriteBytes = 1 << 20;

// Works of lane 0 that Write() leaves for the message and the ack of the same turn.
constexpr uint32_t kReservedWorks = 3;

// Not inline, because callers rarely need the text and should not pay for its buffers.
[[gnu::noinline, gnu::cold]] absl::Status OfAnotherEpoch(uint32_t said, uint32_t epoch) {
  return absl::DataLossError(
      absl::StrCat("the peer broke the protocol: it sent a message of connection ", said,
                   " on connection ", epoch));
}

uint32_t LoadWord(const uint8_t* at) {
  uint32_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

MessageLink::MessageLink(QueueHub* hub, const LinkOptions& options, uint32_t epoch, Owner* owner)
    : hub_(hub),
      options_(options),
      epoch_(epoch),
      owner_(owner),
      lanes_(hub, &options_, &memory_, [this] { OnStall(); }),
      early_(hub->poller(), &consumed_, [this] { OnMessageLost(); }) {}

absl::StatusOr<std::unique_ptr<MessageLink>> MessageLink::Create(QueueHub* hub,
                                                                 const LinkOptions& options,
                                                                 uint32_t epoch, Owner* owner) {
  std::unique_ptr<MessageLink> link(new MessageLink(hub, options, epoch, owner));
  const absl::Status opened = link->Open();
  if (!opened.ok()) return opened;
  return link;
}

MessageLink::~MessageLink() {
  lanes_.Destroy();
  hub_->poller()->ForgetFlush(this);
  hub_->poller()->CancelTimer(this);
}

absl::Status MessageLink::Open() {
  const absl::Status alive = hub_->Revive();
  if (!alive.ok()) return alive;
  const NicLimits& limits = hub_->nic()->limits();
  if (!limits.ordered && !limits.write_with_immediate) {
    return absl::UnimplementedError(
        absl::StrCat("the NIC ", hub_->nic()->name(),
                     " can be used for no path: it neither keeps writes in order nor marks them "
                     "(immediates), so a receiver could not tell when a tensor is complete"));
  }
  if (!limits.ordered) early_.Open(options_.ring_slots);
  const absl::Status mapped = memory_.Open(hub_->nic(), options_);
  return mapped.ok() ? lanes_.Open(this) : mapped;
}

void MessageLink::DescribeTo(Hello* hello, uint64_t session) const {
  hello->queue_pairs.clear();
  for (const LinkLanes::Lane& lane : lanes_)
    hello->queue_pairs.push_back(lane.queue_pair->LocalAddress());
  wire::ChannelParameters ours;
  ours.slots = options_.slots;
  ours.ring_slots = options_.ring_slots;
  ours.message_bytes = options_.message_bytes;
  ours.ring_address = memory_.RemoteAddress(memory_.ring_in());
  ours.ring_key = memory_.remote_key();
  ours.ack_address = memory_.RemoteAddress(memory_.ack_in());
  ours.ack_key = memory_.remote_key();
  ours.digests = options_.digests;
  ours.session = session;
  hello->parameters.resize(wire::kParametersBytes);
  wire::EncodeParameters(ours, reinterpret_cast<uint8_t*>(&hello->parameters[0]));
}

absl::Status MessageLink::Connect(const Hello& peer) {
  auto parameters = wire::DecodeParameters(peer.parameters);
  if (!parameters.ok()) return parameters.status();
  peer_ = *parameters;
  if (peer_.slots != options_.slots || peer_.message_bytes != options_.message_bytes) {
    TRYST_REACHED("hostile: hello of other sizes");
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's connection has ", peer_.slots, " slots and messages of ",
                     peer_.message_bytes, " bytes, and this worker's has ", options_.slots, " and ",
                     options_.message_bytes, ": run the same release on both workers"));
  }
  if (peer.queue_pairs.size() != lanes_.size()) {
    TRYST_REACHED("hostile: hello with another number of queue pairs");
    return absl::InvalidArgumentError(
        absl::StrCat("the peer has ", peer.queue_pairs.size(),
                     " queue pairs for this connection, and this worker has ", lanes_.size(),
                     ": run the same release on both workers"));
  }
  peer_.ring_slots = std::min(peer_.ring_slots, options_.ring_slots);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const absl::Status connected = lanes_[i].queue_pair->Connect(peer.queue_pairs[i]);
    if (!connected.ok()) return connected;
  }
  connected_ = true;
  return absl::OkStatus();
}

wire::MessageWriter* MessageLink::message() {
  if (message_open_) return &writer_;
  if (!connected_ || broken_) return nullptr;
  if (sent_ - peer_consumed_ >= peer_.ring_slots) return nullptr;
  const LinkLanes::Lane& lane = lanes_[0];
  // Room for one message and one ack.
  if (lane.queue_pair->send_room() < lane.works.size() + 2 * lanes_.WorksOfOne()) return nullptr;
  writer_ = wire::MessageWriter(
      memory_.ring_out() + size_t{sent_ % peer_.ring_slots} * options_.message_bytes,
      options_.message_bytes);
  message_open_ = true;
  return &writer_;
}

wire::MessageWriter* MessageLink::NextMessage() {
  if (!writer_.empty()) FinishMessage();
  return message();
}

void MessageLink::FinishMessage() {
  const size_t bytes = writer_.Finish(epoch_, sent_, consumed_, tensor_immediates_sent_);
  consumed_told_ = consumed_;
  const uint64_t offset = uint64_t{sent_ % peer_.ring_slots} * options_.message_bytes;
  SendWork work;
  work.signaled = std::exchange(signal_message_, false);
  work.inline_data = bytes <= lanes_.inline_bytes();
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = wire::EncodeMessageImmediate(sent_);
  work.remote_address = peer_.ring_address + offset;
  work.remote_key = peer_.ring_key;
  lanes_.AddWork(&lanes_[0], work, memory_.Out(memory_.ring_out() + offset, bytes));
  ++sent_;
  ++messages_sent_;
  message_open_ = false;
}

uint32_t MessageLink::WriteRoom(size_t index) const {
  const LinkLanes::Lane& lane = lanes_[index];
  const uint32_t taken =
      static_cast<uint32_t>(lane.works.size()) + kReservedWorks * lanes_.WorksOfOne();
  const uint32_t room = lane.queue_pair->send_room();
  return room > taken ? (room - taken) / lanes_.WorksOfOne() : 0;
}

uint64_t MessageLink::Write(size_t index, const Entry& from, uint64_t to, uint32_t key,
                            bool immediate, uint16_t slot, uint16_t generation,
                            const Storage* owner) {
  SendWork work;
  work.owner = owner;
  work.signaled = from.bytes >= kLargeWriteBytes;
  work.op = immediate ? SendOp::kWriteWithImmediate : SendOp::kWrite;
  work.immediate = immediate ? wire::EncodeTensorImmediate(slot, generation) : 0;
  work.remote_address = to;
  work.remote_key = key;
  lanes_.AddWork(&lanes_[index], work, from);
  lanes_[index].has_payload = true;
  if (immediate && index == 0) ++tensor_immediates_sent_;
  return lanes_[index].queued;
}

void MessageLink::Accept(uint16_t slot, uint16_t next_generation) {
  NoteOver(slot, next_generation);
  ++accepts_owed_;
  NoteAckOwed();
}

void MessageLink::NoteOver(uint16_t slot, uint16_t next_generation) {
  memcpy(memory_.ack_out() + 8 + 2 * size_t{slot}, &next_generation, sizeof(next_generation));
}

uint16_t MessageLink::accepted(uint16_t slot) const {
  uint16_t generation;
  memcpy(&generation, memory_.ack_in() + 8 + 2 * size_t{slot}, sizeof(generation));
  return generation;
}

void MessageLink::NoteAckOwed() {
  if (!broken_ && !is_set()) {
    hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + options_.ack_delay_us * 1000);
  }
}

void MessageLink::AddAck() {
  memcpy(memory_.ack_out(), &epoch_, sizeof(epoch_));
  memcpy(memory_.ack_out() + 4, &consumed_, sizeof(consumed_));
  consumed_told_ = consumed_;
  accepts_owed_ = 0;
  ack_due_ = false;
  SendWork work;
  work.signaled = true;
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = wire::EncodeAckImmediate();
  work.remote_address = peer_.ack_address;
  work.remote_key = peer_.ack_key;
  lanes_.AddWork(&lanes_[0], work,
                 memory_.Out(memory_.ack_out(), wire::AckPageBytes(options_.slots)));
  ack_ticket_ = lanes_[0].queued;
}

// Only messages may leave without a report, and only on the first queue pair.
void MessageLink::ReportWorks() {
  if (broken_ || lanes_[0].unsignaled == 0) return;
  ack_due_ = true;
  FlushSoon();
}

void MessageLink::OnTimer() {
  if (broken_) {
    if (!draining_) return;
    TRYST_REACHED("sim: works of a broken queue pair do not come back");
    TRYST_LOG(Warning) << hub_->nic()->name()
                       << " did not end the writes of a broken connection in time: this worker "
                          "destroys the queue pair all the same";
    lanes_.Destroy();
    FlushSoon();
    return;
  }
  if (consumed_ == consumed_told_ && accepts_owed_ == 0) return;
  ack_due_ = true;
  FlushSoon();
}

void MessageLink::Flush() {
  if (broken_) {
    if (draining_) CheckDrained();
    return;
  }
  if (!connected_) return;
  owner_->OnFlush();
  if (broken_) return;
  if (message_open_ && !writer_.empty()) FinishMessage();
  const bool ack_wanted = ack_due_ || consumed_ - consumed_told_ >= options_.ring_slots / 2 ||
                          2 * accepts_owed_ > options_.slots;
  if (ack_wanted && lanes_[0].done >= ack_ticket_ &&
      lanes_[0].queue_pair->send_room() >= lanes_[0].works.size() + lanes_.WorksOfOne()) {
    AddAck();
  }
  const absl::Status posted = lanes_.Post();
  if (posted.ok()) return;
  // The queue pair is broken, but its completions do not say so yet.
  TRYST_REACHED("sim: a broken queue pair takes no works");
  Break(absl::UnavailableError(
      absl::StrCat(hub_->nic()->name(), " refuses a work: ", posted.message())));
}

void MessageLink::OnStall() {
  if (broken_) return;
  TRYST_REACHED("rare: no work completes");
  Break(absl::UnavailableError(absl::StrCat("the NIC has completed nothing that was posted for ",
                                            options_.stall_ms, " ms")));
}

void MessageLink::OnCompletion(const Completion& completion) {
  if (completion.status != CompletionStatus::kOk) {
    TRYST_REACHED("sim: a work failed");
    Break(CompletionError(completion, hub_->nic()->name()));
    FlushSoon();
    return;
  }
  if (broken_) {
    TRYST_REACHED("sim: a completion after the break");
    return FlushSoon();
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LinkLanes::Lane& lane = lanes_[i];
    if (lane.queue_pair->number() != completion.queue_pair) continue;
    if (completion.op == CompletionOp::kReceiveWriteImmediate) {
      OnArrival(i, completion.immediate);
    } else if (completion.op == CompletionOp::kReceive) {
      OnArrival(i, lanes_.Received(i, completion));
    } else {
      lanes_.NoteDone(&lane, completion.id);
      owner_->OnWritesDone();
    }
    break;
  }
  FlushSoon();  // There is room again, or something to answer.
}

void MessageLink::OnArrival(size_t lane, uint32_t immediate) {
  ++lanes_[lane].receives_owed;
  auto what = wire::DecodeImmediate(immediate);
  absl::Status handled = what.status();
  if (!what.ok()) {
    TRYST_REACHED("hostile: immediate of no kind");
  } else {
    switch (what->kind) {
      case wire::ImmediateKind::kMessage:
        handled = OnMessage(what->sequence);
        break;
      case wire::ImmediateKind::kTensor:
        if (lane == 0) ++tensor_immediates_received_;
        if (what->slot < options_.slots) {
          handled = owner_->OnTensorPart(lane, what->slot, what->generation);
        } else {
          TRYST_REACHED("hostile: tensor immediate for no slot");
          handled = absl::DataLossError(
              "the peer broke the protocol: it says that a tensor is complete for a slot that does "
              "not exist");
        }
        break;
      case wire::ImmediateKind::kAck:
        handled = OnAckPage();
        break;
    }
  }
  if (!handled.ok()) Break(handled);
}

absl::Status MessageLink::OnMessage(uint32_t sequence) {
  if (!ordered()) return TakeUnordered(sequence);
  if (sequence != (consumed_ & wire::kSequenceMask)) {
    TRYST_REACHED("hostile: message out of turn");
    return absl::DataLossError(absl::StrCat("message ", sequence,
                                            " of the peer arrived where message ",
                                            consumed_ & wire::kSequenceMask, " was due"));
  }
  return TakeMessage();
}

// Keeps the message until those before it have come, if the ring reaches so far.
absl::Status MessageLink::TakeUnordered(uint32_t sequence) {
  const uint32_t ahead = (sequence - consumed_) & wire::kSequenceMask;
  if (ahead >= peer_.ring_slots || early_.has((consumed_ + ahead) % peer_.ring_slots)) {
    TRYST_REACHED("hostile: unordered message that is not due");
    return absl::DataLossError(
        absl::StrCat("message ", sequence, " of the peer arrived where one of ", peer_.ring_slots,
                     " messages from ", consumed_ & wire::kSequenceMask, " on was due"));
  }
  if (ahead > 0) TRYST_REACHED("unordered: a message overtakes another");
  early_.Add((consumed_ + ahead) % peer_.ring_slots);
  while (!broken_ && early_.has(consumed_ % peer_.ring_slots)) {
    early_.Take(consumed_ % peer_.ring_slots);
    const absl::Status taken = TakeMessage();
    if (!taken.ok()) return taken;
  }
  if (!broken_) early_.Watch();
  return absl::OkStatus();
}

void MessageLink::OnMessageLost() {
  if (broken_) return;
  TRYST_REACHED("unordered: a message got lost");
  Break(
      absl::DataLossError(absl::StrCat("message ", consumed_ & wire::kSequenceMask,
                                       " of the peer got lost: messages after it have waited for ",
                                       EarlyMessages::kPatienceNs / 1'000'000, " ms")));
}

absl::Status MessageLink::TakeMessage() {
  const uint8_t* slot =
      memory_.ring_in() + size_t{consumed_ % peer_.ring_slots} * options_.message_bytes;
  wire::MessageReader reader;
  absl::Status begun = reader.Begin(slot, options_.message_bytes);
  if (!begun.ok()) {
    TRYST_REACHED("hostile: message that cannot be read");
    return begun;
  }
  if (reader.header().epoch != epoch_) {
    TRYST_REACHED("hostile: message of another epoch");
    return OfAnotherEpoch(reader.header().epoch, epoch_);
  }
  if (reader.header().sequence != consumed_) {
    TRYST_REACHED("hostile: message of another turn of the ring");
    return absl::DataLossError("the peer broke the protocol: a message has the wrong number");
  }
  // On a NIC that reorders, immediates may still be under way; there each tensor counts its own.
  if (ordered() && reader.header().tensor_immediates != tensor_immediates_received_) {
    TRYST_REACHED("hostile: a tensor immediate is missing");
    return absl::DataLossError(
        "the peer broke the protocol, or the NIC lost something: a tensor was announced and its "
        "mark (immediate) has not arrived");
  }
  absl::Status told = SetPeerConsumed(reader.header().ring_consumed);
  if (!told.ok()) return told;
  wire::Record record;
  while (reader.HasMore()) {
    absl::Status read = reader.Read(&record);
    if (!read.ok()) {
      TRYST_REACHED("hostile: record that cannot be read");
      return read;
    }
    absl::Status handled = owner_->OnRecord(record);
    if (!handled.ok()) return handled;
    if (broken_) return absl::OkStatus();
  }
  absl::Status ended = reader.End();
  if (!ended.ok()) return ended;
  ++consumed_;
  NoteAckOwed();
  return absl::OkStatus();
}

absl::Status MessageLink::OnAckPage() {
  if (LoadWord(memory_.ack_in()) != epoch_) {
    TRYST_REACHED("hostile: ack page of another epoch");
    return absl::DataLossError(
        "the peer broke the protocol: its acknowledgement is of another connection");
  }
  const absl::Status told = SetPeerConsumed(LoadWord(memory_.ack_in() + 4));
  if (!told.ok()) return told;
  owner_->OnAccepted();
  return absl::OkStatus();
}

absl::Status MessageLink::SetPeerConsumed(uint32_t consumed) {
  // The ack page may be newer than a header that was sent before it, so an older count is no error.
  const uint32_t ahead = consumed - peer_consumed_;
  if (ahead == 0 || ahead > UINT32_MAX / 2) return absl::OkStatus();
  if (ahead > sent_ - peer_consumed_) {
    TRYST_REACHED("hostile: more consumed than was sent");
    return absl::DataLossError(
        "the peer broke the protocol: it says that it has read messages which were never sent");
  }
  peer_consumed_ = consumed;
  return absl::OkStatus();
}

void MessageLink::OnNicLost(const absl::Status& why) {
  TRYST_REACHED("sim: the NIC is lost under a link");
  lanes_.Destroy();
  Break(why);
  if (draining_) FlushSoon();  // It may have been broken before, and now it has drained.
}

void MessageLink::Break(const absl::Status& why) {
  if (broken_) return;
  broken_ = true;
  draining_ = true;
  for (LinkLanes::Lane& lane : lanes_) {
    lane.works.clear();
    lane.entries.clear();
    lane.queue_pair->Break();
  }
  hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + kDrainNs);
  FlushSoon();  // The flush checks whether it is drained; OnDrained() must not run in here.
  owner_->OnBroken(why);
}

void MessageLink::CheckDrained() {
  for (const LinkLanes::Lane& lane : lanes_) {
    if (lane.queue_pair->state() != QueuePairState::kDrained) return;
  }
  draining_ = false;
  hub_->poller()->CancelTimer(this);
  owner_->OnDrained();  // May destroy us.
}

}  // namespace tryst
