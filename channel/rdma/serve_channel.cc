#include "channel/rdma/serve_channel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/crc32c.h"
#include "channel/string_codec.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr uint32_t kMaxKeys = 1u << 16;

// A generation is newer if it is less than half the circle ahead.
bool IsNewer(uint16_t a, uint16_t b) { return static_cast<int16_t>(a - b) > 0; }

}  // namespace

const char* ServeStateName(ServeState state) {
  switch (state) {
    case ServeState::kFree:
      return "free";
    case ServeState::kTaking:
      return "waits for the local Send";
    case ServeState::kReady:
      return "waits for room on the wire";
    case ServeState::kNeedsDestination:
      return "waits for a destination";
    case ServeState::kSent:
      return "waits to be accepted";
    case ServeState::kCancelling:
      return "waits for a cancelled take";
  }
  return "unknown";
}

ServeCounters& ServeCounters::operator+=(const ServeCounters& other) {
  requests += other.requests;
  eager += other.eager;
  direct += other.direct;
  destinations_asked += other.destinations_asked;
  failed += other.failed;
  cancelled += other.cancelled;
  resent += other.resent;
  bytes += other.bytes;
  return *this;
}

ServeChannel::ServeChannel(QueueHub* hub, TensorSource* source, ServeChannelOptions options,
                           const Hello& consumer, uint64_t session)
    : hub_(hub),
      source_(source),
      options_(std::move(options)),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      session_(session) {}

ServeChannel::~ServeChannel() { TRYST_CHECK(Drained()) << Explain(); }

// ---- Connection ----

void ServeChannel::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the worker is stopping"));
  if (hello.epoch <= epoch_ || (next_hello_ && hello.epoch <= next_hello_->first.epoch)) {
    return std::move(done)(absl::AbortedError(
        absl::StrCat("epoch ", hello.epoch, " is over: ", epoch_, " was opened since")));
  }
  if (next_hello_) {
    std::move(next_hello_->second)(absl::AbortedError("a newer hello came"));
    next_hello_.reset();
  }
  if (link_ == nullptr) return AcceptHello(hello, std::move(done));
  next_hello_.emplace(hello, std::move(done));
  link_->Break(absl::UnavailableError(
      absl::StrCat(consumer_, " opened epoch ", hello.epoch, " in its place")));
}

void ServeChannel::AcceptHello(const Hello& hello, HelloDone done) {
  auto parameters = wire::DecodeParameters(hello.parameters);
  if (!parameters.ok()) return std::move(done)(parameters.status());
  const bool fits = hello.queue_pairs.size() >= 1 && hello.queue_pairs.size() <= kMaxLanes &&
                    parameters->slots <= options_.link.slots &&
                    parameters->message_bytes <= options_.link.message_bytes &&
                    (ops_.empty() || ops_.size() == parameters->slots);
  if (!fits) {
    return std::move(done)(absl::InvalidArgumentError(
        absl::StrCat("a channel of ", parameters->slots, " slots, messages of ",
                     parameters->message_bytes, " bytes and ", hello.queue_pairs.size(),
                     " queue pairs is asked for; here at most ", options_.link.slots, ", ",
                     options_.link.message_bytes, " and ", kMaxLanes, " are granted")));
  }
  LinkOptions link_options = options_.link;
  link_options.slots = parameters->slots;
  link_options.message_bytes = parameters->message_bytes;
  link_options.ring_slots = std::min(parameters->ring_slots, options_.link.ring_slots);
  link_options.queue_pairs = static_cast<uint32_t>(hello.queue_pairs.size());
  epoch_ = hello.epoch;
  auto link = MessageLink::Create(hub_, link_options, static_cast<uint32_t>(epoch_), this);
  if (!link.ok()) return std::move(done)(link.status());
  const absl::Status connected = (*link)->Connect(hello);
  if (!connected.ok()) return std::move(done)(connected);
  link_ = *std::move(link);
  digests_ = options_.link.digests || parameters->digests;
  keys_.clear();
  if (ops_.empty()) {
    ops_.resize(parameters->slots);
    for (size_t slot = 0; slot < ops_.size(); ++slot) {
      ops_[slot].Bind(this, hub_->poller(), static_cast<uint16_t>(slot));
    }
  }
  hub_->poller()->CancelTimer(this);
  abandoned_ = false;

  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.self_incarnation;
  answer.epoch = epoch_;
  answer.path = options_.path;
  link_->DescribeTo(&answer, session_);
  std::move(done)(std::move(answer));
}

