#ifndef TRYST_TESTS_MODEL_SLOT_STEPS_H_
#define TRYST_TESTS_MODEL_SLOT_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/slot_edges.h"
#include "tests/model/slot_model.h"

namespace tryst {

// A state of the model. It consists of bytes only, so that a state is its own key.
inline constexpr int kModelSlots = 2;
inline constexpr int kModelFetches = 4;
inline constexpr int kModelMessages = 12;

enum class ModelWord : uint8_t {
  kRequest,
  kCancel,
  kPark,
  kReplayed,
  kNeed,
  kTensor,
  kWrite,
  kFailed,
  kParked,
  kGone
};
enum class ModelLink : uint8_t { kDown, kOpen, kBroken };
enum class ModelEnd : uint8_t { kNot, kOk, kEarly, kFailed };

struct ModelMessage {
  ModelWord kind;
  uint8_t slot, generation, turn, destination, again, serial, incarnation;
};
struct ModelAsk {
  Ask state;
  uint8_t generation, turn, destination, again, said, incarnation;
  uint8_t by_write, serial;  // In kAnswered. Serial 0: a failure.
};
struct ModelServe {
  Serve state;
  uint8_t generation, turn, destination, serial, asked_now, incarnation, met;
  // Used where a rule is left out.
  uint8_t next, next_generation, next_turn, next_destination, next_incarnation;
};
// An acceptance in the ack page, which messages may overtake.
struct ModelAccepted {
  uint8_t under_way, generation;
};
struct ModelQueue {
  uint8_t count;
  ModelMessage messages[kModelMessages];
};
struct ModelState {
  ModelAsk ask[kModelSlots];
  ModelServe serve[kModelSlots];
  ModelAccepted accepted[kModelSlots];
  ModelQueue to_producer, to_consumer;
  ModelLink consumer, producer;
  // How many of each have happened.
  uint8_t breaks, restarts, cancels, digests, parks, failures, farewells;
  uint8_t started, sent, taken, incarnation, known_incarnation;
  uint8_t telling;   // It has reconnected, and must still say REPLAYED.
  uint8_t farewell;  // The producer has let go of all slots; its answer is under way.
  uint8_t line[kModelFetches], line_count;  // Takes that wait, by the turn of their fetch.
  uint8_t parked[kModelFetches];            // At the producer. 1: it waits; 2: it has met its Send.
  uint8_t parked_serial[kModelFetches];
  uint8_t parked_named[kModelFetches];  // The consumer has named it in this epoch.
  uint8_t asleep[kModelFetches];        // At the consumer: the fetch waits without a slot.
  ModelEnd end[kModelFetches];
  uint8_t got[kModelFetches];  // Serials, from 1.
  uint8_t early;               // A fetch was cancelled or aborted.
};
ModelState FirstModelState();

// The result of one step.
struct ModelNext {
  ModelState state;
  std::string label;
  std::string error;  // The promise that the step breaks; empty: none.
};

class SlotSteps {
 public:
  // `edges` counts what each step does to a slot; may be null.
  SlotSteps(const SlotModelOptions& options, SlotEdges* edges);

  // All steps that are possible in `state`.
  std::vector<ModelNext> Expand(const ModelState& state);
  // What is wrong with `state`, in which nothing more can happen; empty if nothing is.
  std::string AtRest(const ModelState& state) const;

 private:
  bool Keeps(Rule rule) const { return !without_[static_cast<size_t>(rule)]; }
  ModelState* Emit(const ModelState& state, std::string label);
  void Fail(std::string error);
  void Move(ModelState* s, int slot, AskStep step, Ask to);
  void Note(const ModelState& s, int slot, ServeDeed deed, Serve to);
  void Do(ModelState* s, int slot, ServeDeed deed, Serve to);

  // slot_consumer.cc
  void ConsumerAsks(const ModelState& state);
  void ConsumerCancels(const ModelState& state);
  void ConsumerTells(const ModelState& state);
  void ConsumerGoesOn(const ModelState& state);
  void ConsumerHears(const ModelState& state);
  void SendRequest(ModelState* s, int slot, uint8_t destination);
  void SayCancel(ModelState* s, int slot);
  void Leave(ModelState* s, int slot);
  void Finish(ModelState* s, int turn, ModelEnd end, uint8_t serial);
  void GiveBack(ModelState* s, int slot, AskStep step);
  void Accept(ModelState* s, int slot);
  void BreakConsumer(ModelState* s);
  void ForgetAsked(ModelState* s, ModelEnd end);

  // slot_producer.cc
  void ProducerActs(const ModelState& state);
  void ProducerAnswers(const ModelState& state, int slot);
  void ProducerHears(const ModelState& state);
  void HearRequest(ModelState* s, const ModelMessage& request);
  void HearCancel(ModelState* s, const ModelMessage& cancel);
  void HearReplayed(ModelState* s, uint8_t waiting);
  void StartTake(ModelState* s, int slot, const ModelMessage& request);
  void Release(ModelState* s, int slot);
  void DropParked(ModelState* s, int turn);
  void Match(ModelState* s);

  // slot_steps.cc
  void WorldActs(const ModelState& state);
  void Connect(const ModelState& state);
  void SayFarewell(const ModelState& state);
  void Restart(const ModelState& state);

  const SlotModelOptions options_;
  SlotEdges* const edges_;
  bool without_[kRuleCount] = {};
  std::vector<ModelNext> nexts_;
};

// ---- For the parts of SlotSteps ----
void PushWord(ModelQueue* queue, const ModelMessage& message);
ModelMessage PopWord(ModelQueue* queue);

}  // namespace tryst

#endif  // TRYST_TESTS_MODEL_SLOT_STEPS_H_
