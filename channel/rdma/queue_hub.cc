#include "channel/rdma/queue_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"

namespace tryst {

absl::StatusOr<std::unique_ptr<QueueHub>> QueueHub::Create(Nic* nic, Poller* poller,
                                                           uint32_t depth) {
  auto completions = nic->CreateCompletionQueue(depth);
  if (!completions.ok()) return completions.status();
  return std::unique_ptr<QueueHub>(new QueueHub(nic, poller, depth, *std::move(completions)));
}

QueueHub::~QueueHub() { TRYST_CHECK(users_.empty()); }

void QueueHub::Attach() {
  poller_->AddSource(this);
  attached_ = true;
}

void QueueHub::Detach() {
  if (!attached_) return;
  poller_->RemoveSource(this);
  attached_ = false;
}

absl::Status QueueHub::Revive() {
  if (!lost_) return absl::OkStatus();
  if (!users_.empty()) return lost_why_;
  auto completions = nic_->CreateCompletionQueue(depth_);
  if (!completions.ok()) return completions.status();
  TRYST_LOG(Info) << "NIC " << nic_->name()
                  << " is used again, with a new completion queue; it had failed with: "
                  << lost_why_;
  Detach();
  completions_ = *std::move(completions);
  lost_ = false;
  Attach();
  return absl::OkStatus();
}

void QueueHub::OnEvent(const NicEvent& event) {
  switch (event.kind) {
    case NicEvent::Kind::kPortDown:
      TRYST_LOG(Warning)
          << "port " << int{event.port} << " of NIC " << nic_->name()
          << " is down: its connections end unless it comes back before the NIC's retries are over";
      return;
    case NicEvent::Kind::kPortUp:
      TRYST_LOG(Info) << "port " << int{event.port} << " of NIC " << nic_->name() << " is up";
      return;
    case NicEvent::Kind::kAddressChanged:
      TRYST_LOG(Info) << "port " << int{event.port} << " of NIC " << nic_->name()
                      << " has other addresses now; connections over the old ones that stop "
                         "working will be opened again";
      return;
    case NicEvent::Kind::kQueuePairFatal: {
      auto user = users_.find(event.id);
      if (user == users_.end()) return;  // It was removed.
      return user->second->OnQueuePairFatal(absl::UnavailableError(
          absl::StrCat("NIC ", nic_->name(), " reports that queue pair ", event.id,
                       " is broken: its connection will be opened again")));
    }
    case NicEvent::Kind::kCompletionQueueFatal:
    case NicEvent::Kind::kDeviceFatal:
      if (!lost_) OnLost(absl::UnavailableError("the NIC reports that it has failed"));
      return;
  }
}

void QueueHub::AddUser(uint32_t queue_pair, QueuePairUser* user) {
  TRYST_CHECK(users_.emplace(queue_pair, user).second) << "queue pair " << queue_pair;
  if (attach_once_used_ && !attached_) Attach();
}

void QueueHub::RemoveUser(uint32_t queue_pair) {
  users_.erase(queue_pair);
  last_user_ = nullptr;
}

bool QueueHub::Poll() {
  if (lost_) return false;
  auto count = completions_->Poll(absl::MakeSpan(batch_));
  if (!count.ok()) {
    OnLost(count.status());
    return true;
  }
  for (size_t i = 0; i < *count; ++i) {
    const Completion& completion = batch_[i];
    if (last_user_ == nullptr || last_number_ != completion.queue_pair) {
      auto user = users_.find(completion.queue_pair);
      if (user == users_.end()) {
        TRYST_REACHED("rare: a completion of a queue pair that is gone");
        continue;
      }
      last_number_ = completion.queue_pair;
      last_user_ = user->second;
    }
    last_user_->OnCompletion(completion);
  }
  return *count > 0;
}

void QueueHub::Arm() {
  if (lost_) return;
  const absl::Status armed = completions_->Arm();
  if (!armed.ok()) OnLost(armed);
}

void QueueHub::OnLost(const absl::Status& why) {
  lost_ = true;
  lost_why_ = why;
  TRYST_LOG(Error) << "NIC " << nic_->name()
                   << " has failed, and all its connections with it: " << why;
  // Copied, because a user may remove itself or another one in the call.
  std::vector<uint32_t> numbers;
  for (const auto& user : users_) numbers.push_back(user.first);
  std::sort(numbers.begin(), numbers.end());  // So that the order is the same in every run.
  for (uint32_t number : numbers) {
    auto user = users_.find(number);
    if (user != users_.end()) user->second->OnNicLost(why);
  }
}

}  // namespace tryst
