#include "channel/rdma/shared_nic.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {

SharedNic::SharedNic(NicPath path, uint64_t landing_cap_bytes)
    : path_(std::move(path)),
      landings_(std::make_shared<LandingPool>(path_.nic, landing_cap_bytes)) {
  landings_->SetRoomCallback([this] {
    MutexLock lock(&mu_);
    for (const Listed& one : users_) one.user->TellRoom();
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
    users_.push_back({user, true});
  }
  MutexLock lock(&events_mu_);
  if (events_ != nullptr || nic()->event_fd() < 0) return absl::OkStatus();
  auto events = AsyncEventThread::Start(nic(), [this](const NicEvent& event) { TellEvent(event); });
  if (!events.ok()) return events.status();
  events_ = *std::move(events);
  return absl::OkStatus();
}

void SharedNic::StopEvents(User* user) {
  MutexLock starting(&events_mu_);
  bool heard = false;
  {
    MutexLock lock(&mu_);
    for (Listed& one : users_) {
      if (one.user == user) one.hears_events = false;
      heard |= one.hears_events;
    }
  }
  if (!heard) events_.reset();  // It takes mu_, and never this lock.
}

void SharedNic::Remove(User* user) {
  StopEvents(user);
  MutexLock lock(&mu_);
  users_.erase(std::remove_if(users_.begin(), users_.end(),
                              [user](const Listed& one) { return one.user == user; }),
               users_.end());
}

void SharedNic::TellEvent(const NicEvent& event) {
  MutexLock lock(&mu_);
  for (const Listed& one : users_) {
    if (one.hears_events) one.user->TellEvent(event);
  }
}

void SharedNic::PollEvents() {
  if (nic()->event_fd() >= 0) return;
  while (auto event = nic()->NextEvent()) TellEvent(*event);
}

void SharedNic::WantRoom(const User* of) {
  MutexLock lock(&mu_);
  for (const Listed& one : users_) {
    if (one.user != of) one.user->TellWanted();
  }
}

}  // namespace tryst