void ServeChannel::OnBroken(const absl::Status& why) {
  const bool idle = std::all_of(ops_.begin(), ops_.end(), [](const ServeOp& op) {
    return op.state == ServeState::kFree || op.state == ServeState::kSent;
  });
  // Nobody waited for anything: so a consumer that stops looks.
  if (!closed_ && !next_hello_ && !idle) {
    TRYST_LOG(Warning) << options_.self << " lost the " << options_.path << " connection of "
                       << consumer_ << " (epoch " << epoch_ << "): " << why.message();
  }
  gone_line_.clear();
  gone_after_.clear();
  pong_due_ = false;
  for (ServeOp* op : ready_line_) op->in_ready_line = false;
  ready_line_.clear();
}

void ServeChannel::OnDrained() {
  link_.reset();
  lingering_.clear();  // Nobody reads them any more.
  gone_after_.clear();
  for (ServeOp& op : ops_) op.source.tickets.fill(0);
  if (next_hello_) {
    std::pair<Hello, HelloDone> next = *std::move(next_hello_);
    next_hello_.reset();
    return AcceptHello(next.first, std::move(next.second));
  }
  if (!closed_) {
    hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + options_.retain_ms * 1'000'000);
  }
}

void ServeChannel::OnTimer() { abandoned_ = true; }

void ServeChannel::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  hub_->poller()->CancelTimer(this);
  if (next_hello_) {
    std::move(next_hello_->second)(why);
    next_hello_.reset();
  }
  if (link_ != nullptr) link_->Break(why);
  for (ServeOp& op : ops_) {
    op.next_request.reset();
    if (op.state == ServeState::kTaking) {
      CancelTake(&op, false);
    } else if (op.state != ServeState::kFree && op.state != ServeState::kCancelling) {
      Release(&op);
    }
  }
}

bool ServeChannel::Drained() const {
  if (!closed_ || link_ != nullptr) return false;
  return std::all_of(ops_.begin(), ops_.end(),
                     [](const ServeOp& op) { return op.state == ServeState::kFree; });
}

// ---- What the consumer says ----

absl::Status ServeChannel::OnRecord(const wire::Record& record) {
  switch (record.type) {
    case wire::RecordType::kKey:
      return OnKey(record);
    case wire::RecordType::kRequest:
      return OnRequest(record);
    case wire::RecordType::kCancel:
      return OnCancel(record);
    case wire::RecordType::kReplayed:
      OnReplayed();
      return absl::OkStatus();
    case wire::RecordType::kPing:
      pong_due_ = true;
      return absl::OkStatus();
    default:
      return absl::DataLossError("the consumer sent a producer's record");
  }
}

absl::Status ServeChannel::OnTensorPart(size_t, uint16_t, uint16_t) {
  return absl::DataLossError("the consumer sent a tensor immediate");
}

absl::Status ServeChannel::OnKey(const wire::Record& record) {
  if (record.number >= kMaxKeys || record.body.size() > wire::kMaxKeyBytes) {
    return absl::DataLossError("key id out of range, or key too long");
  }
  auto key = TensorKey::Parse(record.body);
  if (!key.ok()) return absl::DataLossError(key.status().message());
  // The consumer keeps its ids over epochs and tells those that it uses, in any order.
  if (record.number >= keys_.size()) keys_.resize(record.number + 1);
  keys_[record.number] = *std::move(key);
  return absl::OkStatus();
}

