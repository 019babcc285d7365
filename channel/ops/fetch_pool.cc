#include "channel/ops/fetch_pool.h"

#include "absl/strings/str_cat.h"
#include "channel/ops/fetch_table.h"

namespace tryst {

std::string FetchPool::Explain() const {
  size_t by_state[kFetchStateCount] = {};
  for (const FetchOp* op : all_) ++by_state[static_cast<size_t>(op->state)];
  std::string text = absl::StrCat(live(), " fetches out");
  const char* before = " (";
  for (size_t i = 1; i < kFetchStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&text, before, by_state[i], " ", FetchStateName(static_cast<FetchState>(i)));
    before = "; ";
  }
  if (before[0] == ';') text += ")";
  return text;
}

}  // namespace tryst
