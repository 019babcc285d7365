#include "tests/model/slot_model.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr int kSlots = 2;
constexpr int kFetches = 4;
constexpr int kMessages = 12;

enum class Ask : uint8_t { kIdle, kQueued, kAsked, kLeaving, kFenced };
enum class Serve : uint8_t { kFree, kTaking, kReady, kNeeds, kSent };
enum class Kind : uint8_t {
  kRequest,
  kCancel,
  kReplayed,
  kAccepted,
  kNeed,
  kTensor,
  kWrite,
  kFailed,
  kGone
};
enum class Link : uint8_t { kDown, kOpen, kBroken };
enum class End : uint8_t { kNot, kOk, kEarly, kFailed };

// Bytes only, so that a state is its own key.
struct Message {
  Kind kind;
  uint8_t slot, generation, turn, destination, again, serial, incarnation;
};
struct Asking {
  Ask state;
  uint8_t generation, turn, destination, again, ending, incarnation;
};
struct Serving {
  Serve state;
  uint8_t generation, turn, destination, serial, asked_now, incarnation, met;
  uint8_t next, next_generation, next_turn, next_destination, next_incarnation;  // A mutant's.
};
struct Queue {
  uint8_t count;
  Message messages[kMessages];
};
struct State {
  Asking ask[kSlots];
  Serving serve[kSlots];
  Queue to_producer, to_consumer;
  Link consumer, producer;
  uint8_t breaks, restarts, cancels, started, sent, taken, incarnation, known_incarnation,
      met_before;
  uint8_t line[kSlots], line_count;  // Takes that wait, by slot.
  End end[kFetches];
  uint8_t got[kFetches];  // Serials, from 1.
  uint8_t early;          // Somebody ended early or was aborted.
  uint8_t orphan_serial;  // Met by a take that was let go of.
};

struct Next {
  State state;
  std::string label;
  std::string error;
};

class Explorer {
 public:
  explicit Explorer(const SlotModelOptions& options) : options_(options) {
    for (Rule rule : options.without) without_[static_cast<size_t>(rule)] = true;
  }
  SlotModelReport Run();

 private:
  bool Keeps(Rule rule) const { return !without_[static_cast<size_t>(rule)]; }
  void Expand(const State& state);
  State* Emit(const State& state, std::string label) {
    nexts_.push_back({state, std::move(label), ""});
    return &nexts_.back().state;
  }
  void Fail(std::string error) {
    if (nexts_.back().error.empty()) nexts_.back().error = std::move(error);
  }
  static void Push(Queue* queue, const Message& message) {
    if (queue->count < kMessages) queue->messages[queue->count++] = message;
  }
  static Message Pop(Queue* queue) {
    const Message first = queue->messages[0];
    std::copy(queue->messages + 1, queue->messages + queue->count, queue->messages);
    queue->messages[--queue->count] = Message();
    return first;
  }

  void ConsumerActs(const State& state);
  void ProducerActs(const State& state);
  void WorldActs(const State& state);
  void ProducerHears(const State& state);
  void ConsumerHears(const State& state);

  void SendRequest(State* s, int slot, uint8_t destination);
  void Finish(State* s, int slot, End end, uint8_t serial);
  void GiveBack(State* s, int slot);
  void StartTake(State* s, int slot, const Message& request);
  void Release(State* s, int slot);
  void Match(State* s);
  void CheckAtRest(const State& state, std::string* error) const;

  const SlotModelOptions options_;
  bool without_[kRuleCount] = {};
  std::vector<Next> nexts_;
  SlotModelReport report_;
};

// ---- The consumer ----

void Explorer::SendRequest(State* s, int slot, uint8_t destination) {
  Asking& ask = s->ask[slot];
  ask.state = Ask::kAsked;
  ask.destination = destination;
  Message request{};
  request.kind = Kind::kRequest;
  request.slot = static_cast<uint8_t>(slot);
  request.generation = ask.generation;
  request.turn = ask.turn;
  request.destination = destination;
  request.again = ask.again;
  request.incarnation = ask.incarnation;
  ask.again = 0;
  Push(&s->to_producer, request);
}