absl::Status ServeChannel::OnRequest(const wire::Record& record) {
  auto body = wire::DecodeRequest(record);
  if (!body.ok()) return body.status();
  if (record.slot >= ops_.size()) return absl::DataLossError("request on a slot out of range");
  if (record.number >= keys_.size() || keys_[record.number].empty()) {
    return absl::DataLossError("request for an unknown key id");
  }
  ServeRequest request;
  request.generation = record.generation;
  request.flags = record.flags;
  request.key = keys_[record.number];
  request.body = *body;
  ServeOp* op = &ops_[record.slot];
  const bool same = op->request.generation == request.generation;
  const bool newer = IsNewer(request.generation, op->request.generation);
  const bool again = (record.flags & (wire::kReplay | wire::kRetry)) != 0;
  // What was asked for in an earlier epoch, and not again in this one before the slot is used
  // anew, the consumer has given up: the word of that was lost with the earlier connection.
  const bool given_up = newer && op->replayed_epoch != static_cast<uint32_t>(epoch_);
  op->replayed_epoch = static_cast<uint32_t>(epoch_);
  switch (op->state) {
    case ServeState::kFree:
      StartTake(op, std::move(request));
      return absl::OkStatus();
    case ServeState::kTaking:
    case ServeState::kReady:
      if (given_up && op->state == ServeState::kTaking) {
        CancelTake(op, false);
        if (op->state == ServeState::kFree) {
          StartTake(op, std::move(request));
        } else {
          op->next_request = std::move(request);
        }
        return absl::OkStatus();
      }
      if (given_up) {
        Release(op);
        StartTake(op, std::move(request));
        return absl::OkStatus();
      }
      if (!same || !again) break;
      op->request = std::move(request);  // Its destination may be another one now.
      if (op->state == ServeState::kReady) MakeReady(op);
      return absl::OkStatus();
    case ServeState::kNeedsDestination:
      if (given_up) {
        Release(op);
        StartTake(op, std::move(request));
        return absl::OkStatus();
      }
      if (!same) break;
      op->request = std::move(request);
      MakeReady(op);
      return absl::OkStatus();
    case ServeState::kSent:
      if (same && again) {
        ++counters_.resent;
        op->request = std::move(request);
        MakeReady(op);
        return absl::OkStatus();
      }
      if (!newer) break;
      Release(op);  // That the slot is used again says that it was accepted.
      StartTake(op, std::move(request));
      return absl::OkStatus();
    case ServeState::kCancelling:
      if (!newer) break;
      if (op->next_request && !given_up && !again) break;
      op->next_request = std::move(request);
      return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("request of generation ", record.generation, " on slot ",
                                          record.slot, ", which ", ServeStateName(op->state),
                                          " with generation ", op->request.generation));
}

absl::Status ServeChannel::OnCancel(const wire::Record& record) {
  if (record.slot >= ops_.size()) return absl::DataLossError("cancel of a slot out of range");
  ServeOp* op = &ops_[record.slot];
  ++counters_.cancelled;
  if (op->state == ServeState::kTaking && op->request.generation == record.generation) {
    CancelTake(op, true);
    return absl::OkStatus();
  }
  if (op->state == ServeState::kCancelling && op->request.generation == record.generation) {
    op->answer_gone = true;
    return absl::OkStatus();
  }
  const bool ours = op->state != ServeState::kFree && op->request.generation == record.generation;
  // Every cancel is answered, also one that came too late. But not before the NIC is done
  // with writes that no LANDED tells of: on another queue pair they could come after it.
  if (ours && op->state == ServeState::kReady && link_->queue_pairs() > 1 &&
      op->source.region != nullptr) {
    gone_after_.push_back({record.slot, record.generation, op->source.tickets});
  } else {
    gone_line_.emplace_back(record.slot, record.generation);
  }
  if (ours) Release(op);
  OnWritesDone();
  return absl::OkStatus();
}

// The consumer has asked again for all that it still wants: the rest it has, or gave up.
void ServeChannel::OnReplayed() {
  for (ServeOp& op : ops_) {
    if (op.replayed_epoch == static_cast<uint32_t>(epoch_)) continue;
    if (op.state == ServeState::kTaking) {
      CancelTake(&op, false);
    } else if (op.state != ServeState::kFree && op.state != ServeState::kCancelling) {
      Release(&op);
    }
  }
}

void ServeChannel::OnAccepted() {
  for (ServeOp& op : ops_) {
    if (op.state == ServeState::kSent && IsNewer(link_->accepted(op.slot), op.request.generation)) {
      Release(&op);
    }
  }
}

