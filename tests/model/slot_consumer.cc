#include "absl/strings/str_cat.h"
#include "tests/model/slot_steps.h"

// What the consumer of the model does.
namespace tryst {

void SlotSteps::SendRequest(ModelState* s, int slot, uint8_t destination) {
  ModelAsk& ask = s->ask[slot];
  Move(s, slot, AskStep::kAsks, Ask::kAsked);
  ask.destination = destination;
  ModelMessage request{};
  request.kind = ModelWord::kRequest;
  request.slot = static_cast<uint8_t>(slot);
  request.generation = ask.generation;
  request.turn = ask.turn;
  request.destination = destination;
  request.again = ask.again;
  request.incarnation = ask.incarnation;
  ask.again = ask.by_write = ask.serial = 0;
  PushWord(&s->to_producer, request);
}

void SlotSteps::SayCancel(ModelState* s, int slot) {
  ModelAsk& ask = s->ask[slot];
  ask.said = 1;
  ModelMessage cancel{};
  cancel.kind = ModelWord::kCancel;
  cancel.slot = static_cast<uint8_t>(slot);
  cancel.generation = ask.generation;
  cancel.turn = ask.turn;
  PushWord(&s->to_producer, cancel);
}

// Gives up a request. If the connection still has messages to tell, the CANCEL goes in its turn.
void SlotSteps::Leave(ModelState* s, int slot) {
  ModelAsk& ask = s->ask[slot];
  Move(s, slot, AskStep::kCancels, Ask::kLeaving);
  ask.said = ask.by_write = ask.serial = 0;
  if (s->consumer == ModelLink::kOpen && !s->telling) SayCancel(s, slot);
  if (!Keeps(Rule::kReleaseOnLastWord)) GiveBack(s, slot, AskStep::kFrees);
}

void SlotSteps::GiveBack(ModelState* s, int slot, AskStep step) {
  Move(s, slot, step, Ask::kIdle);
  ModelAsk& ask = s->ask[slot];
  const uint8_t generation = static_cast<uint8_t>((ask.generation + 1) % 8);
  ask = ModelAsk();
  ask.generation = generation;
}

void SlotSteps::Finish(ModelState* s, int turn, ModelEnd end, uint8_t serial) {
  if (s->end[turn] != ModelEnd::kNot) return;
  s->end[turn] = end;
  if (end != ModelEnd::kOk) {
    s->early = 1;
    return;
  }
  for (int other = 0; other < kModelFetches; ++other) {
    if (s->end[other] != ModelEnd::kOk || other == turn || s->got[other] == 0) continue;
    if (s->got[other] == serial) Fail("a tensor came twice");
    // After a farewell whose answer was lost, a tensor that was given back may come behind
    // another's.
    if ((other < turn) != (s->got[other] < serial) && s->farewells == 0) {
      Fail("tensors changed places");
    }
  }
  s->got[turn] = serial;
  if (s->early == 0 && serial != turn + 1) Fail("a tensor was lost");
}

void SlotSteps::ConsumerAsks(const ModelState& state) {
  if (state.consumer != ModelLink::kOpen || state.telling) return;
  int free = -1;  // It does not matter which of the free slots is used.
  for (int slot = options_.slots - 1; slot >= 0; --slot) {
    if (state.ask[slot].state == Ask::kIdle) free = slot;
  }
  if (free < 0) return;
  // Parked fetches whose tensor is at the producer go first.
  for (int turn = 0; turn < options_.fetches; ++turn) {
    if (!state.asleep[turn] || state.parked[turn] != 2 || state.end[turn] != ModelEnd::kNot) {
      continue;
    }
    for (uint8_t destination = 0; destination < 2; ++destination) {
      ModelState* s = Emit(state, absl::StrCat("fetch ", turn, " is here and claims slot ", free));
      s->asleep[turn] = 0;
      s->ask[free].turn = static_cast<uint8_t>(turn);
      s->ask[free].incarnation = s->incarnation;
      SendRequest(s, free, destination);
    }
    return;
  }
  if (state.started == options_.fetches) return;
  for (uint8_t destination = 0; destination < 2; ++destination) {
    ModelState* s = Emit(state, absl::StrCat("fetch on slot ", free,
                                             destination ? " with" : " without", " a destination"));
    s->ask[free].turn = s->started++;
    s->ask[free].incarnation = s->incarnation;
    SendRequest(s, free, destination);
  }
}

void SlotSteps::ConsumerCancels(const ModelState& state) {
  if (state.cancels >= options_.cancels) return;
  for (int turn = 0; turn < options_.fetches; ++turn) {
    if (!state.asleep[turn]) continue;
    ModelState* s = Emit(state, absl::StrCat("cancel fetch ", turn, ", which is parked"));
    ++s->cancels;
    s->asleep[turn] = 0;
    Finish(s, turn, ModelEnd::kEarly, 0);
    DropParked(s, turn);
  }
  for (int slot = 0; slot < options_.slots; ++slot) {
    switch (state.ask[slot].state) {
      case Ask::kQueued:
      case Ask::kAsked:
      case Ask::kRoom:
      case Ask::kAnswered:
      case Ask::kFenced:
        break;
      default:
        continue;
    }
    ModelState* s = Emit(state, absl::StrCat("cancel slot ", slot));
    ++s->cancels;
    Finish(s, s->ask[slot].turn, ModelEnd::kEarly, 0);
    if (s->ask[slot].state == Ask::kFenced) {
      Move(s, slot, AskStep::kCancels, Ask::kFencedEnding);
    } else {
      Leave(s, slot);
    }
  }
}

// After a reconnect: requests and cancels again, in the order of the requests, then says REPLAYED.
void SlotSteps::ConsumerTells(const ModelState& state) {
  if (!state.telling || state.consumer != ModelLink::kOpen) return;
  for (int turn = 0; turn < options_.fetches; ++turn) {
    for (int slot = 0; slot < options_.slots; ++slot) {
      const ModelAsk& ask = state.ask[slot];
      if (ask.turn != turn) continue;
      if (ask.state == Ask::kQueued) {
        ModelState* s = Emit(state, absl::StrCat("slot ", slot, " is asked for again"));
        if (Keeps(Rule::kReplay)) return SendRequest(s, slot, ask.destination);
        s->ask[slot].state = Ask::kAsked;
        return;
      }
      if (ask.state == Ask::kLeaving && !ask.said) {
        ModelState* s = Emit(state, absl::StrCat("slot ", slot, " is cancelled over the new link"));
        return SayCancel(s, slot);
      }
    }
  }
  ModelState* s = Emit(state, "the consumer says REPLAYED");
  s->telling = 0;
  ModelMessage replayed{};
  replayed.kind = ModelWord::kReplayed;
  for (int turn = 0; turn < options_.fetches; ++turn) {  // WAITS.
    replayed.serial |= static_cast<uint8_t>(state.asleep[turn] << turn);
  }
  PushWord(&s->to_producer, replayed);
}

void SlotSteps::Accept(ModelState* s, int slot) {
  const ModelAsk ask = s->ask[slot];
  Finish(s, ask.turn, ask.serial == 0 ? ModelEnd::kFailed : ModelEnd::kOk, ask.serial);
  s->accepted[slot] = {1, ask.generation};
  GiveBack(s, slot, AskStep::kAccepts);
}

void SlotSteps::ConsumerGoesOn(const ModelState& state) {
  for (int slot = 0; slot < options_.slots; ++slot) {
    const ModelAsk& ask = state.ask[slot];
    if (ask.state == Ask::kLeft) {
      GiveBack(Emit(state, absl::StrCat("slot ", slot, " is free")), slot, AskStep::kFrees);
    }
    if (state.consumer != ModelLink::kOpen) continue;
    if (ask.state == Ask::kAnswered) {
      Accept(Emit(state, absl::StrCat("slot ", slot, " is accepted")), slot);
      if (ask.by_write && state.digests < options_.digests) {
        ModelState* s = Emit(state, absl::StrCat("slot ", slot, " has a wrong digest"));
        ++s->digests;
        s->ask[slot].again = 1;
        SendRequest(s, slot, ask.destination);
      }
    }
    if (ask.state == Ask::kRoom) {
      ModelState* s = Emit(state, absl::StrCat("slot ", slot, " has room"));
      SendRequest(s, slot, 1);
    }
    if (ask.state == Ask::kAsked && state.parks < options_.parks) {
      ModelState* s = Emit(state, absl::StrCat("slot ", slot, " is to be parked"));
      ++s->parks;
      ModelMessage park{};
      park.kind = ModelWord::kPark;
      park.slot = static_cast<uint8_t>(slot);
      park.generation = ask.generation;
      park.turn = ask.turn;
      PushWord(&s->to_producer, park);
    }
  }
}

void SlotSteps::ConsumerHears(const ModelState& state) {
  if (state.to_consumer.count == 0 || state.consumer == ModelLink::kDown) return;
  const ModelMessage first = state.to_consumer.messages[0];
  ModelState* s = Emit(state, absl::StrCat("the consumer's next message arrives, of kind ",
                                           static_cast<int>(first.kind), " for slot ", first.slot));
  PopWord(&s->to_consumer);
  const int slot = first.slot;
  ModelAsk& ask = s->ask[slot];
  if (first.kind == ModelWord::kWrite) {
    // Bytes land whether or not anybody reads the answer, even if the queue pair is broken and has
    // not drained.
    if (ask.state == Ask::kIdle || ask.turn != first.turn || !ask.destination) {
      Fail("a write landed in memory that was given back");
    }
  }
  if (state.consumer == ModelLink::kBroken) return;  // Nobody reads the rest.
  const bool ghost = ask.state == Ask::kIdle ||
                     (Keeps(Rule::kCheckGeneration) && ask.generation != first.generation);
  if (ghost) return;
  const AskStep step = first.kind == ModelWord::kNeed     ? AskStep::kHearsNeed
                       : first.kind == ModelWord::kFailed ? AskStep::kHearsFailed
                       : first.kind == ModelWord::kParked ? AskStep::kHearsParked
                       : first.kind == ModelWord::kGone   ? AskStep::kHearsGone
                                                          : AskStep::kHearsTensor;
  if (ask.state == Ask::kLeaving) {
    const bool last = step == AskStep::kHearsGone || !Keeps(Rule::kHoldSlotUntilGone);
    Move(s, slot, step, last ? Ask::kLeft : Ask::kLeaving);
    if (step == AskStep::kHearsParked) DropParked(s, first.turn);  // UNWANTED.
    return;
  }
  if (ask.state != Ask::kAsked) return Fail("an answer to what was not asked");
  switch (step) {
    case AskStep::kHearsNeed:
      return Move(s, slot, step, Ask::kRoom);
    case AskStep::kHearsGone:
      return Fail("the end of what was not cancelled");
    case AskStep::kHearsParked:
      s->asleep[ask.turn] = 1;
      return GiveBack(s, slot, step);
    default:
      if (step == AskStep::kHearsTensor && first.incarnation != ask.incarnation) {
        Fail("a tensor of another incarnation");
      }
      Move(s, slot, step, Ask::kAnswered);
      ask.serial = first.serial;
      ask.by_write = first.kind == ModelWord::kWrite;
  }
}

void SlotSteps::BreakConsumer(ModelState* s) {
  s->consumer = ModelLink::kBroken;
  s->telling = 0;
  for (int slot = 0; slot < options_.slots; ++slot) {
    ModelAsk& ask = s->ask[slot];
    const bool over = ask.state == Ask::kLeaving || ask.state == Ask::kLeft;
    if (ask.state == Ask::kIdle || ask.state == Ask::kFenced) continue;
    if (ask.state == Ask::kQueued) {
      Move(s, slot, AskStep::kBreaks, Ask::kQueued);
      continue;
    }
    Move(s, slot, AskStep::kBreaks, over ? Ask::kFencedEnding : Ask::kFenced);
    ask.by_write = ask.serial = 0;
  }
}

// There is no link, and the producer that was asked no longer has anything for the fetch.
void SlotSteps::ForgetAsked(ModelState* s, ModelEnd end) {
  for (int slot = 0; slot < options_.slots; ++slot) {
    const ModelAsk& ask = s->ask[slot];
    if (ask.state != Ask::kQueued && ask.state != Ask::kLeaving) continue;
    if (ask.state == Ask::kQueued) Finish(s, ask.turn, end, 0);
    GiveBack(s, slot, AskStep::kForgets);
  }
  for (int turn = 0; turn < options_.fetches; ++turn) {
    if (!s->asleep[turn]) continue;
    s->asleep[turn] = 0;
    Finish(s, turn, end, 0);
  }
}

}  // namespace tryst