void Explorer::GiveBack(State* s, int slot) {
  Asking& ask = s->ask[slot];
  const uint8_t generation = static_cast<uint8_t>((ask.generation + 1) % 8);
  ask = Asking();
  ask.generation = generation;
}

void Explorer::Finish(State* s, int slot, End end, uint8_t serial) {
  const uint8_t turn = s->ask[slot].turn;
  if (s->end[turn] == End::kNot) {
    s->end[turn] = end;
    if (end != End::kOk) s->early = 1;
    if (end == End::kOk) {
      for (int other = 0; other < kFetches; ++other) {
        if (s->end[other] != End::kOk || other == turn || s->got[other] == 0) continue;
        if (s->got[other] == serial) Fail("a tensor came twice");
        if ((other < turn) != (s->got[other] < serial)) Fail("tensors changed places");
      }
      s->got[turn] = serial;
      if (s->early == 0 && serial != turn + 1) Fail("a tensor was lost");
    }
  }
}

void Explorer::ConsumerActs(const State& state) {
  if (state.started < options_.fetches) {
    for (int slot = 0; slot < options_.slots; ++slot) {
      if (state.ask[slot].state != Ask::kIdle || state.consumer != Link::kOpen) continue;
      // Those that wait in slots already go first.
      bool others_first = false;
      for (int other = 0; other < options_.slots; ++other) {
        others_first |= state.ask[other].state == Ask::kQueued;
      }
      if (others_first) continue;
      for (uint8_t destination = 0; destination < 2; ++destination) {
        State* s = Emit(state, absl::StrCat("fetch on slot ", slot,
                                            destination ? " with" : " without", " a destination"));
        s->ask[slot].turn = s->started++;
        s->ask[slot].incarnation = s->incarnation;
        SendRequest(s, slot, destination);
      }
      break;  // Which of the free slots is no matter.
    }
  }
  for (int slot = 0; slot < options_.slots; ++slot) {
    const Asking& ask = state.ask[slot];
    if (state.cancels >= options_.cancels || ask.ending) continue;
    if (ask.state == Ask::kQueued || ask.state == Ask::kFenced) {
      State* s = Emit(state, absl::StrCat("cancel slot ", slot, " between connections"));
      ++s->cancels;
      Finish(s, slot, End::kEarly, 0);
      if (ask.state == Ask::kQueued) {
        GiveBack(s, slot);
      } else {
        s->ask[slot].ending = 1;
      }
    } else if (ask.state == Ask::kAsked && state.consumer == Link::kOpen) {
      State* s = Emit(state, absl::StrCat("cancel slot ", slot));
      ++s->cancels;
      Finish(s, slot, End::kEarly, 0);
      Message cancel{};
      cancel.kind = Kind::kCancel;
      cancel.slot = static_cast<uint8_t>(slot);
      cancel.generation = ask.generation;
      cancel.turn = ask.turn;
      Push(&s->to_producer, cancel);
      if (Keeps(Rule::kReleaseOnLastWord)) {
        s->ask[slot].state = Ask::kLeaving;
      } else {
        GiveBack(s, slot);
      }
    }
  }
}

