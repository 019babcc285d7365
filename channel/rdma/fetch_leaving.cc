#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reached.h"
#include "channel/rdma/farewell.h"
#include "channel/rdma/fetch_channel.h"
#include "rendezvous/derived_status.h"

// A path that no longer works is left: what was asked on it goes to another one. And it is
// looked at again from time to time.
namespace tryst {

bool FetchChannel::Unusable() const {
  return options_.give_up_ms > 0 && unusable_since_ns_ >= 0 &&
         now_ns() - unusable_since_ns_ >= options_.give_up_ms * 1'000'000;
}

// Says what has not landed, so that the producer gives that back and takes nothing more for us
// here. That it answers also shows that it is the path that is broken and not the peer: as
// long as it does not, nothing is gained by another path.
// REQUIRES: no link, so that no byte can land any more.
void FetchChannel::Leave() {
  TRYST_REACHED("sim: a path is left");
  SetState(State::kFarewell);
  ++epoch_;
  Farewell farewell;
  farewell.session = peer_session_;
  for (const FetchOp* op : Asked()) {
    const bool asked = op->asked_before || op->state == FetchState::kLeaving;
    if (op->has_slot && asked) {
      farewell.wanted.push_back({op->slot, static_cast<uint16_t>(op->generation)});
    }
  }
  Hello hello;
  hello.worker = options_.self;
  hello.incarnation = options_.self_incarnation;
  hello.epoch = epoch_;
  hello.path = options_.path;
  hello.protocol_newest = options_.protocol_newest;
  hello.parameters = EncodeFarewell(farewell);
  SendHello(hello, &FetchChannel::OnFarewellAnswer);
}

void FetchChannel::OnFarewellAnswer(uint64_t epoch, absl::StatusOr<Hello> answer) {
  --hellos_out_;
  if (state_ != State::kFarewell || epoch != epoch_) {
    TRYST_REACHED("rare: an answer to an earlier farewell");
    return;
  }
  if (!answer.ok()) return RetryLater(answer.status());
  NoteWord();
  if (answer->incarnation == 0 || answer->epoch != epoch_ || answer->path != options_.path) {
    return RetryLater(absl::DataLossError("the peer answered another hello than ours"));
  }
  auto session = DecodeFarewell(answer->parameters);
  if (peer_incarnation_ != 0 && answer->incarnation != peer_incarnation_) {
    TRYST_REACHED("sim: a farewell finds that the producer was restarted");
    EndAsked(Restarted(options_.peer, peer_incarnation_, answer->incarnation), answer->incarnation);
  } else if (peer_session_ != 0 && (!session.ok() || session->session != peer_session_)) {
    EndAsked(absl::UnavailableError(
        absl::StrCat(options_.peer, " no longer keeps what was asked for before the break")));
  }
  peer_incarnation_ = answer->incarnation;
  ForgetLeaving();  // What was taken for them has gone back.
  GoIdle();
  options_.on_left(TakeAll());
}

// All that waits, in order.
std::vector<WaitingFetch> FetchChannel::TakeAll() {
  std::vector<WaitingFetch> taken;
  for (FetchOp* op : Asked()) TakeOut(op, &taken);
  for (WaitingFetch& fetch : TakeWaiting()) taken.push_back(std::move(fetch));
  return taken;
}

// The producer has let go of it: another path brings what is too large for this one.
void FetchChannel::MoveAway(RdmaFetchOp* op) {
  TRYST_REACHED("rare: a tensor is too large for the landing memory");
  std::vector<WaitingFetch> taken;
  TakeOut(op, &taken);
  for (WaitingFetch& fetch : taken) options_.on_too_large(std::move(fetch));
}

void FetchChannel::Probe() {
  if (state_ != State::kIdle) return;  // It is being tried anyway.
  probing_ = true;
  Connect();
}

// The peer was heard through the link.
void FetchChannel::OnHeard() {
  NoteWord();
  back_off_.Reset();
  unusable_since_ns_ = -1;
  if (!probing_) return;
  probing_ = false;
  if (options_.on_usable) options_.on_usable();
}

}  // namespace tryst
