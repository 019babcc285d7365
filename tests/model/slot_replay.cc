#include "tests/model/slot_replay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "channel/ops/fetch_ask.h"
#include "tests/model/slot_model.h"

namespace tryst {
namespace {

SlotModelOptions Setting(int slots, int fetches, int breaks, int cancels) {
  SlotModelOptions options;
  options.slots = slots;
  options.fetches = fetches;
  options.breaks = breaks;
  options.cancels = cancels;
  return options;
}

// The edges of one slot need few fetches. Each setting combines the faults that affect each other.
SlotEdges SearchEdges(int slots) {
  std::vector<SlotModelOptions> settings;
  SlotModelOptions all = Setting(slots, 2, 1, 1);
  all.parks = all.farewells = 1;
  settings.push_back(all);
  all = Setting(slots, 2, 1, 1);
  all.restarts = all.digests = all.failures = 1;
  settings.push_back(all);
  if (slots == 1) {
    settings.push_back(Setting(1, 3, 2, 2));
    all = Setting(1, 2, 2, 1);
    all.farewells = 2;
    settings.push_back(all);
  }
  SlotEdges edges;
  for (const SlotModelOptions& one : settings) {
    for (const auto& [edge, times] : ExploreSlotModel(one).edges) edges[edge] += times;
  }
  return edges;
}

// The model's state for the code's state; kIdle: the model has none to compare with.
Ask AskOf(FetchState state) {
  switch (state) {
    case FetchState::kWaitingRoom:
      return Ask::kRoom;
    case FetchState::kAhead:
      return Ask::kAnswered;
    case FetchState::kAsked:
      return Ask::kAsked;
    case FetchState::kLeaving:
      return Ask::kLeaving;
    case FetchState::kLeft:
      return Ask::kLeft;
    case FetchState::kFenced:
      return Ask::kFenced;
    case FetchState::kFencedLeaving:
      return Ask::kFencedEnding;
    default:
      return Ask::kIdle;
  }
}

// What the model calls it; nothing: the model does not tell it apart from what comes next, or hears
// of it otherwise (OnServeFarewell).
absl::optional<ServeDeed> DeedOf(ServeEvent event) {
  switch (event) {
    case ServeEvent::kRequest:
    case ServeEvent::kRequestAnew:
    case ServeEvent::kStale:
      return ServeDeed::kHearsRequest;
    case ServeEvent::kRepeat:
    case ServeEvent::kWithRoom:
      return ServeDeed::kHearsAgain;
    case ServeEvent::kCancel:
      return ServeDeed::kHearsCancel;
    case ServeEvent::kLateCancel:
      return ServeDeed::kHearsLateCancel;
    case ServeEvent::kAccepted:
      return ServeDeed::kHearsAccepted;
    case ServeEvent::kOutcome:
      return ServeDeed::kMeets;
    case ServeEvent::kSay:
      return ServeDeed::kAnswers;
    case ServeEvent::kAskRoom:
      return ServeDeed::kAsksForRoom;
    case ServeEvent::kParked:
      return ServeDeed::kParks;
    case ServeEvent::kUnnamed:
      return ServeDeed::kGivesUp;
    default:
      return absl::nullopt;
  }
}

// The model's state for the code's state.
Serve ServeOf(ServeState state) {
  switch (state) {
    case ServeState::kFree:
      return Serve::kFree;
    case ServeState::kTaking:
      return Serve::kTaking;
    case ServeState::kNeedsDestination:
      return Serve::kNeeds;
    case ServeState::kSent:
      return Serve::kSent;
    default:
      return Serve::kReady;
  }
}

}  // namespace

const SlotEdges& ModelEdges(int slots) {
  static const auto* const one = new SlotEdges(SearchEdges(1));
  if (slots == 1) return *one;
  static const auto* const two = [] {
    auto* edges = new SlotEdges(SearchEdges(2));
    for (const auto& [edge, times] : *one) (*edges)[edge] += times;
    return edges;
  }();
  return *two;
}

SlotReplay::SlotReplay(const SlotEdges& model, Refuse refuse)
    : model_(model), refuse_(std::move(refuse)) {}

void SlotReplay::Say(uint16_t slot, const Place& place, const std::string& what) {
  std::string text = absl::StrCat("the model refuses, of slot ", slot, ": ", what, "; before that");
  for (const SlotEdge& edge : place.before) absl::StrAppend(&text, "\n    ", edge.ToText());
  refuse_(text);
}

void SlotReplay::Take(uint16_t slot, Place* place, const SlotEdge& edge) {
  ++steps_;
  if (model_.count(edge) == 0) Say(slot, *place, edge.ToText());
  ++taken_[edge];
  place->state = edge.to;
  if (place->before.size() == kRemembered) place->before.erase(place->before.begin());
  place->before.push_back(edge);
}

void SlotReplay::AskTakes(const void* end, uint16_t slot, AskStep step, Ask to) {
  Place* const place = &asking_[end][slot];
  Take(slot, place, Edge(static_cast<Ask>(place->state), step, to));
}

void SlotReplay::OnFetchEvent(const void* end, const FetchAsk& ask, FetchState from,
                              FetchEvent event) {
  if (!ask.has_slot()) return;
  const uint16_t slot = ask.slot;
  const Place& place = asking_[end][slot];
  const Ask now = static_cast<Ask>(place.state);
  const bool leaving = now == Ask::kLeaving || now == Ask::kLeft;
  if (now == Ask::kIdle && event != FetchEvent::kAsk) return;  // It was never requested.
  if (AskOf(from) != Ask::kIdle && AskOf(from) != now &&
      !(from == FetchState::kAsked && (now == Ask::kAnswered || now == Ask::kRoom))) {
    Say(slot, place,
        absl::StrCat("the code's fetch ", FetchStateName(from), ", and the model's is ",
                     AskName(now)));
  }
  switch (event) {
    case FetchEvent::kAsk:
      return AskTakes(end, slot, AskStep::kAsks, Ask::kAsked);
    case FetchEvent::kPart:
    case FetchEvent::kTensor:
    case FetchEvent::kLanded:
      // The parts and the message are one answer.
      if (now == Ask::kAnswered || now == Ask::kLeft) return;
      return AskTakes(end, slot, AskStep::kHearsTensor, leaving ? Ask::kLeaving : Ask::kAnswered);
    case FetchEvent::kFailed:
      return AskTakes(end, slot, AskStep::kHearsFailed, leaving ? Ask::kLeaving : Ask::kAnswered);
    case FetchEvent::kNeedDestination:
      return AskTakes(end, slot, AskStep::kHearsNeed, leaving ? Ask::kLeaving : Ask::kRoom);
    case FetchEvent::kParked:
      return AskTakes(end, slot, AskStep::kHearsParked, leaving ? Ask::kLeaving : Ask::kIdle);
    case FetchEvent::kGone:
      return AskTakes(end, slot, AskStep::kHearsGone, Ask::kLeft);
    case FetchEvent::kEnd:
    case FetchEvent::kEndAsked:
      if (leaving || now == Ask::kFencedEnding) return;
      if (ask.state == FetchState::kLeaving) {
        return AskTakes(end, slot, AskStep::kCancels, Ask::kLeaving);
      }
      if (now == Ask::kFenced) AskTakes(end, slot, AskStep::kCancels, Ask::kFencedEnding);
      return;
    case FetchEvent::kBroken:
      if (now == Ask::kQueued) return AskTakes(end, slot, AskStep::kBreaks, Ask::kQueued);
      return AskTakes(end, slot, AskStep::kBreaks, leaving ? Ask::kFencedEnding : Ask::kFenced);
    case FetchEvent::kDrained:
      return AskTakes(end, slot, AskStep::kDrains,
                      ask.state == FetchState::kLeaving ? Ask::kLeaving : Ask::kQueued);
    default:
      return;
  }
}

// The steps before have shown which message was the slot's last.
void SlotReplay::OnSlotFreed(const void* end, uint16_t slot) {
  const Ask now = static_cast<Ask>(asking_[end][slot].state);
  switch (now) {
    case Ask::kIdle:  // It was parked, or never requested.
      return;
    case Ask::kAnswered:
      return AskTakes(end, slot, AskStep::kAccepts, Ask::kIdle);
    case Ask::kLeft:
      return AskTakes(end, slot, AskStep::kFrees, Ask::kIdle);
    default:
      return AskTakes(end, slot, AskStep::kForgets, Ask::kIdle);
  }
}

// The table of the code says where an event leads, so the model judges the table.
void SlotReplay::OnServeEvent(const void* end, uint16_t slot, ServeState from, ServeEvent event) {
  const absl::optional<ServeDeed> deed = DeedOf(event);
  if (!deed) return;
  Place* const place = &serving_[end][slot];
  const Serve now = static_cast<Serve>(place->state);
  if (ServeOf(from) != now) {
    Say(slot, *place,
        absl::StrCat("the code's slot ", ServeStateName(from), ", and the model's is ",
                     ServeName(now)));
  }
  const Serve to = ServeOf(FindServeRow(from, event)->next);
  Take(slot, place, Edge(now, place->named, *deed, to));
  if (*deed == ServeDeed::kHearsRequest || *deed == ServeDeed::kHearsAgain) place->named = true;
}

void SlotReplay::OnServeEpoch(const void* end) {
  for (auto& [slot, place] : serving_[end]) place.named = false;
}

void SlotReplay::OnServeFarewell(const void* end) {
  for (auto& [slot, place] : serving_[end]) {
    const Serve from = static_cast<Serve>(place.state);
    if (from == Serve::kFree) continue;
    Take(slot, &place, Edge(from, place.named, ServeDeed::kLetsGo, Serve::kFree));
  }
}

void SlotReplay::OnEndGone(const void* end) {
  asking_.erase(end);
  serving_.erase(end);
}

}  // namespace tryst
