#include "rendezvous/counters.h"

#include "absl/strings/str_cat.h"

namespace tryst {

using C = RendezvousCounters;
const CounterRow kCounterRows[] = {
    {"sends", false, &C::sends},
    {"receives", false, &C::receives},
    {"delivered", false, &C::delivered},
    {"delivered_bytes", false, &C::delivered_bytes},
    {"dead", false, &C::dead},
    {"refused_over_cap", false, &C::refused_over_cap},
    {"aborted_receives", false, &C::aborted_receives},
    {"aborted_sends", false, &C::aborted_sends},
    {"cancelled", false, &C::cancelled},
    {"deadline_exceeded", false, &C::deadline_exceeded},
    {"changed_after_send", false, &C::changed_after_send},
    {"given_back", false, &C::given_back},
    {"fetches", false, &C::fetches},
    {"takes", false, &C::takes},
    {"deferred", false, &C::deferred},
    {"tombstone_hits", false, &C::tombstone_hits},
    {"steps_started", false, &C::steps_started},
    {"steps_expired", false, &C::steps_expired},
    {"waiting_sends", true, &C::waiting_sends},
    {"waiting_receives", true, &C::waiting_receives},
    {"waiting_fetches", true, &C::waiting_fetches},
    {"held_bytes", true, &C::held_bytes},
    {"steps", true, &C::steps},
    {"tombstones", true, &C::tombstones},
};
const int kCounterRowCount = sizeof(kCounterRows) / sizeof(kCounterRows[0]);
static_assert(sizeof(kCounterRows) / sizeof(kCounterRows[0]) * sizeof(int64_t) ==
                  sizeof(RendezvousCounters),
              "every counter has its row");

RendezvousCounters& RendezvousCounters::operator+=(const RendezvousCounters& other) {
  for (const CounterRow& row : kCounterRows) this->*row.value += other.*row.value;
  return *this;
}

std::string RendezvousCounters::ToText() const {
  std::string text;
  for (const CounterRow& row : kCounterRows) {
    absl::StrAppend(&text, row.name, " ", this->*row.value, "\n");
  }
  return text;
}

}  // namespace tryst
