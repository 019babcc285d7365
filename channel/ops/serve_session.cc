#include "channel/ops/serve_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"

namespace tryst {
namespace {

ServeSlotsOptions Named(ServeSlotsOptions slots, const ServeSessionOptions& options,
                        const std::string& consumer, const void* watched,
                        std::function<void()> on_takes_idle) {
  slots.consumer = consumer;
  slots.path = options.path;
  slots.trace = options.trace;
  slots.watch = options.watch;
  slots.watched = watched;
  slots.on_takes_idle = std::move(on_takes_idle);
  return slots;
}

}  // namespace

ServeSession::ServeSession(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
                           ServeSlotsOptions slots, const Hello& consumer, uint64_t session,
                           MakeLink make)
    : poller_(poller),
      path_(options.path),
      self_(options.self),
      self_incarnation_(options.self_incarnation),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      session_(session),
      retain_ns_(options.retain_ms * 1'000'000),
      watch_(options.watch),
      link_(make(this)),
      state_since_ns_(poller->now_ns()),
      slots_(poller, source, link_.get(),
             Named(slots, options, consumer_, this, [this] { FinishFarewell(); }), &counters_) {
  slots_.set_trace_number(session);
}

ServeSession::~ServeSession() {
  TRYST_CHECK(Drained()) << Explain();
  if (watch_ != nullptr) watch_->OnEndGone(this);
}

// ---- Hellos ----

// Starts an epoch. Nothing may wait for messages of an earlier one.
absl::Status ServeSession::StartEpoch(const Hello& hello) {
  if (hello.epoch <= epoch_ || (next_hello_ && hello.epoch <= next_hello_->first.epoch)) {
    TRYST_REACHED("sim: a hello of an older epoch");
    return absl::AbortedError(absl::StrCat("connection ", hello.epoch, " is over: connection ",
                                           epoch_, " was opened since"));
  }
  const absl::Status newer =
      absl::AbortedError("the consumer has asked to open a newer connection");
  if (next_hello_) {
    TRYST_REACHED("rare: a hello comes while one waits for the drain");
    std::move(next_hello_->second)(newer);
    next_hello_.reset();
  }
  if (farewell_) {
    TRYST_REACHED("rare: a hello comes while a farewell waits for its takes");
    std::move(farewell_->second)(newer);
    farewell_.reset();
  }
  return absl::OkStatus();
}

void ServeSession::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  const absl::Status fresh = StartEpoch(hello);
  if (!fresh.ok()) return std::move(done)(fresh);
  if (!link_->Exists()) return Accept(hello, std::move(done));
  TRYST_REACHED("sim: a hello comes while the former link lives");
  next_hello_.emplace(hello, std::move(done));
  link_->Break(absl::UnavailableError(
      absl::StrCat(consumer_, " opened connection ", hello.epoch, ", which replaces this one")));
}

void ServeSession::Accept(const Hello& hello, HelloDone done) {
  // The consumer has the full time again from here on to come back, unless this hello brings it.
  poller_->CancelTimer(&retain_timer_);
  abandoned_ = false;
  WaitForConsumer();
  Hello answer = NewAnswer(hello.epoch);
  const absl::Status opened = link_->Open(hello, &answer);
  if (!opened.ok()) return std::move(done)(opened);
  epoch_ = hello.epoch;
  std::move(done)(std::move(answer));
}

Hello ServeSession::NewAnswer(uint64_t epoch) const {
  Hello answer;
  answer.worker = self_;
  answer.incarnation = self_incarnation_;
  answer.epoch = epoch;
  answer.path = path_;
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
  TRYST_LOG(Warning) << self_ << " lost the " << path_ << " connection of " << consumer_
                     << " (epoch " << epoch_ << "): " << why.message();
}

void ServeSession::OnLinkGone() {
  if (!next_hello_) return WaitForConsumer();
  std::pair<Hello, HelloDone> next = *std::move(next_hello_);
  next_hello_.reset();
  Accept(next.first, std::move(next.second));
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
  Hello answer = NewAnswer(epoch_);
  answer.parameters = EncodeFarewell({session_, {}});
  farewell_.emplace(std::move(answer), std::move(done));
  // What it still has under way to us must no longer be heard: it asks anew elsewhere.
  if (link_->Exists()) {
    link_->Break(absl::UnavailableError(
        absl::StrCat(consumer_, " has moved its fetches from this path to another: ", path_)));
  }
  if (watch_ != nullptr) watch_->OnServeFarewell(this);
  if (std::any_of(slots_.begin(), slots_.end(),
                  [](const ServeOp& op) { return op.state == ServeState::kTaking; })) {
    TRYST_REACHED("sim: a farewell crosses a take");
  }
  slots_.DropTakes();
  const ServeEvent rest = link_->EndFormer();
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
    TRYST_REACHED("sim: a farewell wants back what was taken for it");
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
  for (auto* waiting : {&next_hello_, &farewell_}) {
    if (!*waiting) continue;
    std::move((*waiting)->second)(why);
    waiting->reset();
  }
  if (link_->Exists()) link_->Break(why);
  slots_.StopWatching();
  slots_.DropTakes();
  slots_.EndAll(link_->EndFormer());
}

// ---- Views ----

PathView ServeSession::View() const {
  LiveOps ops(0);
  ListOps(&ops);
  PathView view;
  view.role = TraceRole::kServe;
  view.peer = consumer_;
  view.path = path_;
  view.in_use = true;
  view.state = "not connected";
  link_->View(&view);
  view.since_ns = state_since_ns_;
  view.epoch = epoch_;
  view.under_way = ops.left_out();
  return view;
}

std::string ServeSession::Explain() const {
  return absl::StrCat(consumer_, " fetches from us over ", path_, ": ", View().state, " since ",
                      (poller_->now_ns() - state_since_ns_) / 1'000'000, " ms, epoch ", epoch_,
                      link_->Explain(), slots_.Explain(": ", "; "));
}

ServeCounters ServeSession::Counted() const {
  ServeCounters now = counters_;
  now.messages += link_->messages();
  return now;
}

}  // namespace tryst
