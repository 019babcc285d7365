#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/process/history/history_file.h"
#include "tests/sim/channel_load.h"

// The whole history of a simulated load, put before the judge of histories.
namespace tryst {
namespace {

void Keep(const History& history, const std::string& file) {
  HistoryFile out(file);
  for (const SentTensor& sent : history.sent) out.Sent(history.keys[sent.key], sent);
  for (const MadeReceive& made : history.made) {
    const std::string& key = history.keys[made.key];
    made.landed_late ? out.LandedLate(key, made.before) : out.Received(key, made);
  }
}

}  // namespace

std::string ChannelLoad::KeyOf(const Edge& edge) {
  return absl::StrCat(edge.producer, ".", edge.producer_incarnation, "/", edge.consumer, "/",
                      edge.number, "/", edge.step);
}

// One fetch as the judge has it. Where a fetch of its key ended early, those behind it have no
// order that a stamp could say: CheckOrder() looks at them.
MadeReceive ChannelLoad::MadeBy(const Fetch& fetch, int64_t may_be_late_ns) const {
  MadeReceive made;
  const bool ordered = fetch.edge->ended_early == 0 && !MayLose(*fetch.edge);
  made.before = ordered ? 2 * fetch.turn + 1 : 0;
  made.after = ordered ? 2 * fetch.turn + 2 : UINT64_MAX / 4;
  made.calls = fetch.ends;
  made.code = fetch.status.code();
  made.number = static_cast<int64_t>(fetch.serial);
  made.ended_ns = fetch.ended_ns;
  const bool never = fetch.deadline_ns == kNeverNs;
  made.ends_by_ns = never ? kNeverNs : fetch.deadline_ns + may_be_late_ns;
  // CheckStatus() has judged already whether the fetch may fail with this code.
  made.may_fail_with = made.code;
  made.fails_from_ns = absl::IsDeadlineExceeded(fetch.status) ? fetch.deadline_ns : 0;
  return made;
}

History ChannelLoad::WholeHistory(int64_t may_be_late_ns) const {
  History history;
  std::map<const Edge*, uint32_t> numbers;
  std::set<std::pair<const Edge*, uint64_t>> received;
  for (const Fetch& fetch : fetches_) {
    if (fetch.ends > 0 && fetch.status.ok()) received.emplace(fetch.edge, fetch.serial);
  }
  for (const auto& entry : edges_) {
    const Edge& edge = entry.second;
    const auto key = static_cast<uint32_t>(history.keys.size());
    numbers[&edge] = key;
    history.keys.push_back(KeyOf(edge));
    for (size_t i = 0; i < edge.sent.size(); ++i) {
      const bool dead = !options_.cancel_storm && KindOf(edge.sent[i]) == Kind::kDead;
      // A tensor may be lost with the end that was restarted, or with what its consumer forgot.
      const bool may_be_lost =
          (!Lives(edge) || MayLose(edge)) && received.count({&edge, edge.sent[i]}) == 0;
      if (dead || may_be_lost) continue;
      history.sent.push_back({key, static_cast<int64_t>(edge.sent[i]), 2 * i, 2 * i + 1});
    }
  }
  for (const Fetch& fetch : fetches_) {
    const Edge& edge = *fetch.edge;
    const bool dead = fetch.status.ok() && fetch.serial == 0 && fetch.ends > 0;
    if (fetch.ends == 0 || dead) continue;  // CheckEnds() looks at those.
    history.made.push_back(MadeBy(fetch, may_be_late_ns));
    history.made.back().key = numbers[&edge];
  }
  if (buffers_.late_words() > 0 && !history.keys.empty()) {
    history.made.emplace_back();
    history.made.back().landed_late = true;
  }
  return history;
}

void ChannelLoad::JudgeWhole(int64_t may_be_late_ns) {
  const History history = WholeHistory(may_be_late_ns);
  const Judgement judged = JudgeLives(history);
  if (judged.counts.empty()) return;
  const std::string folder = NewHistoryFolder();
  Keep(history, absl::StrCat(folder, "/load"));
  target_->Violate(absl::StrCat("the history, kept in ", folder, ", has ", judged.ToText()));
}

}  // namespace tryst
