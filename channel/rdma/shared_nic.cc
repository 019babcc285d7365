#include "channel/rdma/shared_nic.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {

SharedNic::SharedNic(NicPath path, uint64_t landing_bytes)
    : path_(std::move(path)), landings_(std::make_shared<LandingPool>(path_.nic, landing_bytes)) {
  landings_->SetRoomCallback([this] {
    MutexLock lock(&mu_);
    for (User* user : users_) user->TellRoom();
  });
}

SharedNic::~SharedNic() {
  landings_->SetRoomCallback(nullptr);
  MutexLock lock(&mu_);
  TRYST_CHECK(users_.empty());
}

absl::Status SharedNic::Add(User* user) {
  {
    MutexLock lock(&mu_);
    users_.push_back(user);
  }
  MutexLock lock(&events_mu_);
  if (events_ != nullptr || nic()->event_fd() < 0) return absl::OkStatus();
  auto events = AsyncEventThread::Start(nic(), [this](const NicEvent& event) { TellEvent(event); });
  if (!events.ok()) return events.status();
  events_ = *std::move(events);
  return absl::OkStatus();
}

void SharedNic::Remove(User* user) {
  MutexLock ending(&events_mu_);
  bool left = false;
  {
    MutexLock lock(&mu_);
    users_.erase(std::remove(users_.begin(), users_.end(), user), users_.end());
    left = !users_.empty();
  }
  if (!left) events_.reset();  // Its thread takes mu_, but never this lock.
}

void SharedNic::TellEvent(const NicEvent& event) {
  MutexLock lock(&mu_);
  for (User* user : users_) user->TellEvent(event);
}

void SharedNic::PollEvents() {
  if (nic()->event_fd() >= 0) return;
  while (auto event = nic()->NextEvent()) TellEvent(*event);
}

void SharedNic::WantRoom(const User* of) {
  MutexLock lock(&mu_);
  for (User* user : users_) {
    if (user != of) user->TellWanted();
  }
}

}  // namespace tryst
