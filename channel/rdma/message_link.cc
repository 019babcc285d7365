#include "channel/rdma/message_link.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "verbs/completion_policy.h"

namespace tryst {
namespace {

// How long works may take to come back from a broken queue pair before it is destroyed
// under them, which also ends every access.
constexpr int64_t kDrainNs = 5'000'000'000;

// How long messages wait for one that they have overtaken before it counts as lost. A NIC
// reorders within milliseconds; a break for nothing costs a new connection.
constexpr int64_t kHoleNs = 500'000'000;

// From this size on every write is signaled, so that slow is told from stuck.
constexpr uint64_t kLargeWriteBytes = 1 << 20;

// Messages up to this size are taken by the NIC while they are posted.
constexpr uint32_t kInlineBytes = 192;

// Works of one turn that there is room for at first; more, once they are needed, stays.
constexpr size_t kFirstWorks = 8;

// Works of lane 0 that Write() leaves for the message and the ack of the same turn.
constexpr uint32_t kReservedWorks = 3;

// Without immediates each takes a work of its own.
constexpr uint32_t WorksOf(bool immediates) { return immediates ? 1 : 2; }

constexpr uint32_t kWordBytes = 4;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

uint32_t LoadWord(const uint8_t* at) {
  uint32_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

MessageLink::MessageLink(QueueHub* hub, const LinkOptions& options, uint32_t epoch, Owner* owner)
    : hub_(hub), options_(options), epoch_(epoch), owner_(owner) {
  last_heard_ns_ = hub->poller()->now_ns();
}

absl::StatusOr<std::unique_ptr<MessageLink>> MessageLink::Create(QueueHub* hub,
                                                                 const LinkOptions& options,
                                                                 uint32_t epoch, Owner* owner) {
  std::unique_ptr<MessageLink> link(new MessageLink(hub, options, epoch, owner));
  const absl::Status opened = link->Open();
  if (!opened.ok()) return opened;
  return link;
}

MessageLink::~MessageLink() {
  for (const Lane& lane : lanes_) hub_->RemoveUser(lane.queue_pair->number());
  lanes_.clear();  // From here on no byte can land.
  in_region_.reset();
  out_region_.reset();
  words_region_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
  hub_->poller()->ForgetFlush(this);
  hub_->poller()->CancelTimer(this);
  hub_->poller()->CancelTimer(&stall_timer_);
  hub_->poller()->CancelTimer(&hole_timer_);
}

// What the peer may have under way to us on one queue pair, as a sum: its messages and
// one ack on the first, and one part of each slot's tensor on every one; and what has come and is
// not posted again yet.
uint32_t MessageLink::ReceiveDepth(size_t lane) const {
  return options_.slots + (lane == 0 ? options_.ring_slots + 1 : 0) + kReceivesInARun;
}

absl::Status MessageLink::Open() {
  const absl::Status alive = hub_->Revive();
  if (!alive.ok()) return alive;
  const size_t ring_bytes = size_t{options_.ring_slots} * options_.message_bytes;
  const size_t ack_bytes = RoundUp(wire::AckPageBytes(options_.slots), 64);
  // The ring we send from has as many slots as the peer's, which we learn later and
  // bound here: a peer with more is used up to this many.
  const size_t in_bytes = RoundUp(ring_bytes + ack_bytes, 4096);
  ordered_ = hub_->nic()->limits().ordered;
  immediates_ = hub_->nic()->limits().write_with_immediate;
  if (!ordered_ && !immediates_) {
    return absl::UnimplementedError(
        absl::StrCat("the NIC ", hub_->nic()->name(),
                     " has neither order nor immediates: nothing would tell what has landed"));
  }
  if (!ordered_) arrived_.resize(options_.ring_slots);
  memory_bytes_ = 2 * in_bytes + WordsBytes();
  // Fresh pages: an idle link's memory is not resident until it is used.
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a ring of ", options_.ring_slots, " messages"));
  }
  memory_ = static_cast<uint8_t*>(memory);
  ack_in_ = memory_;
  ring_in_ = ack_in_ + ack_bytes;
  ack_out_ = memory_ + in_bytes;
  ring_out_ = ack_out_ + ack_bytes;

  Nic* nic = hub_->nic();
  auto in_region = nic->RegisterRegion(memory_, in_bytes, kLocalWrite | kRemoteWrite);
  if (!in_region.ok()) return in_region.status();
  in_region_ = *std::move(in_region);
  auto out_region = nic->RegisterRegion(ack_out_, in_bytes, kLocalOnly);
  if (!out_region.ok()) return out_region.status();
  out_region_ = *std::move(out_region);
  if (!immediates_) {
    words_ = memory_ + 2 * in_bytes;
    auto words_region = nic->RegisterRegion(words_, WordsBytes(), kLocalWrite);
    if (!words_region.ok()) return words_region.status();
    words_region_ = *std::move(words_region);
  }

  // Queue pairs take turns at the ports that are up.
  std::vector<uint8_t> ports;
  for (const NicPort& port : nic->Ports()) {
    if (port.state == PortState::kActive) ports.push_back(port.number);
  }
  inline_bytes_ = std::min(kInlineBytes, nic->limits().max_inline_bytes);
  lanes_.reserve(options_.queue_pairs);
  for (uint32_t i = 0; i < options_.queue_pairs; ++i) {
    QueuePairOptions queue_pair_options;
    queue_pair_options.completions = hub_->completions();
    queue_pair_options.send_depth = options_.send_depth;
    queue_pair_options.receive_depth = ReceiveDepth(i);
    if (!ports.empty()) queue_pair_options.port = ports[i % ports.size()];
    queue_pair_options.max_inline_bytes = inline_bytes_;
    queue_pair_options.ack_timeout = options_.ack_timeout;
    queue_pair_options.retry_count = options_.retry_count;
    // Without order a tensor may need more receives than it has parts.
    if (!ordered_) queue_pair_options.rnr_retry_count = 7;
    auto queue_pair = nic->CreateQueuePair(queue_pair_options);
    if (!queue_pair.ok()) return queue_pair.status();
    hub_->AddUser((*queue_pair)->number(), this);
    Lane lane;
    lane.queue_pair = *std::move(queue_pair);
    lane.works.reserve(kFirstWorks);
    lane.entries.reserve(kFirstWorks);
    lane.receives_owed = ReceiveDepth(i);
    lanes_.push_back(std::move(lane));
    const absl::Status posted = PostReceives(&lanes_.back());
    if (!posted.ok()) return posted;
  }
  return absl::OkStatus();
}

// A word for each receive and each send of every lane.
size_t MessageLink::WordsBytes() const {
  if (immediates_) return 0;
  return options_.queue_pairs * size_t{ReceiveDepth(0) + options_.send_depth} * kWordBytes;
}

uint64_t MessageLink::WordIn(size_t lane, uint32_t word) const {
  return reinterpret_cast<uint64_t>(words_) +
         (lane * (ReceiveDepth(0) + options_.send_depth) + word) * kWordBytes;
}

uint64_t MessageLink::WordOut(size_t lane, uint32_t word) const {
  return WordIn(lane, ReceiveDepth(0) + word);
}

void MessageLink::DescribeTo(Hello* hello, uint64_t session) const {
  hello->queue_pairs.clear();
  for (const Lane& lane : lanes_) hello->queue_pairs.push_back(lane.queue_pair->LocalAddress());
  wire::ChannelParameters ours;
  ours.slots = options_.slots;
  ours.ring_slots = options_.ring_slots;
  ours.message_bytes = options_.message_bytes;
  ours.ring_address = in_region_->address() + static_cast<uint64_t>(ring_in_ - memory_);
  ours.ring_key = in_region_->remote_key();
  ours.ack_address = in_region_->address() + static_cast<uint64_t>(ack_in_ - memory_);
  ours.ack_key = in_region_->remote_key();
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
        absl::StrCat("the peer speaks of ", peer_.slots, " slots and messages of ",
                     peer_.message_bytes, " bytes, we of ", options_.slots, " and ",
                     options_.message_bytes, ": configure both alike"));
  }
  if (peer.queue_pairs.size() != lanes_.size()) {
    TRYST_REACHED("hostile: hello with another number of queue pairs");
    return absl::InvalidArgumentError(
        absl::StrCat("the peer has ", peer.queue_pairs.size(), " queue pairs, we ", lanes_.size()));
  }
  peer_.ring_slots = std::min(peer_.ring_slots, options_.ring_slots);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const absl::Status connected = lanes_[i].queue_pair->Connect(peer.queue_pairs[i]);
    if (!connected.ok()) return connected;
  }
  connected_ = true;
  last_heard_ns_ = hub_->poller()->now_ns();
  return absl::OkStatus();
}

