#include "server/doctor/report.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"

namespace tryst {
namespace {

constexpr std::array<Weight, 3> kWorstFirst = {Weight::kFault, Weight::kWarning, Weight::kNote};

const char* Colour(Weight weight) {
  switch (weight) {
    case Weight::kFault:
      return "\033[31m";
    case Weight::kWarning:
      return "\033[33m";
    case Weight::kNote:
      return "\033[36m";
  }
  return "";
}

}  // namespace

const char* WeightName(Weight weight) {
  switch (weight) {
    case Weight::kNote:
      return "note";
    case Weight::kWarning:
      return "warning";
    case Weight::kFault:
      return "fault";
  }
  return "";
}

bool Report::Has(Weight weight) const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [weight](const Finding& finding) { return finding.weight == weight; });
}

std::string Report::ToText(bool colour) const {
  std::string out;
  std::array<size_t, 3> count = {};
  for (size_t i = 0; i < kWorstFirst.size(); ++i) {
    for (const Finding& finding : findings_) {
      if (finding.weight != kWorstFirst[i]) continue;
      ++count[i];
      absl::StrAppend(&out, colour ? Colour(finding.weight) : "", WeightName(finding.weight),
                      colour ? "\033[0m" : "", "  ", finding.check, ": ",
                      PrintableLines(finding.seen), "\n         ", PrintableLines(finding.means),
                      "\n      -> ", PrintableLines(finding.action), "\n");
    }
  }
  absl::StrAppend(&out, checks_, " checks: ", count[0], " faults, ", count[1], " warnings, ",
                  count[2], " notes\n");
  return out;
}

std::string Report::ToJson() const {
  std::string out = absl::StrCat("{\"checks\": ", checks_, ", \"findings\": [");
  for (const Finding& finding : findings_) {
    absl::StrAppend(
        &out, out.back() == '[' ? "\n" : ",\n", " {\"check\": ", JsonText(finding.check),
        ", \"weight\": ", JsonText(WeightName(finding.weight)),
        ", \"seen\": ", JsonText(finding.seen), ", \"means\": ", JsonText(finding.means),
        ", \"action\": ", JsonText(finding.action), "}");
  }
  return out + "\n]}\n";
}

}  // namespace tryst
