#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/fetch_ops.h"

// Runs of keys: small tensors of one fetch of many, which the peer is asked for together, and which
// it answers together (docs/decisions/0080-runs-of-keys.md).
namespace tryst {
namespace {

constexpr size_t kLeastInRun = 4;  // With fewer it does not pay.

}  // namespace

// Where a connection is, and its fetches are not of the kind that is asked for ahead.
bool FetchOps::MayRun(const RecvArgs& args, size_t keys) {
  return keys >= kLeastInRun && open() && !args.recurring &&
         kMostInRun * sizeof(uint32_t) <= ops_options_.max_key_bytes && runs_.TakesPart();
}

// A key whose last tensor was small, which the peer knows over this connection, and of which
// nothing is asked for.
bool FetchOps::MayRunWith(const FetchKey& key, const Tensor& destination) const {
  return key.run_item_bytes > 0 && key.told == connector_.epoch() && key.asks.empty() &&
         key.out_in == nullptr && (!destination.valid() || destination.on_host());
}

// A plain fetch of a small tensor, when others were made in this turn: at its end all of them are
// asked for together. False: it is none for that.
bool FetchOps::Gather(FetchOp* op) {
  if (op->run != nullptr || op->join != nullptr || !open() || op->wants().recurring ||
      kMostInRun * sizeof(uint32_t) > ops_options_.max_key_bytes) {
    return false;
  }
  FetchKey* key = keys_.Intern(op->key);
  if (!MayRunWith(*key, op->destination())) return false;
  if (gathered_ != nullptr &&
      (gathered_->step != op->step || !gathered_->Fits(*key, words_->most_run_bytes()))) {
    StartGathered();
    key = keys_.Intern(op->key);  // The run's name may have taken its number.
  }
  if (!MayRunWith(*key, op->destination())) return false;
  if (gathered_ == nullptr) {
    if (!runs_.TakesPart()) return false;
    gathered_ = runs_.Take(op->step);
  }
  gathered_->Add(key, op);
  words_->FlushSoon();
  return true;
}

void FetchOps::StartRun(FetchRun* run) {
  // A key may have got another number since it was added, which the peer has not been told.
  const bool told = std::all_of(run->keys.begin(), run->keys.end(), [this](const FetchKey* key) {
    return key->told == connector_.epoch();
  });
  run->name = run->keys.size() < kLeastInRun || !told ? nullptr : runs_.NameOf(&keys_, run);
  run->numbers = keys_.numbers_lost();
  if (run->name == nullptr) return StartApart(run);
  ++counters_.runs;
  for (FetchOp* part : run->ops) part->span.Enter(WaitsFor::kPeerSend, now_ns());
  FetchOp* const op = TakeOp(run->step, run->name->key);
  op->join = run->join;
  if (op->join == nullptr) op->args = RecvArgs();  // Its fetches are plain.
  op->run = run;
  Start(op);
}

// What was fetched of its keys meanwhile comes after them.
void FetchOps::StartApart(FetchRun* run) {
  for (FetchKey* key : run->keys) key->out_in = nullptr;
  for (size_t i = 0; i < run->keys.size(); ++i) StartPart(run, i);
  StartHeld(run);
}

void FetchOps::StartPart(FetchRun* run, size_t index) {
  if (run->join != nullptr) {
    return StartOf(run->join, run->places[index], run->step, run->keys[index]->key,
                   run->wanted(index));
  }
  FetchOp* const op = std::exchange(run->ops[index], nullptr);
  if (op == nullptr) return;  // It has ended early.
  op->part_of = nullptr;
  LineUp(op, /*now=*/false);
  if (op->ask != nullptr) link_->OnWaits(op);
}

void FetchOps::StartHeld(FetchRun* run) {
  for (FetchKey* key : run->keys) keys_.LeaveRun(key);
  LinkedLine<FetchOp> held{&FetchOp::line_link};
  while (!run->held.empty()) held.Push(run->held.PopFront());
  runs_.Free(run);
  LineUpAll(&held);
}

void FetchOps::LineUpAll(LinkedLine<FetchOp>* ops) {
  while (!ops->empty()) {
    FetchOp* const op = ops->PopFront();
    LineUp(op, /*now=*/false);
    if (op->ask != nullptr) link_->OnWaits(op);
  }
}

// One of its fetches ends early. Without a deadline and a cancellation it ends with its step, with
// the peer's life or with the channel: all that the run is asked for ends so, and the run, too.
void FetchOps::LeaveRun(FetchOp* op, const absl::Status& why) {
  FetchRun* const run = std::exchange(op->part_of, nullptr);
  const auto at = std::find(run->ops.begin(), run->ops.end(), op);
  *at = nullptr;
  Report(op, absl::Status(why), Tensor(), false, When::kAtEndOfTurn);
  if (run != gathered_) return;
  const auto index = at - run->ops.begin();
  FetchKey* const key = run->keys[static_cast<size_t>(index)];
  run->bytes -= key->run_item_bytes;
  run->ops.erase(at);
  run->keys.erase(run->keys.begin() + index);
  // Nothing that is fetched of the key from now on is held, so what was held must go before it.
  LinkedLine<FetchOp> held{&FetchOp::line_link};
  for (FetchOp *one = run->held.front(), *next; one != nullptr; one = next) {
    next = run->held.Behind(one);
    if (one->key != key->key) continue;
    TRYST_REACHED("sim: a key leaves a run that holds a fetch of it");
    run->held.Remove(one);
    held.Push(one);
  }
  keys_.LeaveRun(key);
  LineUpAll(&held);
}

void FetchOps::EndStale(FetchAsk* ask) {
  TRYST_REACHED("rare: a run's name is over before it is asked for");
  ask->front->run->apart = true;
  EndAsk(ask, absl::UnavailableError("a key of the run has lost its number"));
}

void FetchOps::EndRuns() {
  if (gathered_ != nullptr) StartApart(std::exchange(gathered_, nullptr));
  for (FetchOp* op : std::vector<FetchOp*>(fetches_.all())) {
    if (op->run == nullptr || op->phase != FetchPhase::kWaits) continue;
    if (op->ask != nullptr && op->ask->leaves()) continue;  // What becomes of its keys is known.
    TRYST_REACHED("sim: a run ends with its connection");
    op->run->apart = true;
    EndEarly(op, absl::UnavailableError("the connection of the run is over"));
  }
}

absl::Status FetchOps::TakeRun(FetchAsk* ask, absl::string_view answer, Tensor* tensor) {
  FetchRun* const run = ask->front->run;
  RunReader reader(answer);
  absl::Status unwanted;
  if (answer.empty()) {  // Nothing is here.
    for (size_t i = 0; i < run->keys.size(); ++i) run->not_here.push_back(i);
  }
  for (size_t i = run->not_here.size(); i < run->keys.size(); ++i) {
    RunItemKind kind;
    TensorInside inside;
    const absl::Status read = reader.Next(&kind, &inside);
    if (!read.ok()) return read;
    Received* const result = run->ResultOf(i);
    result->is_dead = kind == RunItemKind::kDead;
    if (kind == RunItemKind::kNotHere) {
      run->not_here.push_back(i);
    } else if (result->is_dead) {
      continue;
    } else if (Fill(run->wanted(i), inside)) {
      result->tensor = run->wanted(i);
    } else if (!TakeSmall(run->wanted(i), inside, &result->tensor)) {
      const absl::Status copied = Copy(run->wanted(i), inside, &result->tensor, &unwanted);
      if (!copied.ok()) return copied;
    }
    if (!unwanted.ok()) break;
    if (result->tensor.valid()) NoteInside(inside);
  }
  if (unwanted.ok() && !reader.at_end()) return RunReader::Broken();
  if (!unwanted.ok()) {
    // All stay with the producer. Asked for alone, this one alone fails.
    TRYST_REACHED("sim: a tensor of a run is not what its caller wants");
    run->apart = true;
    EndAsk(ask, unwanted);
    return absl::OkStatus();
  }
  static const Tensor* const all_of_it = new Tensor(*Tensor::Allocate(DType::kUint8, {0}));
  run->taken = true;
  run->bytes = answer.size();
  *tensor = *all_of_it;
  return absl::OkStatus();
}

// The keys have their results, or are asked for one by one.
void FetchOps::EndRun(FetchOp* op, absl::Status&& status, When when) {
  FetchRun* const run = std::exchange(op->run, nullptr);
  if (status.ok() && !run->taken) {
    status = absl::DataLossError(
        "the producer broke the protocol: it answers a run of keys with something else");
  }
  op->phase = FetchPhase::kReported;
  if (track_ != nullptr) {
    op->traced_code = status.code();
    op->traced_bytes = status.ok() ? run->bytes : 0;
    op->span.Enter(WaitsFor::kExecutor, now_ns());
  }
  StopWatching(op);
  OnOpDelivered(op);
  if (!status.ok()) {
    run->not_here.clear();
    for (size_t i = 0; i < run->keys.size(); ++i) {
      if (run->join != nullptr || run->ops[i] != nullptr) *run->ResultOf(i) = Received();
    }
  }
  if (run->apart) return StartApart(run);
  ReportRun(run, status, when);
}

void FetchOps::ReportRun(FetchRun* run, const absl::Status& status, When when) {
  const size_t ended = run->keys.size() - run->not_here.size();
  if (status.ok()) {
    runs_.NoteAnswer(run->keys.size(), run->not_here.size());
    counters_.in_runs += ended;
  }
  for (FetchKey* key : run->keys) key->out_in = nullptr;
  for (size_t i : run->not_here) StartPart(run, i);
  FetchJoin* const join = run->join;
  if (join != nullptr) {
    (status.ok() ? counters_.ended_ok : counters_.ended_failed) += ended;
    if (!status.ok()) {
      for (size_t place : run->places) join->results[place] = Received{status};
    }
    StartHeld(run);
    if (ended > 0) deliveries_.NoteResults(join, ended, when);
    return;
  }
  // Their callbacks may fetch the same keys again, behind what was held.
  std::vector<FetchOp*> ops;
  ops.swap(run->ops);
  StartHeld(run);
  for (FetchOp* part : ops) {
    if (part == nullptr) continue;
    part->part_of = nullptr;
    part->by_run = true;
    part->phase = FetchPhase::kReported;  // A callback may end all others.
  }
  for (FetchOp* part : ops) {
    if (part == nullptr) continue;
    Tensor tensor = std::exchange(part->received.tensor, Tensor());
    const bool is_dead = std::exchange(part->received.is_dead, false);
    Report(part, absl::Status(status), std::move(tensor), is_dead, when);
  }
}

}  // namespace tryst
