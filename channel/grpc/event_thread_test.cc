#include "channel/grpc/event_thread.h"

#include <grpcpp/alarm.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// Has something once Bring() was called, which wakes nobody.
class QuietSource final : public PollerSource {
 public:
  QuietSource() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~QuietSource() override { close(event_fd_); }
  void Bring() { has_.store(true); }
  void Wake() { eventfd_write(event_fd_, 1); }
  bool Poll() override {
    if (!has_.exchange(false)) return false;
    by_.store(std::this_thread::get_id());
    return true;
  }
  void Arm() override {}
  int event_fd() const override { return event_fd_; }
  // Who has taken it, and nobody since.
  std::thread::id TakeBy() { return by_.exchange(std::thread::id()); }

 private:
  const int event_fd_;
  std::atomic<bool> has_{false};
  std::atomic<std::thread::id> by_{};
};

class EventThreadTest : public testing::Test {
 protected:
  EventThreadTest() {
    for (int i : {0, 1}) {
      pollers_[i].AddSource(&sources_[i]);
      pollers_[i].Start();
    }
  }
  ~EventThreadTest() override {
    events_.reset();
    for (int i : {0, 1}) {
      pollers_[i].Stop();
      pollers_[i].RemoveSource(&sources_[i]);
    }
  }
  // One event, which brings the source of the second poller something and says that it is `of`'s.
  struct Arrives final : public GrpcEvent {
    void OnEvent(bool) override {
      thread = std::this_thread::get_id();
      test->sources_[1].Bring();
      test->events_->NoteArrival(of, [this] {
        by = test->sources_[1].TakeBy();
        done.store(true);
      });
    }
    EventThreadTest* test = nullptr;
    Poller* of = nullptr;
    std::thread::id thread;
    std::thread::id by;  // Who had taken it when the event ended.
    std::atomic<bool> done{false};
  };
  // Whether the thread of the events has taken it itself.
  bool TakenAtOnce(Poller* of) {
    usleep(2000);  // The pollers fall asleep, unless the processors are busy.
    Arrives arrives;
    arrives.test = this;
    arrives.of = of;
    grpc::Alarm alarm;
    alarm.Set(events_->queue(), std::chrono::system_clock::now(), &arrives);
    while (!arrives.done.load()) std::this_thread::yield();
    sources_[1].Wake();
    return arrives.by == arrives.thread;
  }
  bool EverTakenAtOnce(Poller* of, int times) {
    for (int i = 0; i < times; ++i) {
      if (TakenAtOnce(of)) return true;
    }
    return false;
  }

  const SteadyClock clock_;
  Poller pollers_[2] = {Poller(&clock_), Poller(&clock_)};
  QuietSource sources_[2];
  std::unique_ptr<EventThread> events_ = std::make_unique<EventThread>(
      std::make_unique<grpc::CompletionQueue>(), std::vector<Poller*>{&pollers_[0], &pollers_[1]});
};

// Else the thread of the events wakes another for each message.
TEST_F(EventThreadTest, WhatArrivesIsTakenForThePollerWhoseItIs) {
  EXPECT_TRUE(EverTakenAtOnce(&pollers_[1], 5000));
  EXPECT_FALSE(EverTakenAtOnce(&pollers_[0], 50)) << "only that one looks";
  EXPECT_FALSE(EverTakenAtOnce(nullptr, 50)) << "nobody looks for all";
}

TEST_F(EventThreadTest, APollerIsKnownByItsThread) {
  EXPECT_EQ(events_->PollerHere(nullptr), nullptr);
  EXPECT_EQ(events_->PollerHere(&pollers_[0]), nullptr);
  pollers_[1].RunAndWait([this] {
    EXPECT_EQ(events_->PollerHere(nullptr), &pollers_[1]);
    EXPECT_EQ(events_->PollerHere(&pollers_[0]), &pollers_[1]);
    EXPECT_EQ(events_->PollerHere(&pollers_[1]), &pollers_[1]);
  });
}

}  // namespace
}  // namespace tryst