void Explorer::ConsumerHears(const State& state) {
  if (state.to_consumer.count == 0 || state.consumer == Link::kDown) return;
  const Message first = state.to_consumer.messages[0];
  State* s = Emit(state, absl::StrCat("the consumer's next message arrives, of kind ",
                                      static_cast<int>(first.kind), " for slot ", first.slot));
  Pop(&s->to_consumer);
  const int slot = first.slot;
  const Asking ask = s->ask[slot];
  if (first.kind == Kind::kWrite) {
    // Bytes land before anybody looks, also when the queue pair is broken and not drained.
    if (ask.state == Ask::kIdle || ask.turn != first.turn || !ask.destination) {
      Fail("a write landed in memory that was given back");
    }
  }
  if (state.consumer == Link::kBroken) return;  // Nobody reads the rest.
  const bool ghost = ask.state == Ask::kIdle ||
                     (Keeps(Rule::kCheckGeneration) && ask.generation != first.generation);
  if (ghost) return;
  if (ask.state == Ask::kLeaving) {
    if (first.kind == Kind::kGone || !Keeps(Rule::kHoldSlotUntilGone)) GiveBack(s, slot);
    return;
  }
  if (ask.state != Ask::kAsked) return Fail("an answer to what was not asked");
  if (first.kind == Kind::kNeed) return SendRequest(s, slot, 1);
  if (first.kind == Kind::kGone) return Fail("the end of what was not cancelled");
  if (first.kind == Kind::kFailed) {
    Finish(s, slot, End::kFailed, 0);
  } else {
    if (first.incarnation != ask.incarnation) Fail("a tensor of another incarnation");
    Finish(s, slot, End::kOk, first.serial);
  }
  Message accepted{};
  accepted.kind = Kind::kAccepted;
  accepted.slot = first.slot;
  accepted.generation = ask.generation;
  accepted.turn = ask.turn;
  GiveBack(s, slot);
  Push(&s->to_producer, accepted);
}

// ---- The producer ----

// Sends meet waiting takes at once and in order; the poller hears of it later.
void Explorer::Match(State* s) {
  while (s->line_count > 0 && s->taken < s->sent) {
    const int slot = s->line[0];
    std::copy(s->line + 1, s->line + s->line_count, s->line);
    s->line[--s->line_count] = 0;
    s->serve[slot].serial = ++s->taken;
    s->serve[slot].met = 1;
  }
}

void Explorer::StartTake(State* s, int slot, const Message& request) {
  Serving& serve = s->serve[slot];
  const uint8_t asked_now = 1;
  serve = Serving();
  serve.state = Serve::kTaking;
  serve.generation = request.generation;
  serve.turn = request.turn;
  serve.destination = request.destination;
  serve.incarnation = s->incarnation;
  serve.asked_now = asked_now;
  if (request.incarnation != s->incarnation) {
    serve.met = 1;  // Fails: the key names another incarnation.
    serve.serial = Keeps(Rule::kCheckIncarnation) ? 0 : serve.serial;
    if (Keeps(Rule::kCheckIncarnation)) return;
    serve.met = 0;
  }
  s->line[s->line_count++] = static_cast<uint8_t>(slot);
  Match(s);
}

// The consumer wants it no more. A take that has met its tensor takes it along.
void Explorer::Release(State* s, int slot) {
  Serving& serve = s->serve[slot];
  if (serve.state == Serve::kTaking && !serve.met) {
    uint8_t* const end = std::remove(s->line, s->line + s->line_count, static_cast<uint8_t>(slot));
    s->line_count = static_cast<uint8_t>(end - s->line);
    std::fill(s->line + s->line_count, s->line + kSlots, uint8_t{0});
  }
  const uint8_t generation = serve.generation;
  serve = Serving();
  serve.generation = generation;
}

