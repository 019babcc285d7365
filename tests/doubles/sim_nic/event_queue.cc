#include "tests/doubles/sim_nic/event_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

struct Later {
  bool operator()(const SimEvent& a, const SimEvent& b) const {
    return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.order > b.order;
  }
};

// The bits above the counter, which makes every order unique.
constexpr int kDrawShift = 40;

}  // namespace

void EventQueue::Add(int64_t at_ns, SimEventKind kind, uint32_t target, uint64_t check) {
  const uint64_t drawn = random_.Next() >> kDrawShift;
  const uint64_t unique = added_++ & ((uint64_t{1} << kDrawShift) - 1);
  heap_.push_back({std::max(at_ns, now_ns_), (drawn << kDrawShift) | unique, check, target, kind});
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

EventQueue::TaskId EventQueue::AddTask(int64_t at_ns, absl::AnyInvocable<void()> task) {
  if (free_tasks_.empty()) {
    free_tasks_.push_back(static_cast<uint32_t>(tasks_.size()));
    tasks_.emplace_back();
  }
  const uint32_t index = free_tasks_.back();
  free_tasks_.pop_back();
  tasks_[index].call = std::move(task);
  const uint32_t generation = tasks_[index].generation;
  Add(at_ns, SimEventKind::kTask, index, generation);
  return (static_cast<uint64_t>(generation) << 32) | index;
}

bool EventQueue::CancelTask(TaskId id) {
  const auto index = static_cast<uint32_t>(id);
  if (index >= tasks_.size() || tasks_[index].generation != id >> 32) return false;
  ++tasks_[index].generation;
  free_tasks_.push_back(index);
  // Destroying what the task captured may schedule or cancel others.
  const absl::AnyInvocable<void()> gone = std::move(tasks_[index].call);
  return true;
}

absl::AnyInvocable<void()> EventQueue::TakeTask(const SimEvent& event) {
  Task& task = tasks_[event.target];
  if (task.generation != event.check) return nullptr;
  ++task.generation;
  free_tasks_.push_back(event.target);
  return std::move(task.call);
}

void EventQueue::RemoveIf(absl::FunctionRef<bool(const SimEvent&)> gone) {
  heap_.erase(std::remove_if(heap_.begin(), heap_.end(), gone), heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), Later());
}

int64_t EventQueue::next_ns() const {
  if (heap_.empty()) return std::numeric_limits<int64_t>::max();
  return std::max(heap_.front().at_ns, now_ns_);
}

SimEvent EventQueue::Pop() {
  TRYST_CHECK(!heap_.empty());
  std::pop_heap(heap_.begin(), heap_.end(), Later());
  const SimEvent event = heap_.back();
  heap_.pop_back();
  now_ns_ = std::max(now_ns_, event.at_ns);
  return event;
}

void EventQueue::MoveTo(int64_t at_ns) {
  TRYST_CHECK(at_ns <= next_ns());
  now_ns_ = std::max(now_ns_, at_ns);
}

}  // namespace tryst