wire::MessageWriter* MessageLink::message() {
  if (message_open_) return &writer_;
  if (!connected_ || broken_) return nullptr;
  if (sent_ - peer_consumed_ >= peer_.ring_slots) return nullptr;
  const Lane& lane = lanes_[0];
  // One for this message, one for the ack.
  if (lane.queue_pair->send_room() < lane.works.size() + 2 * WorksOf(immediates_)) return nullptr;
  writer_ =
      wire::MessageWriter(ring_out_ + size_t{sent_ % peer_.ring_slots} * options_.message_bytes,
                          options_.message_bytes);
  message_open_ = true;
  return &writer_;
}

wire::MessageWriter* MessageLink::NextMessage() {
  if (message_open_ && !writer_.empty()) FinishMessage();
  return message();
}

void MessageLink::FinishMessage() {
  const size_t bytes = writer_.Finish(epoch_, sent_, consumed_, tensor_immediates_sent_);
  consumed_told_ = consumed_;
  const uint64_t offset = uint64_t{sent_ % peer_.ring_slots} * options_.message_bytes;
  SendWork work;
  work.signaled = std::exchange(signal_message_, false);
  work.inline_data = bytes <= inline_bytes_;
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = wire::EncodeMessageImmediate(sent_);
  work.remote_address = peer_.ring_address + offset;
  work.remote_key = peer_.ring_key;
  AddWork(&lanes_[0], work,
          Entry{out_region_->address() + static_cast<uint64_t>(ring_out_ - ack_out_) + offset,
                bytes, out_region_->local_key()});
  ++sent_;
  ++messages_sent_;
  message_open_ = false;
}