void Explorer::ProducerHears(const State& state) {
  if (state.to_producer.count == 0 || state.producer != Link::kOpen) return;
  const Message first = state.to_producer.messages[0];
  State* s = Emit(state, absl::StrCat("the producer's next message arrives, of kind ",
                                      static_cast<int>(first.kind), " for slot ", first.slot));
  Pop(&s->to_producer);
  const int slot = first.slot;
  Serving& serve = s->serve[slot];
  const bool same = serve.generation == first.generation;
  if (first.kind == Kind::kAccepted) {
    if (serve.state == Serve::kSent && same) Release(s, slot);
    return;
  }
  if (first.kind == Kind::kReplayed) {
    if (!Keeps(Rule::kDropGivenUp)) return;
    for (int other = 0; other < options_.slots; ++other) {
      if (s->serve[other].state != Serve::kFree && !s->serve[other].asked_now) Release(s, other);
    }
    return;
  }
  if (first.kind == Kind::kCancel) {
    const bool late = serve.state == Serve::kFree || serve.state == Serve::kSent || !same;
    if (serve.state != Serve::kFree && same) Release(s, slot);
    if (late && !Keeps(Rule::kAnswerEveryCancel)) return;
    Message gone = first;
    gone.kind = Kind::kGone;
    Push(&s->to_consumer, gone);
    return;
  }
  // A request.
  const bool given_up = !same && !serve.asked_now;
  const bool known = same && serve.state != Serve::kFree && Keeps(Rule::kKnowReplay);
  serve.asked_now = 1;
  if (serve.state == Serve::kNeeds && same) {
    serve.destination = first.destination;
    serve.state = Serve::kReady;
    return;
  }
  if (known && first.again) {
    serve.destination = first.destination;
    if (serve.state == Serve::kSent) serve.state = Serve::kReady;
    return;
  }
  if (serve.state == Serve::kFree) return StartTake(s, slot, first);
  if (serve.state == Serve::kSent || given_up || !Keeps(Rule::kKnowReplay)) {
    if (serve.state == Serve::kTaking && serve.met && !Keeps(Rule::kFreeSlotAtOnce)) {
      // Waits until the poller has heard of the end.
      serve.next = 1;
      serve.next_generation = first.generation;
      serve.next_turn = first.turn;
      serve.next_destination = first.destination;
      serve.next_incarnation = first.incarnation;
      return;
    }
    Release(s, slot);
    return StartTake(s, slot, first);
  }
  Fail("a request on a slot that is taken");
}

void Explorer::ProducerActs(const State& state) {
  for (int slot = 0; slot < options_.slots; ++slot) {
    const Serving& serve = state.serve[slot];
    if (serve.state == Serve::kTaking && serve.met) {
      State* s = Emit(state, absl::StrCat("the poller hears of the take of slot ", slot));
      if (!serve.next) {
        s->serve[slot].state = Serve::kReady;
      } else {
        Message request{};
        request.generation = serve.next_generation;
        request.turn = serve.next_turn;
        request.destination = serve.next_destination;
        request.incarnation = serve.next_incarnation;
        Release(s, slot);
        StartTake(s, slot, request);
      }
    }
    if (serve.state != Serve::kReady || state.producer != Link::kOpen) continue;
    if (!serve.asked_now && Keeps(Rule::kAnswerOnceAskedAgain)) continue;
    Message word{};
    word.slot = static_cast<uint8_t>(slot);
    word.generation = serve.generation;
    word.turn = serve.turn;
    word.serial = serve.serial;
    word.incarnation = serve.incarnation;
    const auto send = [&](Kind kind, Serve then, const char* what) {
      State* s = Emit(state, absl::StrCat("the producer answers slot ", slot, " with ", what));
      word.kind = kind;
      Push(&s->to_consumer, word);
      s->serve[slot].state = then;
      if (then == Serve::kSent && !Keeps(Rule::kKeepUntilAccepted)) Release(s, slot);
    };
    if (serve.serial == 0) {
      send(Kind::kFailed, Serve::kSent, "a failure");
    } else if (serve.destination) {
      send(Kind::kWrite, Serve::kSent, "a write");
    } else {
      send(Kind::kTensor, Serve::kSent, "a small tensor");
      send(Kind::kNeed, Serve::kNeeds, "the size of a large one");
    }
  }
  // One Send for each fetch, and more where an early end has taken one along.
  const bool wanted = state.line_count > 0 && state.taken == state.sent;
  if (state.sent < options_.fetches || (wanted && state.sent < 2 * options_.fetches)) {
    State* s = Emit(state, "Send");
    ++s->sent;
    Match(s);
  }
}

// ---- What goes wrong ----

