#include "channel/ops/serve_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"

namespace tryst {
namespace {

ServeSlotsOptions SlotsFrom(const ServeSessionOptions& options, const std::string& consumer,
                            const void* watched, std::function<void()> on_takes_idle) {
  ServeSlotsOptions slots;
  slots.consumer = consumer;
  slots.max_parked = options.max_parked;
  slots.max_keys = options.max_keys;
  slots.trace = options.trace;
  slots.watch = options.watch;
  slots.watched = watched;
  slots.on_takes_idle = std::move(on_takes_idle);
  return slots;
}

}  // namespace

ServeSession::ServeSession(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
                           const Hello& consumer, uint64_t session)
    : poller_(poller),
      self_(options.self),
      self_incarnation_(options.self_incarnation),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      probes_(consumer.probes),
      session_(session),
      retain_ns_(options.retain_ms * 1'000'000),
      watch_(options.watch),
      state_since_ns_(poller->now_ns()),
      slots_(poller, source, SlotsFrom(options, consumer_, this, [this] { FinishFarewell(); }),
             &counters_) {
  slots_.set_trace_number(session);
}

ServeSession::~ServeSession() {
  TRYST_CHECK(Drained()) << Explain();
  LeaveKind();
  if (watch_ != nullptr) watch_->OnEndGone(this);
}

// ---- Hellos ----

// Starts an epoch. Nothing may wait for messages of an earlier one.
absl::Status ServeSession::StartEpoch(const Hello& hello) {
  if (hello.epoch <= epoch_ || (next_hello_ && hello.epoch <= next_hello_->hello.epoch)) {
    TRYST_REACHED("sim: a hello of an older epoch");
    return absl::AbortedError(absl::StrCat("connection ", hello.epoch, " is over: connection ",
                                           epoch_, " was opened since"));
  }
  const absl::Status newer =
      absl::AbortedError("the consumer has asked to open a newer connection");
  if (next_hello_) {
    TRYST_REACHED("rare: a hello comes while one waits for the drain");
    std::move(next_hello_->done)(newer);
    next_hello_.reset();
  }
  if (farewell_) {
    TRYST_REACHED("rare: a hello comes while a farewell waits for its takes");
    std::move(farewell_->second)(newer);
    farewell_.reset();
  }
  return absl::OkStatus();
}

void ServeSession::OnHello(const Hello& hello, const ServeKind* kind, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  const absl::Status fresh = StartEpoch(hello);
  if (!fresh.ok()) return std::move(done)(fresh);
  if (!has_link()) return Accept(hello, kind, std::move(done));
  TRYST_REACHED("sim: a hello comes while the former link lives");
  next_hello_.emplace(Waiting{hello, kind, std::move(done)});
  link_->Break(absl::UnavailableError(
      absl::StrCat(consumer_, " opened connection ", hello.epoch, ", which replaces this one")));
}

void ServeSession::Accept(const Hello& hello, const ServeKind* kind, HelloDone done) {
  // The consumer has the full time again from here on to come back, unless this hello brings it.
  poller_->CancelTimer(&retain_timer_);
  abandoned_ = false;
  WaitForConsumer();
  if (kind != kind_) UseKind(kind);
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  Hello answer = NewAnswer(hello);
  const absl::Status opened = link_->Open(hello, &answer);
  if (!opened.ok()) return std::move(done)(opened);
  epoch_ = hello.epoch;
  std::move(done)(std::move(answer));
}

// REQUIRES: there is no link. Who says hello for another kind reads and accepts nothing of the
// former one any more.
void ServeSession::UseKind(const ServeKind* kind) {
  if (link_ != nullptr) {
    TRYST_REACHED("sim: a consumer goes on by another kind of link");
    (void)link_->EndFormer();
    LeaveKind();
  }
  std::unique_ptr<ServeLink> next = kind->make(this);
  slots_.UseWire(next.get(), kind->path);
  link_ = std::move(next);
  kind_ = kind;
  if (kind_->serving != nullptr) kind_->serving->sessions.push_back(this);
}

// What was counted stays with that kind.
void ServeSession::LeaveKind() {
  ServingBy* const serving = kind_ == nullptr ? nullptr : kind_->serving;
  if (serving == nullptr) return;
  serving->past += Counted();
  counters_ = ServeCounters();
  auto& all = serving->sessions;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

Hello ServeSession::NewAnswer(const Hello& hello) const {
  Hello answer;
  answer.worker = self_;
  answer.incarnation = self_incarnation_;
  answer.epoch = hello.epoch;
  answer.path = hello.path;
  return answer;
}

void ServeSession::OnLinkOpen(uint64_t epoch) {
  epoch_ = epoch;
  slots_.Connect(epoch);
  NoteState();
  poller_->CancelTimer(&retain_timer_);
  abandoned_ = false;
}

void ServeSession::OnLinkBroken(const absl::Status& why) {
  if (watch_ != nullptr) watch_->OnLinkBroken(why);
  if (absl::IsDataLoss(why) || (!closed_ && !is_replaced() && !absl::IsCancelled(why))) {
    LogLoss(why);
  }
  NoteState();
  slots_.Disconnect();
}

// The loss of an idle link is not logged, because a consumer that stops causes it, too.
void ServeSession::LogLoss(const absl::Status& why) const {
  const bool is_idle = std::all_of(slots_.begin(), slots_.end(), [](const ServeOp& op) {
    return op.state == ServeState::kFree || op.state == ServeState::kSent;
  });
  if (is_idle && !absl::IsDataLoss(why)) return;
  TRYST_LOG(Warning) << self_ << " lost the " << path() << " connection of " << consumer_
                     << " (epoch " << epoch_ << "): " << why.message();
}

void ServeSession::OnLinkGone() {
  if (!next_hello_) {
    if (probes_) abandoned_ = true;  // Nothing is kept for it.
    return WaitForConsumer();
  }
  Waiting next = *std::move(next_hello_);
  next_hello_.reset();
  Accept(next.hello, next.kind, std::move(next.done));
}

// From now on the consumer has so long to come, or to come back.
void ServeSession::WaitForConsumer() {
  if (closed_ || retain_timer_.is_set()) return;
  poller_->SetTimer(&retain_timer_, poller_->now_ns() + retain_ns_);
}

void ServeSession::OnNotBack() {
  TRYST_REACHED("rare: the consumer does not come back");
  abandoned_ = true;
}

// ---- Ends ----

void ServeSession::OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  const absl::Status fresh = StartEpoch(hello);
  if (!fresh.ok()) return std::move(done)(fresh);
  epoch_ = hello.epoch;
  Hello answer = NewAnswer(hello);
  answer.parameters = EncodeFarewell({session_, {}});
  farewell_.emplace(std::move(answer), std::move(done));
  // What it still has under way to us must no longer be heard: it asks anew elsewhere.
  if (has_link()) link_->Break(absl::UnavailableError(absl::StrCat(consumer_, " is stopping")));
  if (watch_ != nullptr) watch_->OnServeFarewell(this);
  if (std::any_of(slots_.begin(), slots_.end(),
                  [](const ServeOp& op) { return op.state == ServeState::kTaking; })) {
    TRYST_REACHED("rare: a farewell crosses a take");
  }
  slots_.DropTakes();
  const ServeEvent rest = link_ == nullptr ? ServeEvent::kLeft : link_->EndFormer();
  for (const Farewell::Wanted& wanted : farewell.wanted) {
    if (farewell.session != session_ || wanted.slot >= slots_.size()) {
      TRYST_REACHED("rare: a farewell of another session");
      continue;
    }
    ServeOp* op = slots_.at(wanted.slot);
    if (op->state == ServeState::kFree ||
        static_cast<uint16_t>(op->generation) != wanted.generation) {
      continue;
    }
    TRYST_REACHED("rare: a farewell wants back what was taken for it");
    slots_.End(op, ServeEvent::kNotAccepted);
  }
  slots_.EndAll(rest);  // It has landed, or was given up.
  FinishFarewell();
}

// When no take is under way any more: what one of them has met is back, too.
void ServeSession::FinishFarewell() {
  if (!farewell_ || !slots_.takes_idle()) {
    if (farewell_) TRYST_REACHED("rare: a farewell waits for takes");
    return;
  }
  std::pair<Hello, HelloDone> answer = *std::move(farewell_);
  farewell_.reset();
  std::move(answer.second)(std::move(answer.first));
}

void ServeSession::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  poller_->CancelTimer(&retain_timer_);
  if (next_hello_) {
    std::move(next_hello_->done)(why);
    next_hello_.reset();
  }
  if (farewell_) {
    std::move(farewell_->second)(why);
    farewell_.reset();
  }
  if (has_link()) link_->Break(why);
  if (watch_ != nullptr) watch_->OnEndGone(this);
  slots_.DropTakes();
  if (link_ != nullptr) slots_.EndAll(link_->EndFormer());
}

// ---- Views ----

PathView ServeSession::View() const {
  LiveOps ops(0);
  ListOps(&ops);
  PathView view;
  view.role = TraceRole::kServe;
  view.peer = consumer_;
  view.path = path();
  view.in_use = true;
  view.state = "not connected";
  link_->View(&view);
  view.since_ns = state_since_ns_;
  view.epoch = epoch_;
  view.under_way = ops.left_out();
  return view;
}

std::string ServeSession::Explain() const {
  return absl::StrCat(consumer_, " fetches from us over ", path(), ": ", View().state, " since ",
                      (poller_->now_ns() - state_since_ns_) / 1'000'000, " ms, epoch ", epoch_,
                      link_->Explain(), slots_.Explain(": ", "; "));
}

ServeCounters ServeSession::Counted() const {
  ServeCounters now = counters_;
  if (link_ != nullptr) now.messages += link_->messages();
  return now;
}

}  // namespace tryst