bool ServeChannel::AllDone(const LaneTickets& tickets) const {
  for (size_t lane = 0; lane < link_->queue_pairs(); ++lane) {
    if (!link_->WriteDone(lane, tickets[lane])) return false;
  }
  return true;
}

void ServeChannel::OnWritesDone() {
  while (!lingering_.empty() && AllDone(lingering_.front().tickets)) lingering_.pop_front();
  while (!gone_after_.empty() && AllDone(gone_after_.front().tickets)) {
    gone_line_.emplace_back(gone_after_.front().slot, gone_after_.front().generation);
    gone_after_.pop_front();
    link_->FlushSoon();
  }
}

// ---- Taking ----

void ServeChannel::StartTake(ServeOp* op, ServeRequest request) {
  ++counters_.requests;
  op->request = std::move(request);
  op->state = ServeState::kTaking;
  op->has_digest = false;
  if (op->request.key.dst().worker != consumer_) {
    // The hello has authenticated the consumer: it gets what is meant for it.
    return op->Taken(
        absl::PermissionDeniedError(absl::StrCat("the tensor is for ", op->request.key.dst().worker,
                                                 ", not for ", consumer_)),
        Tensor(), false);
  }
  op->cancellation.emplace();
  Args args;
  args.cancellation = &*op->cancellation;
  source_->Take(op->request.body.step, op->request.key, 0, args,
                [op](absl::Status status, const Args&, const Args&, Tensor tensor, bool is_dead) {
                  op->Taken(std::move(status), std::move(tensor), is_dead);
                });
}

void ServeChannel::CancelTake(ServeOp* op, bool answer_gone) {
  op->state = ServeState::kCancelling;
  op->answer_gone = answer_gone;
  // The take mostly ends in here. Then the slot is free at once, so that a request behind it
  // keeps its turn.
  op->cancel_runs = true;
  op->cancellation->StartCancel();
  op->cancel_runs = false;
  if (op->taken_in_cancel) {
    op->taken_in_cancel = false;
    OnTaken(op);
  }
}

void ServeChannel::OnTaken(ServeOp* op) {
  op->cancellation.reset();
  if (op->state == ServeState::kTaking) {
    op->state = ServeState::kReady;
    if (op->status.ok() && !op->is_dead && op->source.tensor.dtype() == DType::kString) {
      op->source.encoded = EncodeStrings(op->source.tensor);
    }
    return MakeReady(op);
  }
  const uint16_t generation = op->request.generation;
  absl::optional<ServeRequest> next = std::move(op->next_request);
  op->next_request.reset();
  Release(op);
  if (op->answer_gone && link_ != nullptr && !link_->broken()) {
    gone_line_.emplace_back(op->slot, generation);
    link_->FlushSoon();
  }
  if (next && !closed_) StartTake(op, *std::move(next));
}

void ServeChannel::MakeReady(ServeOp* op) {
  op->state = ServeState::kReady;
  op->source.written.fill(0);
  // Not before the consumer has asked for it in this epoch: until then it may have given it
  // up, and an answer that crosses its replay would be asked for, and sent, twice.
  if (link_ == nullptr || link_->broken() || op->replayed_epoch != static_cast<uint32_t>(epoch_)) {
    return;
  }
  if (!op->in_ready_line) {
    op->in_ready_line = true;
    ready_line_.push_back(op);
  }
  link_->FlushSoon();
}

// The consumer needs it no more. The NIC may: a write is acknowledged to the consumer's
// thread before it is to us.
void ServeChannel::Release(ServeOp* op) {
  if (op->in_ready_line) {
    ready_line_.erase(std::find(ready_line_.begin(), ready_line_.end(), op));
    op->in_ready_line = false;
  }
  if (op->source.region != nullptr && link_ != nullptr) {
    lingering_.push_back(std::move(op->source));
    OnWritesDone();
  }
  op->source = ServeSource();
  op->status = absl::OkStatus();
  op->state = ServeState::kFree;
}

// ---- Sending ----