void Explorer::WorldActs(const State& state) {
  if (state.consumer == Link::kOpen && state.breaks < options_.breaks) {
    State* s = Emit(state, "the consumer's queue pair breaks");
    ++s->breaks;
    s->consumer = Link::kBroken;
    for (int slot = 0; slot < options_.slots; ++slot) {
      Asking& ask = s->ask[slot];
      if (ask.state == Ask::kIdle || ask.state == Ask::kQueued) continue;
      if (ask.state == Ask::kLeaving) ask.ending = 1;
      ask.state = Ask::kFenced;
      if (Keeps(Rule::kReleaseOnDrained)) continue;
      if (ask.ending) {
        GiveBack(s, slot);
      } else {
        ask.destination = 0;
      }
    }
  }
  if (state.consumer == Link::kBroken) {
    State* s = Emit(state, "the consumer's queue pair has drained");
    s->consumer = Link::kDown;
    s->to_consumer = Queue();
    for (int slot = 0; slot < options_.slots; ++slot) {
      Asking& ask = s->ask[slot];
      if (ask.state != Ask::kFenced) continue;
      if (ask.ending) {
        GiveBack(s, slot);
        continue;
      }
      ask.state = Ask::kQueued;
      ask.again = 1;
    }
  }
  if (state.producer == Link::kOpen && state.consumer != Link::kOpen) {
    State* s = Emit(state, "the producer's queue pair breaks and drains");
    s->producer = Link::kDown;
    s->to_producer = Queue();
  }
  if (state.consumer == Link::kDown && state.producer == Link::kDown) {
    State* s = Emit(state, "both connect anew");
    s->consumer = s->producer = Link::kOpen;
    s->to_consumer = s->to_producer = Queue();  // Of queue pairs that are gone.
    for (int slot = 0; slot < options_.slots; ++slot) s->serve[slot].asked_now = 0;
    const bool other_life = s->known_incarnation != s->incarnation && s->met_before;
    s->known_incarnation = s->incarnation;
    s->met_before = 1;
    // In the order of asking.
    for (int turn = 0; turn < options_.fetches; ++turn) {
      for (int slot = 0; slot < options_.slots; ++slot) {
        Asking& ask = s->ask[slot];
        if (ask.state != Ask::kQueued || ask.turn != turn) continue;
        if (other_life && Keeps(Rule::kCheckIncarnation)) {
          Finish(s, slot, End::kFailed, 0);
          GiveBack(s, slot);
        } else if (Keeps(Rule::kReplay)) {
          SendRequest(s, slot, ask.destination);
        } else {
          ask.state = Ask::kAsked;
        }
      }
    }
    Message replayed{};
    replayed.kind = Kind::kReplayed;
    Push(&s->to_producer, replayed);
  }
  if (state.restarts < options_.restarts) {
    State* s = Emit(state, "the producer dies, another takes its place");
    ++s->restarts;
    ++s->incarnation;
    s->early = 1;
    s->producer = Link::kDown;
    s->to_producer = Queue();
    for (int slot = 0; slot < kSlots; ++slot) s->serve[slot] = Serving();
    std::fill(s->line, s->line + kSlots, uint8_t{0});
    s->line_count = 0;
    s->sent = s->taken;  // What was sent is gone; serials go on, to tell lives apart.
    if (s->consumer == Link::kOpen) {
      // It hears nothing any more, and notices.
      s->consumer = Link::kBroken;
      for (int slot = 0; slot < options_.slots; ++slot) {
        Asking& ask = s->ask[slot];
        if (ask.state == Ask::kIdle || ask.state == Ask::kQueued) continue;
        if (ask.state == Ask::kLeaving) ask.ending = 1;
        ask.state = Ask::kFenced;
      }
    }
  }
}

// ---- All of them ----

void Explorer::Expand(const State& state) {
  nexts_.clear();
  ConsumerActs(state);
  ProducerActs(state);
  ConsumerHears(state);
  ProducerHears(state);
  WorldActs(state);
}

