#include "tests/model/slot_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {

ModelState FirstModelState() {
  ModelState start;
  memset(static_cast<void*>(&start), 0, sizeof(start));
  start.consumer = start.producer = ModelLink::kOpen;
  start.incarnation = start.known_incarnation = 1;
  return start;
}

void PushWord(ModelQueue* queue, const ModelMessage& message) {
  if (queue->count < kModelMessages) queue->messages[queue->count++] = message;
}

ModelMessage PopWord(ModelQueue* queue) {
  const ModelMessage first = queue->messages[0];
  std::copy(queue->messages + 1, queue->messages + queue->count, queue->messages);
  queue->messages[--queue->count] = ModelMessage();
  return first;
}

SlotSteps::SlotSteps(const SlotModelOptions& options, SlotEdges* edges)
    : options_(options), edges_(edges) {
  for (Rule rule : options.without) without_[static_cast<size_t>(rule)] = true;
}

std::vector<ModelNext> SlotSteps::Expand(const ModelState& state) {
  nexts_.clear();
  ConsumerAsks(state);
  ConsumerCancels(state);
  ConsumerTells(state);
  ConsumerGoesOn(state);
  ProducerActs(state);
  ConsumerHears(state);
  ProducerHears(state);
  WorldActs(state);
  return std::move(nexts_);
}

std::string SlotSteps::AtRest(const ModelState& state) const {
  for (int turn = 0; turn < options_.fetches; ++turn) {
    if (state.end[turn] == ModelEnd::kNot) return absl::StrCat("fetch ", turn, " never ends");
    if (state.parked[turn] != 0) {
      return absl::StrCat("the producer keeps fetch ", turn, " parked for ever");
    }
  }
  for (int slot = 0; slot < options_.slots; ++slot) {
    if (state.ask[slot].state != Ask::kIdle) return absl::StrCat("slot ", slot, " is never free");
    if (state.serve[slot].state != Serve::kFree) {
      return absl::StrCat("the producer keeps slot ", slot, " for ever");
    }
  }
  return "";
}

ModelState* SlotSteps::Emit(const ModelState& state, std::string label) {
  nexts_.push_back({state, std::move(label), ""});
  return &nexts_.back().state;
}

void SlotSteps::Fail(std::string error) {
  if (nexts_.back().error.empty()) nexts_.back().error = std::move(error);
}

void SlotSteps::Move(ModelState* s, int slot, AskStep step, Ask to) {
  Ask& state = s->ask[slot].state;
  if (edges_ != nullptr) ++(*edges_)[Edge(state, step, to)];
  state = to;
}

void SlotSteps::Note(const ModelState& s, int slot, ServeDeed deed, Serve to) {
  const ModelServe& serve = s.serve[slot];
  if (edges_ != nullptr) ++(*edges_)[Edge(serve.state, serve.asked_now != 0, deed, to)];
}

void SlotSteps::Do(ModelState* s, int slot, ServeDeed deed, Serve to) {
  Note(*s, slot, deed, to);
  s->serve[slot].state = to;
}

// ---- What goes wrong ----

void SlotSteps::WorldActs(const ModelState& state) {
  if (state.consumer == ModelLink::kOpen && state.breaks < options_.breaks) {
    ModelState* s = Emit(state, "the consumer's queue pair breaks");
    ++s->breaks;
    BreakConsumer(s);
    for (int slot = 0; slot < options_.slots && !Keeps(Rule::kReleaseOnDrained); ++slot) {
      ModelAsk& ask = s->ask[slot];
      if (ask.state == Ask::kFencedEnding) GiveBack(s, slot, AskStep::kFrees);
      if (ask.state == Ask::kFenced) ask.destination = 0;
    }
  }
  if (state.consumer == ModelLink::kBroken) {
    ModelState* s = Emit(state, "the consumer's queue pair has drained");
    s->consumer = ModelLink::kDown;
    s->to_consumer = ModelQueue();
    for (int slot = 0; slot < options_.slots; ++slot) {
      ModelAsk& ask = s->ask[slot];
      if (ask.state == Ask::kFencedEnding) {
        // The producer may hold the tensor for it, so it is cancelled over the next connection.
        Move(s, slot, AskStep::kDrains, Ask::kLeaving);
        ask.said = 0;
      }
      if (ask.state != Ask::kFenced) continue;
      Move(s, slot, AskStep::kDrains, Ask::kQueued);
      ask.again = 1;
    }
  }
  if (state.producer == ModelLink::kOpen && state.consumer != ModelLink::kOpen) {
    ModelState* s = Emit(state, "the producer's queue pair breaks and drains");
    s->producer = ModelLink::kDown;
    s->to_producer = ModelQueue();
    std::fill(s->accepted, s->accepted + kModelSlots, ModelAccepted());
  }
  if (state.consumer == ModelLink::kDown && state.producer == ModelLink::kDown) Connect(state);
  if (state.consumer == ModelLink::kDown) SayFarewell(state);
  if (state.restarts < options_.restarts) Restart(state);
}

