#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "channel/rdma/farewell.h"
#include "channel/rdma/fetch_channel.h"
#include "rendezvous/derived_status.h"

// Leaves a path that no longer works: its fetches go to another path. The path is tried again from
// time to time.
namespace tryst {

// Tells the producer what has not landed, so that it gives that back and takes nothing more for us
// on this path. An answer also shows that the path is broken and not the peer; while there is none,
// another path would not help. REQUIRES: no link, so that no byte can land any more.
void FetchChannel::Leave() {
  TRYST_REACHED("sim: a path is left");
  connector_.Begin(State::kFarewell);
  Farewell farewell;
  farewell.session = sender_.session;
  for (const FetchAsk* ask : Asked()) {
    const bool asked = ask->said || ask->state == FetchState::kLeaving;
    if (ask->has_slot() && asked) {
      farewell.wanted.push_back({ask->slot, static_cast<uint16_t>(ask->generation)});
    }
  }
  Hello hello = connector_.NewHello();
  hello.parameters = EncodeFarewell(farewell);
  connector_.Say(hello,
                 [this](absl::StatusOr<Hello> answer) { OnFarewellAnswer(std::move(answer)); });
}

void FetchChannel::OnFarewellAnswer(absl::StatusOr<Hello> answer) {
  if (!answer.ok()) return RetryLater(answer.status());
  silence_.NoteWord();
  const absl::Status ours = connector_.CheckAnswer(*answer);
  if (!ours.ok()) return RetryLater(ours);
  auto session = DecodeFarewell(answer->parameters);
  if (peer_incarnation_ != 0 && answer->incarnation != peer_incarnation_) {
    TRYST_REACHED("sim: a farewell finds that the producer was restarted");
    EndAsked(Restarted(options_.peer, peer_incarnation_, answer->incarnation), answer->incarnation);
  } else if (sender_.session != 0 && (!session.ok() || session->session != sender_.session)) {
    EndAsked(absl::UnavailableError(absl::StrCat(
        options_.peer, " has given up the fetches from before the connection broke: ask again")));
  }
  peer_incarnation_ = answer->incarnation;
  ForgetLeaving();  // The farewell gave back what was taken for them.
  GoIdle();
  options_.on_left(TakeAll());
}

// Takes out all fetches that wait, in order.
std::vector<WaitingFetch> FetchChannel::TakeAll() {
  std::vector<WaitingFetch> taken;
  for (FetchAsk* ask : Asked()) TakeOut(ask, &taken);
  for (WaitingFetch& fetch : TakeWaiting()) taken.push_back(std::move(fetch));
  return taken;
}

// Those behind it go along: asked for here, the first of them would get the tensor that this one is
// to get on the other path.
void FetchChannel::MoveAway(RdmaAsk* ask) {
  TRYST_REACHED("rare: a tensor is too large for the landing memory");
  std::vector<WaitingFetch> taken;
  TakeOut(ask, &taken);
  options_.on_too_large(std::move(taken));
}

void FetchChannel::Probe() {
  if (connector_.state() != State::kIdle) return;  // The channel is trying it already.
  probing_ = true;
  Connect();
}

void FetchChannel::OnHeard() {
  silence_.NoteWord();
  owed_.NoteWord();
  if (!owed_.works()) return;
  connector_.back_off()->Reset();
  connector_.NoteWorking();
  if (!probing_) return;
  probing_ = false;
  if (options_.on_usable) options_.on_usable();
}

void FetchChannel::OnPong() {
  owed_.NoteAnswer();
  OnHeard();
  // The more it may have under way to us, the more often it is asked; see Overdue().
  if (owed_.IsLate()) poller_->SetTimer(&heartbeat_timer_, now_ns() + kSoonNs);
}

}  // namespace tryst