void Explorer::CheckAtRest(const State& state, std::string* error) const {
  for (int turn = 0; turn < options_.fetches; ++turn) {
    if (state.end[turn] == End::kNot) *error = absl::StrCat("fetch ", turn, " never ends");
  }
  for (int slot = 0; slot < options_.slots; ++slot) {
    if (state.ask[slot].state != Ask::kIdle) *error = absl::StrCat("slot ", slot, " is never free");
    if (state.serve[slot].state != Serve::kFree) {
      *error = absl::StrCat("the producer keeps slot ", slot, " for ever");
    }
  }
}

struct HashBytes {
  size_t operator()(const std::string& bytes) const { return std::hash<std::string>()(bytes); }
};

SlotModelReport Explorer::Run() {
  State start;
  memset(static_cast<void*>(&start), 0, sizeof(start));
  start.consumer = start.producer = Link::kOpen;
  start.incarnation = start.known_incarnation = 1;
  start.met_before = 1;
  const auto bytes_of = [](const State& state) {
    return std::string(reinterpret_cast<const char*>(&state), sizeof(state));
  };
  // Each state once, where it came from and how.
  struct Seen {
    uint32_t from;
    std::string label;
  };
  std::unordered_map<std::string, uint32_t, HashBytes> index;
  std::vector<Seen> seen;
  std::deque<std::pair<uint32_t, State>> todo;
  index.emplace(bytes_of(start), 0);
  seen.push_back({0, ""});
  todo.emplace_back(0, start);
  const auto trace = [&](uint32_t at) {
    std::vector<std::string> labels;
    for (; at != 0; at = seen[at].from) labels.push_back(seen[at].label);
    std::reverse(labels.begin(), labels.end());
    return labels;
  };
  while (!todo.empty()) {
    const auto [number, state] = todo.front();
    todo.pop_front();
    report_.most_to_producer =
        std::max<uint32_t>(report_.most_to_producer, state.to_producer.count);
    report_.most_to_consumer =
        std::max<uint32_t>(report_.most_to_consumer, state.to_consumer.count);
    Expand(state);
    std::string error;
    if (nexts_.empty()) {
      ++report_.ends;
      CheckAtRest(state, &error);
      if (!error.empty()) {
        report_.violation = error;
        report_.trace = trace(number);
        break;
      }
    }
    for (Next& next : nexts_) {
      ++report_.transitions;
      if (!next.error.empty()) {
        report_.violation = next.error;
        report_.trace = trace(number);
        report_.trace.push_back(next.label);
        break;
      }
      const auto added = index.emplace(bytes_of(next.state), static_cast<uint32_t>(seen.size()));
      if (!added.second) continue;
      seen.push_back({number, std::move(next.label)});
      todo.emplace_back(added.first->second, next.state);
    }
    if (!report_.violation.empty()) break;
    if (seen.size() >= options_.max_states) {
      report_.complete = false;
      break;
    }
  }
  report_.states = seen.size();
  return report_;
}

}  // namespace

const char* RuleName(Rule rule) {
  switch (rule) {
    case Rule::kReleaseOnLastWord:
      return "release on the last word";
    case Rule::kReleaseOnDrained:
      return "release once drained";
    case Rule::kAnswerEveryCancel:
      return "answer every cancel";
    case Rule::kHoldSlotUntilGone:
      return "hold a cancelled slot until GONE";
    case Rule::kCheckGeneration:
      return "check the generation";
    case Rule::kReplay:
      return "ask again after a reconnect";
    case Rule::kKeepUntilAccepted:
      return "keep a tensor until it is accepted";
    case Rule::kKnowReplay:
      return "know a replay";
    case Rule::kDropGivenUp:
      return "let go of what was given up";
    case Rule::kAnswerOnceAskedAgain:
      return "answer only what was asked in this epoch";
    case Rule::kFreeSlotAtOnce:
      return "free the slot of a take at once";
    case Rule::kCheckIncarnation:
      return "check the incarnation";
    case Rule::kNone:
      break;
  }
  return "none";
}

SlotModelReport ExploreSlotModel(const SlotModelOptions& options) {
  return Explorer(options).Run();
}

}  // namespace tryst
