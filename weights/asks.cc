#include "weights/asks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/printable.h"
#include "weights/questions.h"

namespace tryst {
namespace {

constexpr size_t kMaxSetNameBytes = 128;

struct KindName {
  WeightAsk::Kind kind;
  absl::string_view name;
  size_t words;  // After the name.
};
constexpr KindName kKindNames[] = {
    {WeightAsk::Kind::kReady, "ready", 1},       {WeightAsk::Kind::kSealed, "sealed", 1},
    {WeightAsk::Kind::kVersion, "version", 1},   {WeightAsk::Kind::kNewer, "newer", 1},
    {WeightAsk::Kind::kLayouts, "layouts", 1},   {WeightAsk::Kind::kList, "list", 1},
    {WeightAsk::Kind::kPart, "part", 6},         {WeightAsk::Kind::kNews, "news", 1},
    {WeightAsk::Kind::kQuestion, "question", 1}, {WeightAsk::Kind::kHolders, "holders", 2},
    {WeightAsk::Kind::kHeld, "held", 4},
};

// Digits alone, where SimpleAtoi() would take a sign and spaces.
template <typename T>
bool ReadDecimal(absl::string_view text, T* number) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, number);
}

bool ReadHex(absl::string_view text, uint64_t* number) {
  return text.size() == 16 && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit) &&
         absl::SimpleHexAtoi(text, number);
}

bool ReadFlag(absl::string_view text, bool* flag) {
  *flag = text == "1";
  return *flag || text == "0";
}

// "105.00f3...": a number and a birth.
bool ReadVersion(absl::string_view text, WeightAsk* ask) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('.', 1));
  return ReadDecimal(parts.first, &ask->number) && ReadHex(parts.second, &ask->birth);
}

bool ReadBox(absl::string_view text, Box* box) {
  if (text.empty()) return true;  // A scalar's.
  for (const absl::string_view dim : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(dim, absl::MaxSplits('+', 1));
    int64_t begin = 0, extent = 0;
    if (box->rank() == TensorShape::kMaxRank || !ReadDecimal(parts.first, &begin) ||
        !ReadDecimal(parts.second, &extent)) {
      return false;
    }
    box->begin.push_back(begin);
    box->extent.push_back(extent);
  }
  return true;
}

void AppendBox(const Box& box, std::string* edge) {
  for (int i = 0; i < box.rank(); ++i) {
    absl::StrAppend(edge, i == 0 ? "" : ",", box.begin[i], "+", box.extent[i]);
  }
}

bool ReadWords(const std::vector<absl::string_view>& words, WeightAsk* ask) {
  switch (ask->kind) {
    case WeightAsk::Kind::kReady:
    case WeightAsk::Kind::kSealed:
    case WeightAsk::Kind::kVersion:
    case WeightAsk::Kind::kNewer:
      return ReadDecimal(words[1], &ask->number);
    case WeightAsk::Kind::kLayouts:
      ask->digest = std::string(words[1]);
      return true;
    case WeightAsk::Kind::kList:
      return ReadVersion(words[1], ask);
    case WeightAsk::Kind::kPart:
      return ReadVersion(words[1], ask) && ReadDecimal(words[2], &ask->tensor) &&
             ReadBox(words[3], &ask->box) && ReadDecimal(words[4], &ask->base) &&
             ReadFlag(words[5], &ask->may_be_sent_on) && ReadHex(words[6], &ask->holder);
    case WeightAsk::Kind::kNews:
      return ReadHex(words[1], &ask->incarnation);
    case WeightAsk::Kind::kHolders:
      return ReadVersion(words[1], ask) && ReadHex(words[2], &ask->incarnation);
    case WeightAsk::Kind::kHeld:
      ask->goes_on = !words[3].empty();
      return ReadVersion(words[1], ask) && ReadDecimal(words[2], &ask->owner) &&
             (ask->goes_on ? ReadDecimal(words[3], &ask->tensor) && ReadBox(words[4], &ask->box)
                           : words[4].empty());
    case WeightAsk::Kind::kQuestion:
      if (words[1].size() % 2 != 0 || words[1].size() > 2 * kMaxQuestionBytes ||
          !std::all_of(words[1].begin(), words[1].end(), absl::ascii_isxdigit)) {
        return false;
      }
      ask->question = absl::HexStringToBytes(words[1]);
      return true;
  }
  return false;
}

}  // namespace