uint32_t MessageLink::WriteRoom(size_t index) const {
  const Lane& lane = lanes_[index];
  const uint32_t taken =
      static_cast<uint32_t>(lane.works.size()) + kReservedWorks * WorksOf(immediates_);
  const uint32_t room = lane.queue_pair->send_room();
  return room > taken ? (room - taken) / WorksOf(immediates_) : 0;
}

uint64_t MessageLink::Write(size_t index, const Entry& from, uint64_t to, uint32_t key,
                            bool immediate, uint16_t slot, uint16_t generation) {
  SendWork work;
  work.signaled = from.bytes >= kLargeWriteBytes;
  work.op = immediate ? SendOp::kWriteWithImmediate : SendOp::kWrite;
  work.immediate = immediate ? wire::EncodeTensorImmediate(slot, generation) : 0;
  work.remote_address = to;
  work.remote_key = key;
  AddWork(&lanes_[index], work, from);
  lanes_[index].has_payload = true;
  if (immediate && index == 0) ++tensor_immediates_sent_;
  return lanes_[index].queued;
}

// Room comes back with a signaled completion, so one in every quarter of the queue is
// signaled: whenever the queue is full there is one to come.
void MessageLink::AddWork(Lane* lane, SendWork work, const Entry& entry) {
  if (work.op == SendOp::kWriteWithImmediate && !immediates_) {
    const bool signaled = std::exchange(work.signaled, false);
    work.op = SendOp::kWrite;
    AddWork(lane, work, entry);
    return AddImmediate(lane, work.immediate, signaled);
  }
  work.id = ++lane->queued;
  ++lane->unsignaled;
  work.signaled = work.signaled || lane->unsignaled >= options_.send_depth / 4;
  if (work.signaled) lane->unsignaled = 0;
  lane->works.push_back(work);
  lane->entries.push_back(entry);
}

// Behind the write that it tells of.
void MessageLink::AddImmediate(Lane* lane, uint32_t immediate, bool signaled) {
  const uint64_t at = WordOut(static_cast<size_t>(lane - lanes_.data()), lane->next_word_out);
  lane->next_word_out = (lane->next_word_out + 1) % options_.send_depth;
  memcpy(reinterpret_cast<void*>(at), &immediate, sizeof(immediate));
  SendWork work;
  work.op = SendOp::kSend;
  work.signaled = signaled;
  AddWork(lane, work, Entry{at, kWordBytes, words_region_->local_key()});
}

