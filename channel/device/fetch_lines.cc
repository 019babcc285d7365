#include "channel/device/fetch_lines.h"

#include "base/log.h"

namespace tryst {

void FetchLines::Join(int64_t step, const TensorKey& key, LinedFetch* fetch) {
  FetchLine*& line = lines_[{step, key}];
  if (line == nullptr) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    line = free_.back();
    free_.pop_back();
    line->step = step;
    line->key = key;
  }
  fetch->line_ = line;
  fetch->place_ = line->waiting.insert(line->waiting.end(), fetch);
  GoOn(line);
}

void FetchLines::Leave(LinedFetch* fetch, const DeviceManifest* met, bool lost) {
  FetchLine* line = std::exchange(fetch->line_, nullptr);
  if (line == nullptr) return;
  if (line->first != fetch) {
    TRYST_DCHECK(met == nullptr);
    line->waiting.erase(fetch->place_);
    return GoOn(line);
  }
  line->first = nullptr;
  if (met != nullptr && lost) {
    GiveBack(line, met->transfer);
  } else if (met != nullptr) {
    line->met = *met;
  }
  GoOn(line);
}

// A loop, because a fetch may end inside its OnTurn().
void FetchLines::GoOn(FetchLine* line) {
  if (line->goes_on) return;
  line->goes_on = true;
  while (line->first == nullptr && !line->gives_back && !line->waiting.empty()) {
    line->first = line->waiting.front();
    line->waiting.pop_front();
    const absl::optional<DeviceManifest> met = std::exchange(line->met, absl::nullopt);
    line->first->OnTurn(met ? &*met : nullptr);
  }
  line->goes_on = false;
  if (line->first != nullptr || line->gives_back) return;
  if (line->met) return GiveBack(line, std::exchange(line->met, absl::nullopt)->transfer);
  lines_.erase({line->step, line->key});
  line->key = TensorKey();
  free_.push_back(line);
}

void FetchLines::GiveBack(FetchLine* line, uint64_t transfer) {
  line->gives_back = true;
  give_back_(line->key, transfer, [this, line] {
    line->gives_back = false;
    GoOn(line);
  });
}

}  // namespace tryst
