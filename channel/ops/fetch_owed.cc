#include "channel/ops/fetch_owed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr int64_t kLastsNs = 4'000'000'000;

}  // namespace

void FetchOwed::Begin() {
  began_ns_ = word_ns_ = poller_->now_ns();
  has_spoken_ = has_brought_ = false;
  owes_since_ns_ = -1;
}

// A connection that lasts for so long, and on which nothing is due, is as good as any.
void FetchOwed::Forgive() {
  const bool lasts = poller_->RunningSince(began_ns_) >= std::min(2 * limit_ns_, kLastsNs);
  if (lasts && owes_since_ns_ < 0) in_default_ = false;
}

void FetchOwed::NoteAwaited(bool is_awaited) {
  if (!is_awaited) {
    owes_since_ns_ = -1;
  } else if (owes_since_ns_ < 0) {
    owes_since_ns_ = poller_->now_ns();
    answers_ = 0;
  }
}

absl::Status FetchOwed::Late(const std::string& peer, const std::string& path) const {
  return absl::UnavailableError(absl::StrCat(
      peer, " answers over ", path, ", has announced a tensor there and has brought nothing for ",
      poller_->RunningSince(owes_since_ns_) / 1'000'000, " ms"));
}

absl::Status FetchOwed::Silent(const std::string& peer, const std::string& path,
                               int64_t silent_ms) const {
  return absl::UnavailableError(absl::StrCat(
      peer, " has been silent over ", path, " for ", silent_ms, " ms",
      has_spoken_ ? "" : ", and has confirmed none of the requests since it connected"));
}

}  // namespace tryst
