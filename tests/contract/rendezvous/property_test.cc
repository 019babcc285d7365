// Random operations against a model that is a map of queues. A failure names its seed.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr int kKeys = 6;

// A receive in the model.
struct ModelReceive {
  std::shared_ptr<Outcome> outcome;
  CancellationRef cancellation;
  Deadline deadline;
  // What the model expects; calls is 0 while it waits.
  int calls = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  int64_t number = -1;
};

class Player {
 public:
  explicit Player(uint64_t seed) : random_(seed) {
    LocalRendezvous::Options options;
    options.shards = 1 + static_cast<int>(random_() % 4);
    options.max_held_bytes = random_() % 2 != 0 ? 20 * LocalRendezvous::kMinChargeBytes : 0;
    cap_ = options.max_held_bytes / LocalRendezvous::kMinChargeBytes;
    options.check_immutable = random_() % 2 != 0;
    rendezvous_ = std::make_unique<LocalRendezvous>(options, &alarms_);
    for (int i = 0; i < kKeys; ++i) keys_.push_back(LocalKey(absl::StrCat("k", i)));
  }

  void Play(int operations) {
    for (int i = 0; i < operations; ++i) {
      One();
      Compare();
      if (testing::Test::HasFatalFailure()) return;
    }
    // At the end, abort the step or just drop it.
    if (random_() % 2 != 0) rendezvous_->StartAbort(absl::InternalError("abort"));
    const bool aborted = !rendezvous_->abort_cause().ok();
    rendezvous_.reset();
    for (const auto& receive : all_) {
      if (receive->calls != 0) continue;
      receive->calls = 1;
      receive->code = aborted ? absl::StatusCode::kInternal : absl::StatusCode::kCancelled;
    }
    Compare();
    ASSERT_EQ(alarms_.size(), 0u);
  }

 private:
  using Receives = std::deque<std::shared_ptr<ModelReceive>>;

  int PickKey() { return static_cast<int>(random_() % kKeys); }

  void One() {
    switch (random_() % 8) {
      case 0:
      case 1:
        return Send();
      case 2:
      case 3:
        return ReceiveOne();
      case 4:
        return SendSeveral();
      case 5:
        return ReceiveSeveral();
      case 6:
        return Cancel();
      case 7:
        return Advance();
    }
  }

  bool ModelAccepts(int sends_that_wait) {
    return cap_ == 0 || static_cast<int64_t>(waiting_sends_) + sends_that_wait <= cap_;
  }
  void ModelSend(int key, int64_t number) {
    Receives& receives = receives_[key];
    if (receives.empty()) {
      sends_[key].push_back(number);
      ++waiting_sends_;
      return;
    }
    receives.front()->calls = 1;
    receives.front()->number = number;
    receives.pop_front();
  }

  void Send() {
    const int key = PickKey();
    const int64_t number = next_number_++;
    const bool dead = random_() % 8 == 0;
    const bool fits = !receives_[key].empty() || ModelAccepts(1);
    const absl::Status status = rendezvous_->Send(keys_[key], SendArgs(), Number(number), dead);
    ASSERT_EQ(status.ok(), fits) << status;
    if (fits) ModelSend(key, dead ? -2 : number);
  }

  void SendSeveral() {
    std::vector<SendItem> items;
    std::vector<int> keys;
    const int64_t first = next_number_;
    const int count = static_cast<int>(random_() % 10);
    for (int i = 0; i < count; ++i) {
      keys.push_back(PickKey());
      items.push_back({keys_[keys.back()], Number(next_number_++), false});
    }
    const bool fits = ModelAccepts(count);
    const absl::Status status = rendezvous_->SendMany(absl::MakeSpan(items), SendArgs());
    ASSERT_EQ(status.ok(), fits) << status;
    for (int i = 0; fits && i < count; ++i) ModelSend(keys[i], first + i);
  }

  std::shared_ptr<ModelReceive> NewReceive(const RecvArgs& args) {
    auto receive = std::make_shared<ModelReceive>();
    receive->outcome = std::make_shared<Outcome>();
    receive->cancellation = args.cancellation;
    receive->deadline = args.deadline;
    all_.push_back(receive);
    return receive;
  }
  RecvArgs RandomArgs() {
    RecvArgs args;
    if (random_() % 3 == 0) {
      if (random_() % 4 == 0 || cancellations_.empty()) {
        cancellations_.push_back(std::make_unique<Cancellation>());
      }
      args.cancellation = cancellations_[random_() % cancellations_.size()].get();
    }
    if (random_() % 3 == 0) {
      args.deadline = Deadline::AtNs(alarms_.NowNs() + static_cast<int64_t>(random_() % 100) - 5);
    }
    return args;
  }
  void ModelReceiveNow(int key, const std::shared_ptr<ModelReceive>& receive) {
    std::deque<int64_t>& sends = sends_[key];
    if (!sends.empty()) {
      receive->calls = 1;
      receive->number = sends.front();
      sends.pop_front();
      --waiting_sends_;
    } else if (receive->cancellation != nullptr && receive->cancellation->cancelled()) {
      receive->calls = 1;
      receive->code = absl::StatusCode::kCancelled;
    } else if (receive->deadline.Passed(alarms_.NowNs())) {
      receive->calls = 1;
      receive->code = absl::StatusCode::kDeadlineExceeded;
    } else {
      receives_[key].push_back(receive);
    }
  }