void MessageLink::Accept(uint16_t slot, uint16_t next_generation) {
  memcpy(ack_out_ + 8 + 2 * size_t{slot}, &next_generation, sizeof(next_generation));
  ++accepts_owed_;
  NoteAckOwed();
}

uint16_t MessageLink::accepted(uint16_t slot) const {
  uint16_t generation;
  memcpy(&generation, ack_in_ + 8 + 2 * size_t{slot}, sizeof(generation));
  return generation;
}

void MessageLink::NoteAckOwed() {
  if (!broken_ && !is_set()) {
    hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + options_.ack_delay_us * 1000);
  }
}

void MessageLink::AddAck() {
  memcpy(ack_out_, &epoch_, sizeof(epoch_));
  memcpy(ack_out_ + 4, &consumed_, sizeof(consumed_));
  consumed_told_ = consumed_;
  accepts_owed_ = 0;
  ack_due_ = false;
  SendWork work;
  work.signaled = true;
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = wire::EncodeAckImmediate();
  work.remote_address = peer_.ack_address;
  work.remote_key = peer_.ack_key;
  AddWork(
      &lanes_[0], work,
      Entry{out_region_->address(), wire::AckPageBytes(options_.slots), out_region_->local_key()});
  ack_ticket_ = lanes_[0].queued;
}

void MessageLink::OnTimer() {
  if (broken_) {
    if (!draining_) return;
    TRYST_REACHED("sim: works of a broken queue pair do not come back");
    TRYST_LOG(Warning) << "works of a broken queue pair on " << hub_->nic()->name()
                       << " did not come back in time: destroying it under them";
    for (const Lane& lane : lanes_) hub_->RemoveUser(lane.queue_pair->number());
    lanes_.clear();
    FlushSoon();
    return;
  }
  if (consumed_ == consumed_told_ && accepts_owed_ == 0) return;
  ack_due_ = true;
  FlushSoon();
}

void MessageLink::OnStallTimer() {
  if (broken_) return;
  const bool waits = std::any_of(lanes_.begin(), lanes_.end(),
                                 [](const Lane& lane) { return lane.done < lane.last_signaled; });
  if (!waits) return;  // The next post sets the timer again.
  const int64_t due_ns = progress_ns_ + options_.stall_ms * 1'000'000;
  if (hub_->poller()->now_ns() < due_ns) return hub_->poller()->SetTimer(&stall_timer_, due_ns);
  TRYST_REACHED("rare: no work completes");
  Break(
      absl::UnavailableError(absl::StrCat("no work has completed for ", options_.stall_ms, " ms")));
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
      lanes_[0].queue_pair->send_room() >= lanes_[0].works.size() + WorksOf(immediates_)) {
    AddAck();
  }
  // Receives first: what goes out now tells the peer that there is room for more.
  for (Lane& lane : lanes_) {
    if (lane.receives_owed < kReceivesInARun) continue;
    const absl::Status posted = PostReceives(&lane);
    if (!posted.ok()) return BreakByPost(posted);
  }
  for (Lane& lane : lanes_) {
    if (lane.works.empty()) continue;
    const absl::Status posted = PostSends(&lane);
    if (!posted.ok()) return BreakByPost(posted);
  }
}

// The queue pair broke and its completions have not told yet.
void MessageLink::BreakByPost(const absl::Status& posted) {
  TRYST_REACHED("sim: a broken queue pair takes no works");
  Break(absl::UnavailableError(
      absl::StrCat(hub_->nic()->name(), " takes no more works: ", posted.message())));
}

absl::Status MessageLink::PostReceives(Lane* lane) {
  if (!immediates_) return PostWordReceives(lane);
  // All alike: what arrives lands by itself, and takes one.
  static const ReceiveWork works[64] = {};
  while (lane->receives_owed > 0) {
    const uint32_t count = std::min<uint32_t>(lane->receives_owed, 64);
    const absl::Status posted = lane->queue_pair->PostReceive(absl::MakeConstSpan(works, count));
    if (!posted.ok()) return posted;
    lane->receives_owed -= count;
  }
  return absl::OkStatus();
}

