#include "server/cluster_file.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "server/cluster_spec.h"

namespace tryst {

class ClusterFileWatch::State : public std::enable_shared_from_this<State> {
 public:
  State(std::string path, std::string self, std::map<std::string, std::string> present,
        absl::Duration period, Membership* members, Alarms* alarms)
      : path_(std::move(path)),
        self_(std::move(self)),
        period_(period),
        members_(members),
        alarms_(alarms),
        present_(std::move(present)) {}

  void Schedule() {
    auto self = weak_from_this();
    MutexLock lock(&mu_);
    if (closing_) return;
    token_ = alarms_->Set(Deadline::After(alarms_->clock(), period_), [self] {
      if (auto state = self.lock()) {
        state->Look();
        state->Schedule();
      }
    });
  }

  void Close() {
    Alarms::Token token;
    {
      MutexLock lock(&mu_);
      closing_ = true;
      token = token_;
    }
    alarms_->Cancel(token);
    MutexLock lock(&looking_);  // One that runs is the last.
  }

 private:
  void Look() {
    MutexLock lock(&looking_);
    std::ifstream in(path_, std::ios::binary);
    std::ostringstream read;
    read << in.rdbuf();
    if (!in || read.str() == text_) return;
    text_ = read.str();
    const absl::StatusOr<ClusterSpec> spec = ClusterFromJson(text_);
    if (!spec.ok()) {
      TRYST_LOG(Warning) << path_ << " is not used: " << spec.status().message();
      return;
    }
    std::map<std::string, std::string> now = spec->Workers();
    for (const auto& [worker, address] : now) {
      if (worker != self_ && members_->Set(worker, address)) {
        TRYST_LOG(Info) << path_ << ": " << worker << " is at " << address;
      }
    }
    for (const auto& [worker, address] : present_) {
      if (worker == self_ || now.count(worker) != 0) continue;
      members_->Remove(worker);
      TRYST_LOG(Info) << path_ << ": " << worker << " has left";
    }
    present_ = std::move(now);
  }

  const std::string path_;
  const std::string self_;
  const absl::Duration period_;
  Membership* const members_;
  Alarms* const alarms_;
  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  Alarms::Token token_ ABSL_GUARDED_BY(mu_) = Alarms::kNoToken;
  Mutex looking_;
  std::string text_ ABSL_GUARDED_BY(looking_);
  std::map<std::string, std::string> present_ ABSL_GUARDED_BY(looking_);
};

ClusterFileWatch::ClusterFileWatch(std::string path, std::string self,
                                   std::map<std::string, std::string> present,
                                   absl::Duration period, Membership* members, Alarms* alarms)
    : state_(std::make_shared<State>(std::move(path), std::move(self), std::move(present), period,
                                     members, alarms)) {
  state_->Schedule();
}

ClusterFileWatch::~ClusterFileWatch() { state_->Close(); }

}  // namespace tryst