  void ReceiveOne() {
    const int key = PickKey();
    const RecvArgs args = RandomArgs();
    auto receive = NewReceive(args);
    ModelReceiveNow(key, receive);
    rendezvous_->RecvAsync(keys_[key], args, Into(receive->outcome));
  }

  // A batch reports only when its last receive has ended.
  void ReceiveSeveral() {
    const RecvArgs args = RandomArgs();
    std::vector<TensorKey> keys;
    std::vector<std::shared_ptr<ModelReceive>> receives;
    for (int64_t count = random_() % 6; count > 0; --count) {
      const int key = PickKey();
      keys.push_back(keys_[key]);
      receives.push_back(NewReceive(args));
      ModelReceiveNow(key, receives.back());
    }
    batches_.push_back(receives);
    rendezvous_->RecvManyAsync(
        keys, args, [receives, bomb = Bomb()](absl::Status, absl::Span<Received> results) mutable {
          bomb.Defuse();
          ASSERT_EQ(results.size(), receives.size());
          for (size_t i = 0; i < results.size(); ++i) {
            Outcome& outcome = *receives[i]->outcome;
            ++outcome.calls;
            outcome.status = results[i].status;
            outcome.tensor = std::move(results[i].tensor);
            outcome.is_dead = results[i].is_dead;
          }
        });
  }

  template <typename Ends>
  void ModelEnd(absl::StatusCode code, Ends ends) {
    for (auto& [key, receives] : receives_) {
      Receives stay;
      for (const auto& receive : receives) {
        if (ends(*receive)) {
          receive->calls = 1;
          receive->code = code;
        } else {
          stay.push_back(receive);
        }
      }
      receives.swap(stay);
    }
  }
  void Cancel() {
    if (cancellations_.empty()) return;
    std::unique_ptr<Cancellation>& cancellation = cancellations_[random_() % cancellations_.size()];
    const CancellationRef cancelled = cancellation.get();
    if (random_() % 2 != 0) {
      cancellation->StartCancel();
    } else {
      // The end of one receive cancels others, too.
      cancellation = std::make_unique<Cancellation>();
    }
    ModelEnd(absl::StatusCode::kCancelled,
             [&](const ModelReceive& r) { return r.cancellation == cancelled; });
  }
  void Advance() {
    alarms_.AdvanceTo(alarms_.NowNs() + static_cast<int64_t>(random_() % 30));
    ModelEnd(absl::StatusCode::kDeadlineExceeded,
             [&](const ModelReceive& r) { return r.deadline.Passed(alarms_.NowNs()); });
  }

  void Compare() {
    std::map<const ModelReceive*, bool> in_unfinished_batch;
    for (const auto& batch : batches_) {
      bool finished = true;
      for (const auto& receive : batch) finished &= receive->calls != 0;
      for (const auto& receive : batch) in_unfinished_batch[receive.get()] = !finished;
    }
    for (const auto& receive : all_) {
      const Outcome& outcome = *receive->outcome;
      const bool expected = receive->calls != 0 && !in_unfinished_batch[receive.get()];
      ASSERT_EQ(outcome.calls, expected);
      if (!expected) continue;
      ASSERT_EQ(outcome.code(), receive->code) << outcome.status;
      ASSERT_EQ(outcome.is_dead ? -2 : outcome.number(), receive->number);
    }
    if (rendezvous_ == nullptr) return;
    // Receives that are settled need not be checked again.
    for (auto it = batches_.begin(); it != batches_.end();) {
      const bool finished = it->empty() || !in_unfinished_batch[it->front().get()];
      it = finished ? batches_.erase(it) : it + 1;
    }
    std::vector<std::shared_ptr<ModelReceive>> open;
    for (const auto& receive : all_) {
      if (receive->outcome->calls == 0) open.push_back(receive);
    }
    all_.swap(open);
    const RendezvousCounters counters = rendezvous_->counters();
    ASSERT_EQ(counters.waiting_sends, static_cast<int64_t>(waiting_sends_));
    int64_t waiting = 0;
    for (const auto& [key, receives] : receives_) waiting += receives.size();
    ASSERT_EQ(counters.waiting_receives, waiting);
  }

  std::mt19937_64 random_;
  VirtualAlarms alarms_;
  std::vector<std::unique_ptr<Cancellation>> cancellations_;
  std::unique_ptr<LocalRendezvous> rendezvous_;
  std::vector<TensorKey> keys_;
  int64_t cap_ = 0;
  int64_t next_number_ = 0;
  size_t waiting_sends_ = 0;
  std::map<int, std::deque<int64_t>> sends_;
  std::map<int, Receives> receives_;
  std::vector<std::shared_ptr<ModelReceive>> all_;
  std::vector<std::vector<std::shared_ptr<ModelReceive>>> batches_;
};

TEST(Property, BehavesAsAMapOfQueues) {
  const char* only = getenv("TRYST_SEED");
  const uint64_t first = only != nullptr ? strtoull(only, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + (only != nullptr ? 1 : 300); ++seed) {
    Player(seed).Play(400);
    if (testing::Test::HasFatalFailure()) {
      FAIL() << "replay with --test_env=TRYST_SEED=" << seed;
    }
  }
}

}  // namespace
}  // namespace tryst