// For sends of 4 bytes, each into a word of its own, which its id says.
absl::Status MessageLink::PostWordReceives(Lane* lane) {
  const size_t index = static_cast<size_t>(lane - lanes_.data());
  for (; lane->receives_owed > 0; --lane->receives_owed) {
    const Entry word = {WordIn(index, lane->next_word_in), kWordBytes, words_region_->local_key()};
    ReceiveWork work;
    work.id = lane->next_word_in;
    work.entries = absl::MakeConstSpan(&word, 1);
    const absl::Status posted = lane->queue_pair->PostReceive(absl::MakeConstSpan(&work, 1));
    if (!posted.ok()) return posted;
    lane->next_word_in = (lane->next_word_in + 1) % ReceiveDepth(index);
  }
  return absl::OkStatus();
}

absl::Status MessageLink::PostSends(Lane* lane) {
  for (size_t i = 0; i < lane->works.size(); ++i) {
    lane->works[i].entries = absl::MakeConstSpan(&lane->entries[i], 1);
  }
  if (lane->has_payload) {
    // So that the sources are known to be free as soon as they are.
    lane->works.back().signaled = true;
    lane->unsignaled = 0;
    lane->has_payload = false;
  }
  for (const SendWork& work : lane->works) {
    if (work.signaled) lane->last_signaled = work.id;
  }
  if (!stall_timer_.is_set()) {
    progress_ns_ = hub_->poller()->now_ns();
    hub_->poller()->SetTimer(&stall_timer_, progress_ns_ + options_.stall_ms * 1'000'000);
  }
  const absl::Status posted = lane->queue_pair->PostSend(lane->works);
  lane->works.clear();
  lane->entries.clear();
  return posted;
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
    Lane& lane = lanes_[i];
    if (lane.queue_pair->number() != completion.queue_pair) continue;
    if (completion.op == CompletionOp::kReceiveWriteImmediate) {
      OnArrival(i, completion.immediate);
    } else if (completion.op == CompletionOp::kReceive) {
      OnArrival(i, completion.bytes == kWordBytes && !immediates_
                       ? LoadWord(reinterpret_cast<const uint8_t*>(
                             WordIn(i, static_cast<uint32_t>(completion.id))))
                       : wire::kNoImmediate);
    } else {
      lane.done = std::max(lane.done, completion.id);
      progress_ns_ = last_completed_ns_ = hub_->poller()->now_ns();
      owner_->OnWritesDone();
    }
    break;
  }
  FlushSoon();  // There is room again, or something to answer.
}

void MessageLink::OnArrival(size_t lane, uint32_t immediate) {
  ++lanes_[lane].receives_owed;
  last_heard_ns_ = hub_->poller()->now_ns();
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
          handled = absl::DataLossError("tensor immediate for a slot that is not there");
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
  if (!ordered_) return TakeUnordered(sequence);
  if (sequence != (consumed_ & wire::kSequenceMask)) {
    TRYST_REACHED("hostile: message out of turn");
    return absl::DataLossError(absl::StrCat("message ", sequence, " arrived where ",
                                            consumed_ & wire::kSequenceMask, " was due"));
  }
  return TakeMessage();
}

// It waits for those before it, as far as the ring reaches.
absl::Status MessageLink::TakeUnordered(uint32_t sequence) {
  const uint32_t ahead = (sequence - consumed_) & wire::kSequenceMask;
  if (ahead >= peer_.ring_slots || arrived_[(consumed_ + ahead) % peer_.ring_slots]) {
    TRYST_REACHED("hostile: unordered message that is not due");
    return absl::DataLossError(absl::StrCat("message ", sequence, " arrived where one of the ",
                                            peer_.ring_slots, " from ",
                                            consumed_ & wire::kSequenceMask, " was due"));
  }
  if (ahead > 0) TRYST_REACHED("unordered: a message overtakes another");
  arrived_[(consumed_ + ahead) % peer_.ring_slots] = true;
  while (!broken_ && arrived_[consumed_ % peer_.ring_slots]) {
    arrived_[consumed_ % peer_.ring_slots] = false;
    const absl::Status taken = TakeMessage();
    if (!taken.ok()) return taken;
  }
  WatchHole();
  return absl::OkStatus();
}

