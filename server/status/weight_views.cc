#include "server/status/weight_views.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "channel/trace/json_text.h"

namespace tryst {

WeightViews::Shown::~Shown() {
  MutexLock lock(&views_->mu_);
  views_->views_.erase(id_);
}

std::unique_ptr<WeightViews::Shown> WeightViews::Show(ViewFn view) {
  MutexLock lock(&mu_);
  views_[++ids_] = std::move(view);
  return std::unique_ptr<Shown>(new Shown(this, ids_));
}

std::vector<WeightView> WeightViews::List() const {
  std::vector<WeightView> out;
  MutexLock lock(&mu_);
  for (const auto& [id, view] : views_) {
    if (out.size() == kMost) break;
    out.push_back(view());
  }
  return out;
}

std::string WeightViews::Json() const {
  std::string out;
  for (const WeightView& view : List()) {
    // Numbers of versions have up to 64 bits, which a JSON number does not hold.
    const std::string awaited =
        absl::StrJoin(view.awaited, ",", [](std::string* text, uint64_t incarnation) {
          absl::StrAppendFormat(text, "\"%016x\"", incarnation);
        });
    absl::StrAppendFormat(
        &out,
        "%s{\"set\":%s,\"role\":\"%s\",\"incarnation\":\"%016x\",\"newest\":\"%d\","
        "\"active\":\"%d\",\"active_s\":%.3f,\"note\":%s,\"bytes\":%d,\"rank\":%d,\"owners\":%d,"
        "\"holds\":[%s],\"held_bytes\":%d,\"leads\":%s,\"members\":%d,\"behind\":%d,"
        "\"awaited\":[%s],\"serves\":\"%d\",\"confirmed\":%s,\"permits_lost\":%d,"
        "\"sent_on\":%d}",
        out.empty() ? "" : ",", JsonText(view.set), view.role, view.incarnation, view.newest,
        view.active, view.active_s, JsonText(view.note), view.bytes, view.rank, view.owners,
        absl::StrJoin(
            view.holds, ",",
            [](std::string* text, uint64_t number) { absl::StrAppend(text, "\"", number, "\""); }),
        view.held_bytes, view.leads ? "true" : "false", view.members, view.behind, awaited,
        view.serves, view.confirmed ? "true" : "false", view.permits_lost, view.sent_on);
  }
  return absl::StrCat("[", out, "]");
}

}  // namespace tryst
