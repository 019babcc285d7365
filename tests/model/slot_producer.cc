#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/model/slot_steps.h"

// What the producer of the model does.
namespace tryst {

// A Send meets a waiting take at once, in order; the poller learns of it later.
void SlotSteps::Match(ModelState* s) {
  while (s->line_count > 0 && s->taken < s->sent) {
    const int turn = s->line[0];
    std::copy(s->line + 1, s->line + s->line_count, s->line);
    s->line[--s->line_count] = 0;
    ++s->taken;
    if (s->parked[turn] == 1) {
      s->parked[turn] = 2;
      s->parked_serial[turn] = s->taken;
      continue;
    }
    for (ModelServe& serve : s->serve) {
      if (serve.state != Serve::kTaking || serve.met || serve.turn != turn) continue;
      serve.serial = s->taken;
      serve.met = 1;
    }
  }
}

void SlotSteps::StartTake(ModelState* s, int slot, const ModelMessage& request) {
  ModelServe& serve = s->serve[slot];
  serve = ModelServe();
  serve.state = Serve::kTaking;
  serve.generation = request.generation;
  serve.turn = request.turn;
  serve.destination = request.destination;
  serve.incarnation = s->incarnation;
  serve.asked_now = 1;
  if (request.incarnation != s->incarnation && Keeps(Rule::kCheckIncarnation)) {
    serve.met = 1;  // Fails, because the key names another incarnation.
    return;
  }
  const int turn = request.turn;
  if (s->parked[turn] != 0) {  // The request was parked under its ticket.
    serve.met = s->parked[turn] == 2;
    serve.serial = s->parked_serial[turn];
    s->parked[turn] = s->parked_serial[turn] = s->parked_named[turn] = 0;
    return;
  }
  if (s->line_count < kModelFetches) s->line[s->line_count++] = request.turn;
  Match(s);
}

namespace {

void LeaveLine(ModelState* s, int turn) {
  uint8_t* const end = std::remove(s->line, s->line + s->line_count, static_cast<uint8_t>(turn));
  s->line_count = static_cast<uint8_t>(end - s->line);
  std::fill(s->line + s->line_count, s->line + kModelFetches, uint8_t{0});
}

}  // namespace

// The consumer no longer wants it. A take that has its tensor keeps it.
void SlotSteps::Release(ModelState* s, int slot) {
  ModelServe& serve = s->serve[slot];
  if (serve.state == Serve::kTaking && !serve.met) LeaveLine(s, serve.turn);
  const uint8_t generation = serve.generation;
  serve = ModelServe();
  serve.generation = generation;
}

void SlotSteps::DropParked(ModelState* s, int turn) {
  if (s->parked[turn] == 1) LeaveLine(s, turn);
  s->parked[turn] = s->parked_serial[turn] = s->parked_named[turn] = 0;
}

void SlotSteps::HearReplayed(ModelState* s, uint8_t waiting) {
  if (!Keeps(Rule::kDropGivenUp)) return;
  for (int slot = 0; slot < options_.slots; ++slot) {
    if (s->serve[slot].state == Serve::kFree || s->serve[slot].asked_now) continue;
    Note(*s, slot, ServeDeed::kGivesUp, Serve::kFree);
    Release(s, slot);
  }
  for (int turn = 0; turn < options_.fetches; ++turn) {
    const bool waits = (waiting >> turn & 1) != 0;
    if (!waits && !s->parked_named[turn]) DropParked(s, turn);
    // The producer dropped it after a farewell whose answer was lost, so it is taken anew.
    if (!waits || s->parked[turn] != 0 || !s->asleep[turn]) continue;
    s->parked[turn] = s->parked_named[turn] = 1;
    s->line[s->line_count++] = static_cast<uint8_t>(turn);
    Match(s);
  }
}

void SlotSteps::HearCancel(ModelState* s, const ModelMessage& cancel) {
  const int slot = cancel.slot;
  ModelServe& serve = s->serve[slot];
  const bool ours = serve.state != Serve::kFree && serve.generation == cancel.generation;
  const bool late = !ours || serve.state == Serve::kSent;
  if (ours) {
    Note(*s, slot, ServeDeed::kHearsCancel, Serve::kFree);
    Release(s, slot);
  } else {
    Note(*s, slot, ServeDeed::kHearsLateCancel, serve.state);
  }
  if (late && !Keeps(Rule::kAnswerEveryCancel)) return;
  ModelMessage gone = cancel;
  gone.kind = ModelWord::kGone;
  PushWord(&s->to_consumer, gone);
}

void SlotSteps::HearRequest(ModelState* s, const ModelMessage& request) {
  const int slot = request.slot;
  ModelServe& serve = s->serve[slot];
  const bool same = serve.generation == request.generation && serve.state != Serve::kFree;
  const bool given_up = !same && !serve.asked_now;
  const bool known = same && Keeps(Rule::kKnowReplay);
  if (serve.state == Serve::kNeeds && same) {
    Do(s, slot, ServeDeed::kHearsAgain, Serve::kReady);
    serve.asked_now = 1;
    serve.destination = request.destination;
    return;
  }
  if (known && request.again) {
    Do(s, slot, ServeDeed::kHearsAgain, serve.state == Serve::kSent ? Serve::kReady : serve.state);
    serve.asked_now = 1;
    serve.destination = request.destination;
    return;
  }
  if (serve.state == Serve::kFree) {
    const bool again = serve.generation == request.generation;
    Note(*s, slot, again ? ServeDeed::kHearsAgain : ServeDeed::kHearsRequest, Serve::kTaking);
    return StartTake(s, slot, request);
  }
  if (serve.state != Serve::kSent && !given_up && Keeps(Rule::kKnowReplay)) {
    return Fail("a request on a slot that is taken");
  }
  if (serve.state == Serve::kTaking && serve.met && !Keeps(Rule::kFreeSlotAtOnce)) {
    // The answer waits until the poller has heard that the take ended.
    serve.asked_now = 1;
    serve.next = 1;
    serve.next_generation = request.generation;
    serve.next_turn = request.turn;
    serve.next_destination = request.destination;
    serve.next_incarnation = request.incarnation;
    return;
  }
  Note(*s, slot, ServeDeed::kHearsRequest, Serve::kTaking);
  Release(s, slot);
  StartTake(s, slot, request);
}

void SlotSteps::ProducerHears(const ModelState& state) {
  if (state.to_producer.count == 0 || state.producer != ModelLink::kOpen) return;
  const ModelMessage first = state.to_producer.messages[0];
  ModelState* s = Emit(state, absl::StrCat("the producer's next message arrives, of kind ",
                                           static_cast<int>(first.kind), " for slot ", first.slot));
  PopWord(&s->to_producer);
  ModelServe& serve = s->serve[first.slot];
  const bool same = serve.generation == first.generation;
  switch (first.kind) {
    case ModelWord::kReplayed:
      return HearReplayed(s, first.serial);
    case ModelWord::kCancel:
      return HearCancel(s, first);
    case ModelWord::kPark: {
      if (serve.state != Serve::kTaking || !same || serve.met) return;
      Note(*s, first.slot, ServeDeed::kParks, Serve::kFree);
      const uint8_t generation = serve.generation;
      s->parked[serve.turn] = s->parked_named[serve.turn] = 1;
      serve = ModelServe();
      serve.generation = generation;
      ModelMessage parked = first;
      parked.kind = ModelWord::kParked;
      return PushWord(&s->to_consumer, parked);
    }
    default:
      return HearRequest(s, first);
  }
}

void SlotSteps::ProducerAnswers(const ModelState& state, int slot) {
  const ModelServe& serve = state.serve[slot];
  if (serve.state != Serve::kReady || state.producer != ModelLink::kOpen) return;
  if (!serve.asked_now && Keeps(Rule::kAnswerOnceAskedAgain)) return;
  ModelMessage word{};
  word.slot = static_cast<uint8_t>(slot);
  word.generation = serve.generation;
  word.turn = serve.turn;
  word.serial = serve.serial;
  word.incarnation = serve.incarnation;
  const auto send = [&](ModelWord kind, Serve then, const char* what) {
    ModelState* s = Emit(state, absl::StrCat("the producer answers slot ", slot, " with ", what));
    word.kind = kind;
    PushWord(&s->to_consumer, word);
    const bool needs = then == Serve::kNeeds;
    Do(s, slot, needs ? ServeDeed::kAsksForRoom : ServeDeed::kAnswers, then);
    if (!needs && !Keeps(Rule::kKeepUntilAccepted)) Release(s, slot);
  };
  if (serve.serial == 0) {
    send(ModelWord::kFailed, Serve::kSent, "a failure");
  } else if (serve.destination) {
    send(ModelWord::kWrite, Serve::kSent, "a write");
  } else {
    send(ModelWord::kTensor, Serve::kSent, "a small tensor");
    send(ModelWord::kNeed, Serve::kNeeds, "the size of a large one");
  }
}

void SlotSteps::ProducerActs(const ModelState& state) {
  for (int slot = 0; slot < options_.slots; ++slot) {
    const ModelServe& serve = state.serve[slot];
    if (state.accepted[slot].under_way && state.producer == ModelLink::kOpen) {
      ModelState* s =
          Emit(state, absl::StrCat("the producer hears that slot ", slot, " was accepted"));
      s->accepted[slot] = ModelAccepted();
      if (serve.state == Serve::kSent && serve.generation == state.accepted[slot].generation) {
        Note(*s, slot, ServeDeed::kHearsAccepted, Serve::kFree);
        Release(s, slot);
      }
    }
    if (serve.state == Serve::kTaking && serve.met) {
      ModelState* s = Emit(state, absl::StrCat("the poller hears of the take of slot ", slot));
      if (!serve.next) {
        Do(s, slot, ServeDeed::kMeets, Serve::kReady);
      } else {
        ModelMessage request{};
        request.generation = serve.next_generation;
        request.turn = serve.next_turn;
        request.destination = serve.next_destination;
        request.incarnation = serve.next_incarnation;
        Release(s, slot);
        StartTake(s, slot, request);
      }
    }
    if (serve.state == Serve::kTaking && !serve.met && state.failures < options_.failures) {
      ModelState* s = Emit(state, absl::StrCat("the take of slot ", slot, " fails"));
      ++s->failures;
      LeaveLine(s, serve.turn);
      s->serve[slot].met = 1;
    }
    ProducerAnswers(state, slot);
  }
  // One Send for each fetch, and one more for each tensor that an early end has lost.
  const bool wanted = state.line_count > 0 && state.taken == state.sent;
  if (state.sent < options_.fetches || (wanted && state.sent < 2 * options_.fetches)) {
    ModelState* s = Emit(state, "Send");
    ++s->sent;
    Match(s);
  }
}

}  // namespace tryst
