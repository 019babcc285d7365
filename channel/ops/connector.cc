#include "channel/ops/connector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/reached.h"

namespace tryst {

Connector::Connector(Poller* poller, Bootstrap* bootstrap, ConnectorOptions options,
                     std::function<void()> on_timer)
    : poller_(poller),
      bootstrap_(bootstrap),
      options_(std::move(options)),
      on_timer_(std::move(on_timer)),
      since_ns_(poller->now_ns()),
      back_off_(options_.backoff_ms, options_.backoff_ms_most, options_.seed) {}

void Connector::SetState(State state) {
  state_ = state;
  since_ns_ = poller_->now_ns();
}

const char* Connector::StateText() const {
  switch (state_) {
    case State::kIdle:
      return "idle, connects at the next fetch";
    case State::kHello:
      return "waits for the answer to its hello";
    case State::kJoining:
      return "waits to be welcomed on the local socket";
    case State::kOpen:
      return options_.open_text.c_str();
    case State::kDraining:
      return "drains a broken connection";
    case State::kBackoff:
      return "pauses before it connects again";
    case State::kAsking:
      return "fails; asks whether the peer is up";
    case State::kClosed:
      return "closed";
  }
  return "unknown";
}

PathHealth Connector::Health() const {
  switch (state_) {
    case State::kIdle:
    case State::kClosed:
      return PathHealth::kIdle;
    case State::kHello:
    case State::kJoining:
      return why.ok() ? PathHealth::kOpening : PathHealth::kFailing;
    case State::kOpen:
      return PathHealth::kWorking;
    case State::kDraining:
    case State::kBackoff:
    case State::kAsking:
      return PathHealth::kFailing;
  }
  return PathHealth::kFailing;
}

std::string Connector::Explain() const {
  return absl::StrCat(options_.peer, " over ", options_.path, ": ", StateText(), " since ",
                      (poller_->now_ns() - since_ns_) / 1'000'000, " ms, epoch ", epoch_);
}

void Connector::View(PathView* view) const {
  view->health = Health();
  view->state = StateText();
  view->why = std::string(why.message());
  view->since_ns = since_ns_;
  view->epoch = epoch_;
}

void Connector::Begin(State state) {
  SetState(state);
  ++epoch_;
}

Hello Connector::NewHello() const {
  Hello hello;
  hello.worker = options_.self;
  hello.incarnation = options_.self_incarnation;
  hello.epoch = epoch_;
  hello.path = options_.path;
  return hello;
}

void Connector::Say(const Hello& hello, AnswerFn on_answer, int64_t most_ms) {
  ++hellos_out_;
  bootstrap_->Exchange(options_.peer, hello,
                       Deadline::After(poller_->clock(), absl::Milliseconds(std::min(
                                                             options_.hello_timeout_ms, most_ms))),
                       [this, epoch = epoch_, state = state_,
                        on_answer = std::move(on_answer)](absl::StatusOr<Hello> answer) mutable {
                         poller_->PostFn([this, epoch, state, on_answer = std::move(on_answer),
                                          answer = std::move(answer)]() mutable {
                           --hellos_out_;
                           // It was closed, or the link was lost and another epoch has begun.
                           if (state_ != state || epoch != epoch_) {
                             TRYST_REACHED("sim: an answer to an earlier hello");
                             return;
                           }
                           on_answer(std::move(answer));
                         });
                       });
}

absl::Status Connector::CheckAnswer(const Hello& answer) const {
  if (answer.incarnation != 0 && answer.epoch == epoch_ && answer.path == options_.path) {
    return absl::OkStatus();
  }
  TRYST_REACHED("rare: the answer to another hello");
  return absl::DataLossError("the peer's answer belongs to another attempt to open a connection");
}

void Connector::WaitFor(int64_t ms) {
  poller_->SetTimer(&timer_, poller_->now_ns() + ms * 1'000'000);
}

void Connector::Pause() {
  SetState(State::kBackoff);
  poller_->SetTimer(&timer_, poller_->now_ns() + back_off_.NextNs());
}

bool Connector::FailedFor(int64_t ms) const {
  return failing_since_ns_ >= 0 && poller_->RunningSince(failing_since_ns_) >= ms * 1'000'000;
}

}  // namespace tryst
