#include "tests/model/slot_model.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "tests/model/slot_steps.h"

namespace tryst {

SlotModelReport ExploreSlotModel(const SlotModelOptions& options) {
  SlotModelReport report;
  SlotSteps steps(options, &report.edges);
  const ModelState start = FirstModelState();
  const auto bytes_of = [](const ModelState& state) {
    return std::string(reinterpret_cast<const char*>(&state), sizeof(state));
  };
  // A state, the state before it, and the step between them.
  struct Seen {
    uint32_t from;
    std::string label;
  };
  std::unordered_map<std::string, uint32_t> index;
  std::vector<Seen> seen;
  std::deque<std::pair<uint32_t, ModelState>> todo;
  index.emplace(bytes_of(start), 0);
  seen.push_back({0, ""});
  todo.emplace_back(0, start);
  const auto trace = [&](uint32_t at) {
    std::vector<std::string> labels;
    for (; at != 0; at = seen[at].from) labels.push_back(seen[at].label);
    std::reverse(labels.begin(), labels.end());
    return labels;
  };
  while (!todo.empty() && report.violation.empty()) {
    const auto [number, state] = todo.front();
    todo.pop_front();
    report.most_to_producer = std::max<uint32_t>(report.most_to_producer, state.to_producer.count);
    report.most_to_consumer = std::max<uint32_t>(report.most_to_consumer, state.to_consumer.count);
    std::vector<ModelNext> nexts = steps.Expand(state);
    if (nexts.empty()) {
      ++report.ends;
      report.violation = steps.AtRest(state);
      if (!report.violation.empty()) report.trace = trace(number);
    }
    for (ModelNext& next : nexts) {
      ++report.transitions;
      if (!next.error.empty()) {
        report.violation = next.error;
        report.trace = trace(number);
        report.trace.push_back(next.label);
        break;
      }
      const auto added = index.emplace(bytes_of(next.state), static_cast<uint32_t>(seen.size()));
      if (!added.second) continue;
      seen.push_back({number, std::move(next.label)});
      todo.emplace_back(added.first->second, next.state);
    }
    if (seen.size() >= options.max_states) {
      report.complete = false;
      break;
    }
  }
  report.states = seen.size();
  return report;
}

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

}  // namespace tryst