absl::Status CheckSetName(absl::string_view set) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  };
  if (!set.empty() && set.size() <= kMaxSetNameBytes &&
      std::all_of(set.begin(), set.end(), allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a set of weights may have up to ", kMaxSetNameBytes,
                   " letters, digits, '_', '-', '.' and '/', and is \"", Printable(set), "\""));
}

std::string WeightsPrefix(absl::string_view set) { return absl::StrCat("|weights|", set, "|"); }

std::string EdgeOf(absl::string_view set, const WeightAsk& ask) {
  std::string edge = WeightsPrefix(set);
  for (const KindName& kind : kKindNames) {
    if (kind.kind == ask.kind) absl::StrAppend(&edge, kind.name, "|");
  }
  switch (ask.kind) {
    case WeightAsk::Kind::kReady:
    case WeightAsk::Kind::kSealed:
    case WeightAsk::Kind::kVersion:
    case WeightAsk::Kind::kNewer:
      absl::StrAppend(&edge, ask.number);
      break;
    case WeightAsk::Kind::kLayouts:
      absl::StrAppend(&edge, ask.digest);
      break;
    case WeightAsk::Kind::kList:
    case WeightAsk::Kind::kPart:
    case WeightAsk::Kind::kHolders:
    case WeightAsk::Kind::kHeld:
      absl::StrAppend(&edge, ask.number, ".", absl::Hex(ask.birth, absl::kZeroPad16));
      break;
    case WeightAsk::Kind::kNews:
      absl::StrAppend(&edge, absl::Hex(ask.incarnation, absl::kZeroPad16));
      break;
    case WeightAsk::Kind::kQuestion:
      absl::StrAppend(&edge, absl::BytesToHexString(ask.question));
      break;
  }
  if (ask.kind == WeightAsk::Kind::kHeld) {
    absl::StrAppend(&edge, "|", ask.owner, "|");
    if (ask.goes_on) absl::StrAppend(&edge, ask.tensor);
    absl::StrAppend(&edge, "|");
    if (ask.goes_on) AppendBox(ask.box, &edge);
  }
  if (ask.kind == WeightAsk::Kind::kHolders) {
    absl::StrAppend(&edge, "|", absl::Hex(ask.incarnation, absl::kZeroPad16));
  }
  if (ask.kind != WeightAsk::Kind::kPart) return edge;
  absl::StrAppend(&edge, "|", ask.tensor, "|");
  AppendBox(ask.box, &edge);
  absl::StrAppend(&edge, "|", ask.base, ask.may_be_sent_on ? "|1|" : "|0|",
                  absl::Hex(ask.holder, absl::kZeroPad16));
  return edge;
}

absl::StatusOr<WeightAsk> ParseEdge(absl::string_view set, absl::string_view edge) {
  const absl::Status wrong =
      absl::InvalidArgumentError(absl::StrCat("owners of weights cannot answer the request \"",
                                              Printable(edge), "\": run the same release on both"));
  const std::string prefix = WeightsPrefix(set);
  if (!absl::StartsWith(edge, prefix)) return wrong;
  const std::vector<absl::string_view> words = absl::StrSplit(edge.substr(prefix.size()), '|');
  for (const KindName& kind : kKindNames) {
    if (words[0] != kind.name || words.size() != 1 + kind.words) continue;
    WeightAsk ask;
    ask.kind = kind.kind;
    if (ReadWords(words, &ask)) return ask;
  }
  return wrong;
}

}  // namespace tryst
