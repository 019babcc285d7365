#include "tests/process/promises/history.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr size_t kExamplesOfEach = 3;
constexpr Breach kAll[] = {Breach::kLost,  Breach::kDoubled, Breach::kInvented,
                           Breach::kOpen,  Breach::kFailed,  Breach::kLate,
                           Breach::kOrder, Breach::kLanded,  Breach::kOvertaken};

std::string Words(const MadeReceive& receive) {
  return absl::StrCat("the receive [", receive.before, ", ", receive.after, "] of key ",
                      receive.key);
}
std::string Words(const SentTensor& sent) {
  return absl::StrCat("tensor ", sent.number, " of key ", sent.key, ", sent [", sent.before, ", ",
                      sent.after, "]");
}

// A receive and the send that it met.
struct Meeting {
  const MadeReceive* receive = nullptr;
  const SentTensor* sent = nullptr;
};

class Judge {
 public:
  void Key(const std::vector<const SentTensor*>& sent,
           const std::vector<const MadeReceive*>& made) {
    std::map<int64_t, const SentTensor*> by_number;
    for (const SentTensor* one : sent) by_number[one->number] = one;
    std::map<int64_t, size_t> got;
    std::vector<Meeting> meetings;
    std::vector<const MadeReceive*> failed;
    for (const MadeReceive* receive : made) {
      if (!JudgeEnd(*receive)) continue;
      if (receive->code != absl::StatusCode::kOk) {
        failed.push_back(receive);
        continue;
      }
      const auto found = by_number.find(receive->number);
      if (found == by_number.end() || !receive->whole) {
        Note(Breach::kInvented,
             absl::StrCat(Words(*receive), " got tensor ", receive->number,
                          receive->whole ? ", which nobody sent" : " with other bytes"));
        continue;
      }
      if (++got[receive->number] > 1) {
        Note(Breach::kDoubled, absl::StrCat(Words(*found->second), " came again"));
        continue;
      }
      meetings.push_back({receive, found->second});
    }
    for (const SentTensor* one : sent) {
      if (got.count(one->number) == 0) Note(Breach::kLost, Words(*one));
    }
    JudgeOrder(meetings);
    JudgeOvertaking(meetings, std::move(failed));
  }

  Judgement TakeResult() { return std::move(result_); }

 private:
  void Note(Breach breach, const std::string& words) {
    if (++result_.counts[breach] > kExamplesOfEach) return;
    result_.examples.push_back(absl::StrCat(BreachName(breach), ": ", words));
  }

  // False: the receive has no end that could be judged further.
  bool JudgeEnd(const MadeReceive& receive) {
    if (receive.landed_late) return Note(Breach::kLanded, Words(receive)), false;
    if (receive.calls == 0) return Note(Breach::kOpen, Words(receive)), false;
    if (receive.calls > 1) Note(Breach::kDoubled, absl::StrCat(Words(receive), " ended twice"));
    if (receive.ended_ns > receive.ends_by_ns) {
      Note(Breach::kLate,
           absl::StrCat(Words(receive), " ended ",
                        (receive.ended_ns - receive.ends_by_ns) / 1000000, " ms after it had to"));
    }
    if (receive.code == absl::StatusCode::kOk) return true;
    if (receive.code != receive.may_fail_with) {
      Note(Breach::kFailed,
           absl::StrCat(Words(receive), " failed with ", absl::StatusCodeToString(receive.code)));
    } else if (receive.ended_ns < receive.fails_from_ns) {
      Note(Breach::kFailed,
           absl::StrCat(Words(receive), " failed ",
                        (receive.fails_from_ns - receive.ended_ns) / 1000, " us before it might"));
    }
    return true;
  }

  // Goes through receives in the order of their first stamps, and keeps the latest send that an
  // earlier receive got.
  void JudgeOrder(std::vector<Meeting> meetings) {
    std::vector<Meeting> by_end = meetings;
    std::sort(meetings.begin(), meetings.end(), [](const Meeting& a, const Meeting& b) {
      return a.receive->before < b.receive->before;
    });
    std::sort(by_end.begin(), by_end.end(), [](const Meeting& a, const Meeting& b) {
      return a.receive->after < b.receive->after;
    });
    size_t over = 0;
    const Meeting* latest = nullptr;
    for (const Meeting& meeting : meetings) {
      for (; over < by_end.size() && by_end[over].receive->after < meeting.receive->before;
           ++over) {
        const bool later = latest == nullptr || by_end[over].sent->before > latest->sent->before;
        if (later) latest = &by_end[over];
      }
      if (latest == nullptr || latest->sent->before < meeting.sent->after) continue;
      Note(Breach::kOrder,
           absl::StrCat(Words(*latest->receive), " got ", Words(*latest->sent), "; ",
                        Words(*meeting.receive), " got ", Words(*meeting.sent)));
    }
  }

  void JudgeOvertaking(std::vector<Meeting> meetings, std::vector<const MadeReceive*> failed) {
    std::sort(meetings.begin(), meetings.end(), [](const Meeting& a, const Meeting& b) {
      return a.receive->before < b.receive->before;
    });
    std::sort(failed.begin(), failed.end(),
              [](const MadeReceive* a, const MadeReceive* b) { return a->after < b->after; });
    size_t over = 0;
    const MadeReceive* longest = nullptr;  // The earlier receive that had to wait longest.
    for (const Meeting& meeting : meetings) {
      for (; over < failed.size() && failed[over]->after < meeting.receive->before; ++over) {
        if (longest == nullptr || failed[over]->fails_from_ns > longest->fails_from_ns) {
          longest = failed[over];
        }
      }
      if (longest == nullptr || longest->fails_from_ns <= meeting.receive->ended_ns) continue;
      Note(Breach::kOvertaken, absl::StrCat(Words(*meeting.receive), " got ", Words(*meeting.sent),
                                            " while ", Words(*longest), " waited"));
    }
  }

  Judgement result_;
};

}  // namespace

uint64_t NextStamp() {
  static std::atomic<uint64_t> stamp{1};
  return stamp.fetch_add(1, std::memory_order_acq_rel);
}

const char* BreachName(Breach breach) {
  switch (breach) {
    case Breach::kLost:
      return "lost";
    case Breach::kDoubled:
      return "doubled";
    case Breach::kInvented:
      return "invented";
    case Breach::kOpen:
      return "open";
    case Breach::kFailed:
      return "failed";
    case Breach::kLate:
      return "late";
    case Breach::kOrder:
      return "order";
    case Breach::kLanded:
      return "landed late";
    case Breach::kOvertaken:
      return "overtaken";
  }
  return "?";
}

size_t Judgement::of(Breach breach) const {
  const auto found = counts.find(breach);
  return found == counts.end() ? 0 : found->second;
}

std::string Judgement::ToText() const {
  std::string text;
  for (Breach breach : kAll) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", BreachName(breach), " ", of(breach));
  }
  for (const std::string& example : examples) absl::StrAppend(&text, "\n  ", example);
  return text;
}

Judgement JudgeHistory(const std::vector<SentTensor>& sent, const std::vector<MadeReceive>& made) {
  std::map<uint32_t, std::vector<const SentTensor*>> sent_of;
  std::map<uint32_t, std::vector<const MadeReceive*>> made_of;
  for (const SentTensor& one : sent) sent_of[one.key].push_back(&one);
  for (const MadeReceive& one : made) {
    made_of[one.key].push_back(&one);
    sent_of[one.key];
  }
  Judge judge;
  for (const auto& [key, of_key] : sent_of) judge.Key(of_key, made_of[key]);
  return judge.TakeResult();
}

}  // namespace tryst
