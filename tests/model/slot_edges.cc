#include "tests/model/slot_edges.h"

#include "absl/strings/str_cat.h"

namespace tryst {

const char* AskName(Ask state) {
  constexpr const char* kNames[] = {"idle",    "queued", "asked",  "waits for room",     "answered",
                                    "leaving", "left",   "fenced", "fenced and given up"};
  return kNames[static_cast<size_t>(state)];
}

const char* AskStepName(AskStep step) {
  constexpr const char* kNames[] = {
      "asks",         "hears TENSOR", "hears FAILED", "hears NEED_DESTINATION",
      "hears PARKED", "hears GONE",   "accepts",      "cancels",
      "breaks",       "drains",       "frees",        "forgets"};
  return kNames[static_cast<size_t>(step)];
}

const char* ServeName(Serve state) {
  constexpr const char* kNames[] = {"free", "taking", "ready", "waits for a destination", "sent"};
  return kNames[static_cast<size_t>(state)];
}

const char* ServeDeedName(ServeDeed deed) {
  constexpr const char* kNames[] = {"hears REQUEST",
                                    "hears REQUEST again",
                                    "hears CANCEL",
                                    "hears a late CANCEL",
                                    "hears of acceptance",
                                    "meets its Send",
                                    "answers",
                                    "asks for room",
                                    "parks",
                                    "gives up",
                                    "lets go"};
  return kNames[static_cast<size_t>(deed)];
}

std::string SlotEdge::ToText() const {
  if (!at_producer) {
    return absl::StrCat("consumer: ", AskName(static_cast<Ask>(from)), " | ",
                        AskStepName(static_cast<AskStep>(step)), " | ",
                        AskName(static_cast<Ask>(to)));
  }
  return absl::StrCat("producer: ", ServeName(static_cast<Serve>(from)),
                      named || from == 0 || step == static_cast<uint8_t>(ServeDeed::kLetsGo)
                          ? ""
                          : ", not named in this epoch",
                      " | ", ServeDeedName(static_cast<ServeDeed>(step)), " | ",
                      ServeName(static_cast<Serve>(to)));
}

SlotEdge Edge(Ask from, AskStep step, Ask to) {
  return {false, static_cast<uint8_t>(from), false, static_cast<uint8_t>(step),
          static_cast<uint8_t>(to)};
}

SlotEdge Edge(Serve from, bool named, ServeDeed deed, Serve to) {
  // A free slot has no request that could be named, and after kLetsGo the name does not matter.
  const bool told = named && from != Serve::kFree && deed != ServeDeed::kLetsGo;
  return {true, static_cast<uint8_t>(from), told, static_cast<uint8_t>(deed),
          static_cast<uint8_t>(to)};
}

}  // namespace tryst