void SlotSteps::Connect(const ModelState& state) {
  ModelState* s = Emit(state, "both connect anew");
  s->consumer = s->producer = ModelLink::kOpen;
  s->to_consumer = s->to_producer = ModelQueue();  // Messages of queue pairs that are gone.
  s->farewell = 0;
  for (int slot = 0; slot < options_.slots; ++slot) s->serve[slot].asked_now = 0;
  std::fill(s->parked_named, s->parked_named + kModelFetches, uint8_t{0});
  const bool other_life = s->known_incarnation != s->incarnation;
  s->known_incarnation = s->incarnation;
  if (other_life && Keeps(Rule::kCheckIncarnation)) ForgetAsked(s, ModelEnd::kFailed);
  for (int slot = 0; slot < options_.slots; ++slot) {
    s->ask[slot].said = 0;
    // The first acknowledgement says of each slot that its former use is over. It may overtake
    // words.
    s->accepted[slot] = {1, static_cast<uint8_t>((s->ask[slot].generation + 7) % 8)};
  }
  s->telling = 1;
}

// The consumer moves to another path. The producer frees all slots and gives back what it has
// taken. Its answer may be lost; then the consumer comes back.
void SlotSteps::SayFarewell(const ModelState& state) {
  if (state.farewell) {
    ModelState* s = Emit(state, "the consumer hears that it may leave");
    s->farewell = 0;
    ForgetAsked(s, ModelEnd::kEarly);
    return;
  }
  if (state.farewells == options_.farewells) return;
  ModelState* s = Emit(state, "the producer hears that the consumer leaves");
  ++s->farewells;
  s->farewell = s->early = 1;
  s->producer = ModelLink::kDown;
  s->to_producer = ModelQueue();
  std::fill(s->accepted, s->accepted + kModelSlots, ModelAccepted());
  for (int slot = 0; slot < options_.slots; ++slot) {
    if (s->serve[slot].state == Serve::kFree) continue;
    Note(*s, slot, ServeDeed::kLetsGo, Serve::kFree);
    Release(s, slot);
  }
  for (int turn = 0; turn < options_.fetches; ++turn) DropParked(s, turn);
}

void SlotSteps::Restart(const ModelState& state) {
  ModelState* s = Emit(state, "the producer dies, another takes its place");
  ++s->restarts;
  ++s->incarnation;
  s->early = 1;
  s->producer = ModelLink::kDown;
  s->farewell = 0;
  s->to_producer = ModelQueue();
  std::fill(s->accepted, s->accepted + kModelSlots, ModelAccepted());
  for (ModelServe& serve : s->serve) serve = ModelServe();
  for (int turn = 0; turn < kModelFetches; ++turn) {
    s->parked[turn] = s->parked_serial[turn] = s->parked_named[turn] = 0;
  }
  std::fill(s->line, s->line + kModelFetches, uint8_t{0});
  s->line_count = 0;
  s->sent = s->taken;  // Sent tensors are lost. Serials go on, so that lives can be told apart.
  // The consumer gets nothing more, and notices.
  if (s->consumer == ModelLink::kOpen) BreakConsumer(s);
}

}  // namespace tryst