void ServeChannel::OnFlush() {
  while (!gone_line_.empty()) {
    wire::Record record;
    record.type = wire::RecordType::kGone;
    record.slot = gone_line_.back().first;
    record.generation = gone_line_.back().second;
    if (!link_->Send(record)) return;
    gone_line_.pop_back();
  }
  if (pong_due_) {
    wire::Record record;
    record.type = wire::RecordType::kPong;
    if (!link_->Send(record)) return;
    pong_due_ = false;
  }
  while (!ready_line_.empty()) {
    ServeOp* op = ready_line_.front();
    if (!SendOutcome(op)) return;
    ready_line_.pop_front();
    op->in_ready_line = false;
  }
}

wire::Record ServeChannel::Word(const ServeOp& op, wire::RecordType type) const {
  wire::Record record;
  record.type = type;
  record.slot = op.slot;
  record.generation = op.request.generation;
  return record;
}

// Returns false when there is no room now.
bool ServeChannel::SendOutcome(ServeOp* op) {
  if (!op->status.ok()) return SendFailed(op);
  wire::TensorMeta meta;
  const void* payload = nullptr;
  const Tensor& tensor = op->source.tensor;
  if (!op->is_dead) {
    if (!tensor.valid() || !tensor.space().host_readable()) {
      op->status = absl::UnimplementedError("this channel does not read device memory");
      return SendFailed(op);
    }
    meta.dtype = static_cast<uint8_t>(tensor.dtype());
    meta.rank = static_cast<uint8_t>(tensor.shape().rank());
    for (int i = 0; i < tensor.shape().rank(); ++i) meta.dims[i] = tensor.shape().dim(i);
    const bool is_string = tensor.dtype() == DType::kString;
    meta.bytes = is_string ? op->source.encoded.size() : tensor.bytes();
    payload = is_string ? op->source.encoded.data() : tensor.data();
  }
  const uint64_t inside =
      std::min(options_.eager_bytes, wire::EagerBytes(link_->options().message_bytes));
  if (meta.bytes <= inside) return SendEager(op, meta, payload);
  const ServeRequest& request = op->request;
  if ((request.flags & wire::kHasDestination) != 0 &&
      request.body.destination_bytes >= meta.bytes) {
    return SendWrites(op, meta, payload);
  }
  return SendNeedDestination(op, meta);
}

bool ServeChannel::SendFailed(ServeOp* op) {
  wire::Record record = Word(*op, wire::RecordType::kFailed);
  record.number = static_cast<uint32_t>(op->status.code());
  record.body = op->status.message().substr(0, wire::kMaxErrorBytes);
  if (IsDerived(op->status)) record.flags |= wire::kDerived;
  if (!link_->Send(record)) return false;
  ++counters_.failed;
  op->state = ServeState::kSent;
  return true;
}

bool ServeChannel::SendEager(ServeOp* op, const wire::TensorMeta& meta, const void* payload) {
  wire::MessageWriter* writer = link_->message();
  if (writer == nullptr) return false;
  wire::Record record = Word(*op, wire::RecordType::kTensor);
  if (op->is_dead) record.flags |= wire::kIsDead;
  uint8_t* into = writer->AddTensor(record, meta);
  if (into == nullptr) {
    writer = link_->NextMessage();
    into = writer != nullptr ? writer->AddTensor(record, meta) : nullptr;
    if (into == nullptr) return false;
  }
  // The message's checksum covers it: no digest of its own.
  if (meta.bytes > 0) memcpy(into, payload, meta.bytes);
  ++counters_.eager;
  counters_.bytes += meta.bytes;
  op->state = ServeState::kSent;
  return true;
}

bool ServeChannel::SendNeedDestination(ServeOp* op, const wire::TensorMeta& meta) {
  const wire::Record record = Word(*op, wire::RecordType::kNeedDestination);
  wire::MessageWriter* writer = link_->message();
  if (writer == nullptr) return false;
  if (!writer->AddMeta(record, meta)) {
    writer = link_->NextMessage();
    if (writer == nullptr || !writer->AddMeta(record, meta)) return false;
  }
  ++counters_.destinations_asked;
  op->state = ServeState::kNeedsDestination;
  return true;
}