// With order the message behind one that got lost shows it; here only time does.
void MessageLink::WatchHole() {
  if (broken_ || hole_timer_.is_set()) return;
  if (std::find(arrived_.begin(), arrived_.end(), true) == arrived_.end()) return;
  hole_ = consumed_;
  hub_->poller()->SetTimer(&hole_timer_, hub_->poller()->now_ns() + kHoleNs);
}

void MessageLink::OnHoleTimer() {
  if (broken_) return;
  if (hole_ != consumed_) return WatchHole();
  TRYST_REACHED("unordered: a message got lost");
  Break(absl::DataLossError(absl::StrCat("message ", hole_ & wire::kSequenceMask,
                                         " got lost: those behind it have waited for ",
                                         kHoleNs / 1'000'000, " ms")));
}

absl::Status MessageLink::TakeMessage() {
  const uint8_t* slot = ring_in_ + size_t{consumed_ % peer_.ring_slots} * options_.message_bytes;
  auto reader = wire::MessageReader::Open(slot, options_.message_bytes);
  if (!reader.ok()) {
    TRYST_REACHED("hostile: message that cannot be read");
    return reader.status();
  }
  if (reader->header().epoch != epoch_) {
    TRYST_REACHED("hostile: message of another epoch");
    return absl::DataLossError(
        absl::StrCat("message of epoch ", reader->header().epoch, " in epoch ", epoch_));
  }
  if (reader->header().sequence != consumed_) {
    TRYST_REACHED("hostile: message of another turn of the ring");
    return absl::DataLossError("message of another turn of the ring");
  }
  // Without order others may be on their way; what has landed is counted for each tensor.
  if (ordered_ && reader->header().tensor_immediates != tensor_immediates_received_) {
    TRYST_REACHED("hostile: a tensor immediate is missing");
    return absl::DataLossError("a tensor immediate got lost");
  }
  const absl::Status told = SetPeerConsumed(reader->header().ring_consumed);
  if (!told.ok()) return told;
  ++messages_received_;
  wire::Record record;
  for (;;) {
    auto more = reader->Next(&record);
    if (!more.ok()) {
      TRYST_REACHED("hostile: record that cannot be read");
      return more.status();
    }
    if (!*more) break;
    const absl::Status handled = owner_->OnRecord(record);
    if (!handled.ok()) return handled;
    if (broken_) return absl::OkStatus();
  }
  ++consumed_;
  NoteAckOwed();
  return absl::OkStatus();
}

absl::Status MessageLink::OnAckPage() {
  if (LoadWord(ack_in_) != epoch_) {
    TRYST_REACHED("hostile: ack page of another epoch");
    return absl::DataLossError("ack page of another epoch");
  }
  const absl::Status told = SetPeerConsumed(LoadWord(ack_in_ + 4));
  if (!told.ok()) return told;
  owner_->OnAccepted();
  return absl::OkStatus();
}

absl::Status MessageLink::SetPeerConsumed(uint32_t consumed) {
  // The page may run ahead of a header that was sent before it: an older count says
  // nothing new.
  const uint32_t ahead = consumed - peer_consumed_;
  if (ahead == 0 || ahead > UINT32_MAX / 2) return absl::OkStatus();
  if (ahead > sent_ - peer_consumed_) {
    TRYST_REACHED("hostile: more consumed than was sent");
    return absl::DataLossError("the peer has consumed messages that were never sent");
  }
  peer_consumed_ = consumed;
  return absl::OkStatus();
}

void MessageLink::OnNicLost(const absl::Status& why) {
  TRYST_REACHED("sim: the NIC is lost under a link");
  for (const Lane& lane : lanes_) hub_->RemoveUser(lane.queue_pair->number());
  lanes_.clear();
  Break(why);
}

void MessageLink::Break(const absl::Status& why) {
  if (broken_) return;
  broken_ = true;
  draining_ = true;
  for (Lane& lane : lanes_) {
    lane.works.clear();
    lane.entries.clear();
    lane.queue_pair->Break();
  }
  hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + kDrainNs);
  FlushSoon();  // To see whether it is drained already; never inside this call.
  owner_->OnBroken(why);
}

void MessageLink::CheckDrained() {
  for (const Lane& lane : lanes_) {
    if (lane.queue_pair->state() != QueuePairState::kDrained) return;
  }
  draining_ = false;
  hub_->poller()->CancelTimer(this);
  owner_->OnDrained();  // May destroy us.
}

}  // namespace tryst
