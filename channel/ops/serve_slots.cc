#include "channel/ops/serve_slots.h"

#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/string_codec.h"

namespace tryst {
namespace {

constexpr uint64_t ServeCounters::*kServeCounters[] = {
    &ServeCounters::requests,  &ServeCounters::failed,
    &ServeCounters::cancelled, &ServeCounters::given_back,
    &ServeCounters::resent,    &ServeCounters::parked,
    &ServeCounters::bytes,     &ServeCounters::in_message,
    &ServeCounters::direct,    &ServeCounters::destinations_asked,
    &ServeCounters::standing,  &ServeCounters::by_reference,
    &ServeCounters::staged,    &ServeCounters::pulled,
    &ServeCounters::in_parts,  &ServeCounters::messages,
};
static_assert(sizeof(ServeCounters) == sizeof(uint64_t) * std::size(kServeCounters),
              "one is missing");

absl::Status Broke(const char* how) {
  return absl::DataLossError(absl::StrCat("the consumer broke the protocol: ", how));
}

}  // namespace

ServeCounters& ServeCounters::operator+=(const ServeCounters& other) {
  for (uint64_t ServeCounters::*field : kServeCounters) this->*field += other.*field;
  return *this;
}

Tensor ServeWire::MakeRunTensor(uint64_t bytes) {
  return *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
}

ServePayload StringsOf(ServeOp* op) {
  if (op->encoded.empty()) op->encoded = EncodeStrings(op->tensor);
  return {op->encoded.data(), op->encoded.size()};
}

ServeSlots::ServeSlots(Poller* poller, TensorSource* source, ServeSlotsOptions options,
                       ServeCounters* counters)
    : poller_(poller),
      source_(source),
      options_(std::move(options)),
      counters_(counters),
      keys_(options_.consumer, options_.max_keys, options_.max_key_bytes, options_.max_keys_bytes),
      takes_(poller, source, this, options_.consumer, options_.max_parked, &counters->given_back) {}

void ServeSlots::UseWire(ServeWire* wire, const std::string& path) {
  wire_ = wire;
  path_ = path;
  if (options_.trace == nullptr) return;
  track_ = options_.trace->Track(TraceRole::kServe, options_.consumer, path_);
}

void ServeSlots::Make(size_t size) {
  if (made()) return;
  ops_.Make(size);
  for (size_t slot = 0; slot < size; ++slot) ops_[slot].slot = static_cast<uint16_t>(slot);
}

void ServeSlots::Connect(uint64_t epoch) {
  if (options_.watch != nullptr) options_.watch->OnServeEpoch(options_.watched);
  connected_ = true;
  epoch_ = epoch;
  takes_.SetEpoch(epoch);
  keys_.clear();
}

void ServeSlots::Disconnect() {
  if (!connected_) return;
  connected_ = false;
  takes_.SetEpoch(0);
  words_.clear();
  for (ServeOp& op : ops_) {
    if (op.state == ServeState::kStaging || op.state == ServeState::kInParts) {
      Unlinked(&op);
    } else if (op.state != ServeState::kTaking && op.state != ServeState::kFree) {
      op.span.Enter(WaitsFor::kConsumer, poller_->now_ns());
    }
  }
}

// ---- The table ----

void ServeSlots::HasNoRow(const ServeOp& op, ServeEvent event) {
  TRYST_LOG(Fatal) << "this is a bug of Tryst: slot " << op.slot << ", which "
                   << ServeStateName(op.state) << ", got the event " << ServeEventName(event);
  abort();
}

void ServeSlots::End(ServeOp* op, ServeEvent event) { Finish(op, Do(*op, event)); }

// Frees the slot before a tensor goes back: whoever gets it may call us.
void ServeSlots::Finish(ServeOp* op, const ServeRow& row) {
  if (op->state == ServeState::kTaking) {
    Former former;
    TakeFormer(op, /*goes_back=*/false, &former);
    Enter(op, row);
    EndTrace(former);
    return takes_.Drop(op);
  }
  const bool goes_back = row.action == ServeAction::kGiveBack && op->status.ok();
  int64_t step = 0;
  TensorKey key;
  Received taken;
  if (goes_back) {
    TRYST_REACHED("sim: a tensor goes back to its rendezvous");
    step = op->step;
    key = op->key;
    taken = *op;
  }
  Former former;  // Destroyed late, because the deleter of a caller's bytes may call us.
  TakeFormer(op, goes_back, &former);
  Enter(op, row);
  EndTrace(former);
  if (goes_back) {
    former.storage = StorageRef();  // Whoever gets it may want to be the only one.
    GiveBack(step, key, std::move(taken), former.run);
  }
  if (former.run != nullptr) Free(former.run);
}

void ServeSlots::GiveBack(int64_t step, const TensorKey& key, Received taken, ServeRun* run) {
  if (run == nullptr) {
    ++counters_->given_back;
    return source_->GiveBack(step, key, std::move(taken));
  }
  TRYST_REACHED("sim: the tensors of a run go back to their rendezvous");
  for (size_t i = 0; i < run->used; ++i) GiveBack(step, &run->items[i]);
}

void ServeSlots::GiveBack(int64_t step, ServeRun::Item* item) {
  ++counters_->given_back;
  source_->GiveBack(step, item->key, std::move(item->taken));
}

ServeRun* ServeSlots::NewRun(size_t keys) {
  if (free_runs_.empty()) {
    runs_.push_back(std::make_unique<ServeRun>());
    free_runs_.push_back(runs_.back().get());
  }
  ServeRun* const run = free_runs_.back();
  free_runs_.pop_back();
  if (run->items.size() < keys) run->items.resize(keys);
  return run;
}

void ServeSlots::Free(ServeRun* run) {
  for (; run->used > 0; --run->used) run->items[run->used - 1].Clear();
  free_runs_.push_back(run);
}

bool ServeSlots::FailTaken(ServeOp* op, const absl::Status& why) {
  Received taken = *op;
  op->tensor = Tensor();
  op->send_context = nullptr;
  op->status = why;
  ServeRun* const run = std::exchange(op->run, nullptr);
  GiveBack(op->step, op->key, std::move(taken), run);
  if (run != nullptr) Free(run);
  return op->state == ServeState::kReady;
}

void ServeSlots::TakeFormer(ServeOp* op, bool goes_back, Former* former) {
  former->was = true;
  if (track_ != nullptr) {
    const bool answered = Answered(*op);
    former->code = answered && !goes_back ? absl::StatusCode::kOk : absl::StatusCode::kCancelled;
    if (!op->status.ok()) former->code = op->status.code();
    if (answered) former->bytes = op->tensor.bytes();
    former->span = op->span;
    former->span.id = IdOf(*op);
    former->step = op->step;
    former->key = std::move(op->key);
  }
  wire_->Forget(op);
  former->storage = op->tensor.TakeStorage();
  former->run = std::exchange(op->run, nullptr);
  if (!op->encoded.empty()) op->encoded.clear();
  if (!op->status.ok()) op->status = absl::OkStatus();
  if (op->send_context != nullptr) op->send_context = nullptr;
}

void ServeSlots::TraceFormer(const Former& former) {
  options_.trace->End(former.span, track_, former.step, former.key, former.bytes, former.code,
                      poller_->now_ns());
}

// ---- The consumer's words ----

absl::Status ServeSlots::OnSlot(uint16_t slot, const char* does, ServeOp** op) {
  if (slot >= ops_.size()) return Broke(does);
  *op = &ops_[slot];
  return absl::OkStatus();
}

ServeEvent ServeSlots::EventOfOld(bool is_same, const ServeRequest& request) {
  if (is_same) return request.again ? ServeEvent::kRepeat : ServeEvent::kWithRoom;
  TRYST_REACHED("rare: a request of a generation that is over");
  return ServeEvent::kStale;
}

absl::Status ServeSlots::OnRequest(const ServeRequest& request) {
  if (request.slot >= ops_.size()) return Broke("it sent a request on a slot that does not exist");
  ToldKey* known = keys_.Find(request.key);
  if (known == nullptr) {
    TRYST_REACHED("rare: a request for a key that was not told");
    return Broke("it asks for a key that it never named");
  }
  ServeOp* op = &ops_[request.slot];
  used_ = std::max<size_t>(used_, request.slot + size_t{1});
  const ServeEvent event = EventOf(*op, request);
  const ServeRow* row = Hear(*op, event);
  if (row == nullptr) return OutOfPlace(op->state, event, op->slot);
  op->asked_epoch = epoch_;
  op->has_destination = request.has_destination;
  Former former;
  switch (row->action) {
    case ServeAction::kRenew:
    case ServeAction::kAnswer:
      if (op->step != request.step || op->key != known->key) {
        TRYST_REACHED("rare: a request is repeated with another key or step");
        return Broke("it repeats a request with another key or step");
      }
      if (row->action == ServeAction::kRenew) {
        if (request.may_park) Park(op, request.ticket);
        return absl::OkStatus();
      }
      if (op->state == ServeState::kSent) {
        TRYST_REACHED("sim: a tensor is sent again");
        ++counters_->resent;
      }
      Enter(op, *row);
      op->span.Enter(WaitsFor::kWireRoom, poller_->now_ns());
      wire_->Answer(op);
      return absl::OkStatus();
    case ServeAction::kAcceptFirst:
      // Released, and noted in the trace, after the answer.
      TakeFormer(op, /*goes_back=*/false, &former);
      break;
    case ServeAction::kGiveUpFirst:
      TRYST_REACHED("rare: a slot is used anew whose request was given up before a break");
      Finish(op, *FindServeRow(op->state, ServeEvent::kUnnamed));
      if (!connected_) return absl::OkStatus();  // Whoever got the tensor has ended the channel.
      break;
    default:
      break;
  }
  op->generation = request.generation;
  op->step = request.step;
  Enter(op, *row);
  StartTake(op, request, known);
  if (former.was) {
    EndTrace(former);
    if (former.storage) wire_->Retire(&former.storage);
    if (former.run != nullptr) Free(former.run);
  }
  return absl::OkStatus();
}

absl::Status ServeSlots::OnCancel(uint16_t slot, uint32_t generation) {
  ServeOp* op = nullptr;
  const absl::Status found = OnSlot(slot, "it cancels a slot that does not exist", &op);
  if (!found.ok()) return found;
  ++counters_->cancelled;
  const bool ours = op->state != ServeState::kFree && op->generation == generation;
  const ServeRow& row = Do(*op, ours ? ServeEvent::kCancel : ServeEvent::kLateCancel);
  // The tensor is given back before GONE leaves, so that the next request finds it.
  if (!ours || !wire_->SaysGoneLater(*op)) words_.Gone(slot, generation);
  wire_->FlushSoon();
  if (ours) {
    Finish(op, row);
  } else {
    TRYST_REACHED("sim: a cancel of what is over");
  }
  return absl::OkStatus();
}

absl::Status ServeSlots::OnPark(uint16_t slot, uint32_t generation, uint64_t ticket) {
  ServeOp* op = nullptr;
  const absl::Status found = OnSlot(slot, "it lets go of a slot that does not exist", &op);
  if (!found.ok() || op->generation != generation) return found;
  if (Do(*op, ServeEvent::kPark).action == ServeAction::kPark) Park(op, ticket);
  return absl::OkStatus();
}

// Where its outcome is on its way, that is the answer.
void ServeSlots::Park(ServeOp* op, uint64_t ticket) {
  if (op->state != ServeState::kTaking || !takes_.Park(op, ticket, op->span.since_ns())) return;
  Enter(op, Do(*op, ServeEvent::kParked));
  ++counters_->parked;
  words_.Parked(op->slot, op->generation);
  wire_->FlushSoon();
}

absl::Status ServeSlots::OnWaits(uint64_t ticket, int64_t step, uint32_t key) {
  const ToldKey* known = keys_.Find(key);
  if (known == nullptr) return Broke("it waits for a key that it never named");
  if (ticket == 0) return Broke("it waits under no ticket");
  if (takes_.Waits(ticket, step, known->key)) return absl::OkStatus();
  return Broke("more of its fetches wait without a slot than it may have");
}

void ServeSlots::OnUnwanted(absl::Span<const uint64_t> tickets) {
  counters_->cancelled += takes_.DropTickets(tickets);
}

absl::Status ServeSlots::OnRead(uint16_t slot, uint32_t generation, bool failed) {
  ServeOp* op = nullptr;
  const absl::Status found =
      OnSlot(slot, "it says that it has read the tensor of a slot that does not exist", &op);
  if (!found.ok()) return found;
  const ServeEvent event = failed ? ServeEvent::kNotRead : ServeEvent::kRead;
  const ServeRow* row = op->generation == generation ? Hear(*op, event) : nullptr;
  if (row == nullptr) return OutOfPlace(op->state, event, slot);
  if (failed) {
    Enter(op, *row);
    wire_->Answer(op);
  } else {
    ++counters_->pulled;
    Finish(op, *row);
  }
  return absl::OkStatus();
}

void ServeSlots::OnReplayed(ServeEvent unnamed) {
  EndThose(unnamed, [this](const ServeOp& op) {
    if (op.asked_epoch == epoch_) return false;
    TRYST_REACHED("sim: what the consumer does not ask for again is given up");
    return true;
  });
  takes_.DropUnspoken();
}

// ---- Taking ----

void ServeSlots::StartTake(ServeOp* op, const ServeRequest& request, ToldKey* known) {
  ++counters_->requests;
  op->span.Begin(WaitsFor::kLocalSend, poller_->now_ns());
  if (known->run != nullptr) return TakeRun(op, *known);
  const bool looks = request.ticket == 0;
  const bool here = looks && takes_.Here(op->step, known, op);
  op->key = known->key;
  if (here) return OnOutcome(op);
  if (!takes_.Unpark(request.ticket, op->step, op->key, op)) {
    takes_.Start(op->step, op->key, op, looks);
  }
  if (request.may_park) Park(op, request.ticket);
}

// Answers with what is here. It waits for nothing: what is not here the consumer asks for alone.
void ServeSlots::TakeRun(ServeOp* op, const ToldKey& known) {
  op->key = known.key;
  const std::vector<uint32_t>& numbers = *known.run;
  op->run = NewRun(numbers.size());
  const uint64_t most = std::min(kRunBytes, wire_->most_run_bytes());
  uint64_t bytes = kRunItemBytes * numbers.size();
  bool here[kMostInRun] = {};
  std::vector<ServeRun::Item> misfits;
  for (size_t i = 0; bytes <= most && i < numbers.size(); ++i) {
    here[i] = TakeOfRun(op, keys_.Find(numbers[i]), most - bytes, &misfits);
    if (here[i]) bytes += op->run->items[op->run->used - 1].bytes - kRunItemBytes;
  }
  Received answer;
  // Without a byte: nothing is here.
  const uint64_t answered = op->run->used == 0 ? 0 : bytes;
  answer.tensor = wire_->MakeRunTensor(answered);
  uint8_t* to = answered == 0 ? nullptr : static_cast<uint8_t*>(answer.tensor.mutable_data());
  auto item = op->run->items.begin();
  for (size_t i = 0; answered > 0 && i < numbers.size(); ++i) {
    if (!here[i]) {
      to = PutRunItem(RunItemKind::kNotHere, to);
    } else if (item->taken.is_dead) {
      to = PutRunItem(RunItemKind::kDead, to);
    } else {
      to = PutRunTensor(item->taken.tensor, to);
    }
    if (here[i]) ++item;
  }
  const int64_t step = op->step;
  KeepOutcome(op, std::move(answer));
  // Last, because whoever gets one of them may call us.
  for (ServeRun::Item& misfit : misfits) GiveBack(step, &misfit);
}

// False: it is not here, or is none for a run.
bool ServeSlots::TakeOfRun(ServeOp* op, ToldKey* known, uint64_t room,
                           std::vector<ServeRun::Item>* misfits) {
  if (known->run != nullptr) return false;
  ServeRun::Item& item = op->run->items[op->run->used];
  if (!takes_.Here(op->step, known, &item.taken)) return false;
  item.key = known->key;
  item.bytes = item.taken.is_dead ? kRunItemBytes : RunItemBytes(item.taken.tensor);
  if (item.bytes > 0 && item.bytes <= room + kRunItemBytes) {
    ++op->run->used;
    return true;
  }
  TRYST_REACHED("sim: a tensor is none for a run");
  misfits->push_back(std::exchange(item, ServeRun::Item()));
  return false;
}

void ServeSlots::OnTakeEnded(TakingOp* base, ServeTake* take) {
  ServeOp* op = static_cast<ServeOp*>(base);
  KeepOutcome(op, std::move(take->taken));
}

// With everything that the sender passed along.
void ServeSlots::KeepOutcome(ServeOp* op, Received&& taken) {
  static_cast<Received&>(*op) = std::move(taken);
  OnOutcome(op);
}

void ServeSlots::NoteNotAsked() {
  TRYST_REACHED("sim: a tensor waits to be asked for in this epoch");
}

bool ServeSlots::SayAllWords() {
  const bool all = words_.SayAll([this](bool is_parked, uint16_t slot, uint32_t generation) {
    return wire_->SayWord(is_parked, slot, generation);
  });
  return all && takes_.TellHere(wire_->tickets_a_word(), [this](absl::Span<const uint64_t> some) {
    return wire_->SayHere(some);
  });
}

// ---- Ends ----

void ServeSlots::DropTakes() {
  connected_ = false;
  takes_.SetEpoch(0);
  takes_.ForgetPlace();
  EndThose(ServeEvent::kLeft, [](const ServeOp& op) { return op.state == ServeState::kTaking; });
  takes_.DropUnspoken();
  words_.clear();
}

size_t ServeSlots::Coming() const {
  if (!connected_) return 0;
  return takes_.parked_here() +
         static_cast<size_t>(std::count_if(begin(), begin() + used_, [this](const ServeOp& op) {
           if (op.state == ServeState::kFree || op.state == ServeState::kTaking) return false;
           const bool sent = op.state == ServeState::kSent && op.asked_epoch == epoch_;
           return op.status.ok() && !(sent && wire_->Arrives(op));
         }));
}

// ---- Views ----

std::string ServeSlots::Explain(absl::string_view before, absl::string_view between) const {
  size_t by_state[kServeStateCount] = {};
  for (const ServeOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string text;
  const auto add = [&](size_t count, const char* does) {
    if (count == 0) return;
    absl::StrAppend(&text, text.empty() ? before : between, count, " ", does);
  };
  for (size_t i = 1; i < kServeStateCount; ++i) {
    add(by_state[i], ServeStateName(static_cast<ServeState>(i)));
  }
  add(takes_.parked(), "waits without a slot for the local Send");
  return text;
}

void ServeSlots::ListOps(LiveOps* ops) const {
  for (const ServeOp& op : ops_) {
    if (op.state == ServeState::kFree) continue;
    LiveOp live;
    live.role = TraceRole::kServe;
    live.peer = options_.consumer;
    live.path = path_;
    live.step = op.step;
    live.key = op.key;
    live.span = op.span;
    live.span.id = IdOf(op);
    if (op.tensor.valid()) live.bytes = op.tensor.bytes();
    ops->Add(std::move(live));
  }
  LiveOp parked;
  parked.peer = options_.consumer;
  parked.path = path_;
  takes_.ListOps(parked, ops);
}

}  // namespace tryst