// Writes what there is room for; true when all of it and the word that follows are out.
bool ServeChannel::SendWrites(ServeOp* op, wire::TensorMeta meta, const void* payload) {
  const absl::Status prepared = PrepareSource(op, payload, meta.bytes);
  if (!prepared.ok()) {
    op->status = prepared;
    return SendFailed(op);
  }
  const size_t lanes = meta.bytes >= options_.stripe_bytes ? link_->queue_pairs() : 1;
  const uint64_t part_bytes = (meta.bytes + lanes - 1) / lanes;
  const size_t parts = static_cast<size_t>((meta.bytes + part_bytes - 1) / part_bytes);
  const bool bare = IsBare(*op, meta);
  bool all = true;
  for (size_t lane = 0; lane < parts; ++lane) {
    const uint64_t begin = lane * part_bytes;
    all &= WritePart(op, lane, begin, std::min(begin + part_bytes, meta.bytes), bare || parts > 1);
  }
  if (!all) return false;
  if (!bare) {
    wire::Record record = Word(*op, wire::RecordType::kLanded);
    meta.stripes = parts > 1 ? static_cast<uint16_t>(parts) : 0;
    meta.digest = op->digest;
    if (digests_) record.flags |= wire::kHasDigest;
    wire::MessageWriter* writer = link_->message();
    if (writer == nullptr) return false;
    if (!writer->AddMeta(record, meta)) {
      writer = link_->NextMessage();
      if (writer == nullptr || !writer->AddMeta(record, meta)) return false;
    }
  }
  ++counters_.direct;
  counters_.bytes += meta.bytes;
  op->state = ServeState::kSent;
  return true;
}

absl::Status ServeChannel::PrepareSource(ServeOp* op, const void* payload, uint64_t bytes) {
  if (op->source.region == nullptr) {
    auto region = hub_->nic()->RegisterRegion(const_cast<void*>(payload), bytes, kLocalOnly);
    if (!region.ok()) return region.status();
    op->source.region = *std::move(region);
  }
  if (digests_ && !op->has_digest) {
    op->digest = Crc32c(0, payload, bytes);
    op->has_digest = true;
  }
  return absl::OkStatus();
}

// The immediate alone says it all when the consumer knows the shape.
bool ServeChannel::IsBare(const ServeOp& op, const wire::TensorMeta& meta) const {
  const wire::RequestBody& body = op.request.body;
  return !digests_ && link_->queue_pairs() == 1 && (op.request.flags & wire::kHasShape) != 0 &&
         body.dtype == meta.dtype && body.rank == meta.rank &&
         body.destination_bytes == meta.bytes &&
         std::equal(meta.dims, meta.dims + meta.rank, body.dims);
}

// [begin, end) of the payload on one queue pair, from where it stopped last time.
bool ServeChannel::WritePart(ServeOp* op, size_t lane, uint64_t begin, uint64_t end,
                             bool immediate) {
  const uint64_t work_bytes =
      std::min(hub_->nic()->limits().max_message_bytes, options_.write_bytes);
  ServeSource& source = op->source;
  while (begin + source.written[lane] < end) {
    if (link_->WriteRoom(lane) == 0) return false;
    const uint64_t at = begin + source.written[lane];
    const uint64_t bytes = std::min(work_bytes, end - at);
    source.tickets[lane] =
        link_->Write(lane, Entry{source.region->address() + at, bytes, source.region->local_key()},
                     op->request.body.destination_address + at, op->request.body.destination_key,
                     immediate && at + bytes == end, op->slot, op->request.generation);
    source.written[lane] += bytes;
  }
  return true;
}

std::string ServeChannel::Explain() const {
  size_t by_state[kServeStateCount] = {};
  for (const ServeOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string waiting;
  for (size_t i = 1; i < kServeStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&waiting, waiting.empty() ? ": " : "; ", by_state[i], " ",
                    ServeStateName(static_cast<ServeState>(i)));
  }
  return absl::StrCat(
      consumer_, " fetches from us over ", options_.path, ": ",
      link_ != nullptr ? (link_->broken() ? "draining" : "connected") : "not connected", ", epoch ",
      epoch_, waiting);
}

}  // namespace tryst
