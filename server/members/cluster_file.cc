#include "server/members/cluster_file.h"

#include <utility>

#include "base/log.h"
#include "base/read_file.h"
#include "server/members/cluster_spec.h"

namespace tryst {

ClusterFileWatch::ClusterFileWatch(std::string path, std::string self,
                                   std::map<std::string, std::string> present,
                                   absl::Duration period, Membership* members, Alarms* alarms)
    : path_(std::move(path)),
      self_(std::move(self)),
      members_(members),
      present_(std::move(present)),
      repeating_(period, alarms, [this] { Look(); }) {}

void ClusterFileWatch::Look() {
  absl::StatusOr<std::string> read = ReadFile(path_, kMostClusterFileBytes);
  if (!read.ok() || *read == text_) return;
  text_ = *std::move(read);
  const absl::StatusOr<ClusterSpec> spec = ClusterFromJson(text_);
  if (!spec.ok()) {
    TRYST_LOG(Warning)
        << path_
        << " has changed and cannot be used, so this worker keeps the members that it knows: "
        << spec.status().message();
    return;
  }
  std::map<std::string, std::string> now = spec->Workers();
  for (const auto& [worker, address] : now) {
    if (worker != self_ && members_->Set(worker, address)) {
      TRYST_LOG(Info) << path_ << " now has " << worker << " at " << address;
    }
  }
  for (const auto& [worker, address] : present_) {
    if (worker == self_ || now.count(worker) != 0) continue;
    members_->Remove(worker);
    TRYST_LOG(Info) << path_ << " no longer has " << worker;
  }
  present_ = std::move(now);
}

}  // namespace tryst
