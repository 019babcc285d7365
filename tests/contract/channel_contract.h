#ifndef TRYST_TESTS_CONTRACT_CHANNEL_CONTRACT_H_
#define TRYST_TESTS_CONTRACT_CHANNEL_CONTRACT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gtest/gtest.h"
#include "rendezvous/alarms.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/tensor_fetcher.h"
#include "tests/process/pair/one_step.h"

// What every way of fetching a tensor promises, as tests that each back end must pass. A back end
// instantiates the suite in a test of its own, as for nic_contract.h.
namespace tryst {

// A producer's steps; each is created when it is first asked for.
class StepTable final : public OpenSource {
 public:
  explicit StepTable(Alarms* alarms) : alarms_(alarms) {}
  LocalRendezvous* step(int64_t step_id);

 private:
  LocalRendezvous* StepOf(int64_t step_id) override { return step(step_id); }

  Alarms* const alarms_;
  Mutex mu_;
  std::map<int64_t, std::unique_ptr<LocalRendezvous>> steps_ ABSL_GUARDED_BY(mu_);
};

// One producer and one consumer that fetches from it.
class ChannelWorld {
 public:
  virtual ~ChannelWorld() = default;
  virtual StepTable* producer() = 0;
  virtual TensorFetcher* consumer() = 0;
  virtual uint64_t producer_incarnation() const = 0;
  // Breaks whatever connects the two, once. False: there is nothing to break.
  virtual bool BreakLink() { return false; }
  // The better of two paths stops working for long, or works again. False: there is only one path.
  virtual bool LosePath(bool /*lost*/) { return false; }
  // The producer's process ends, and another one with other steps takes its place.
  virtual bool RestartProducer() { return false; }
  // How a receive ends then. Where the end of a process is seen at once, the status cannot say yet
  // whether the process will return.
  virtual absl::StatusCode EndOfALife() const { return absl::StatusCode::kAborted; }
  // How many bytes peers may write: now, and at most so far; 0: not counted.
  virtual std::pair<uint64_t, uint64_t> PinnedBytes() { return {0, 0}; }
  // Why the two do not look as they must, where all receives have ended and their tensors are gone;
  // empty: they do. It may take a moment until then.
  virtual std::string Audit() { return ""; }
  // For the message of a failing test.
  virtual std::string Explain() { return ""; }
};

struct ChannelContract {
  std::string name;
  std::function<std::unique_ptr<ChannelWorld>()> open;
  uint64_t landing_bytes = 0;  // 0: there is no cap.
  bool pins_memory = true;     // What was received counts against the cap.
  // The tests that this back end cannot pass: name, reason.
  std::vector<std::pair<std::string, std::string>> skips;
};

inline void PrintTo(const ChannelContract& contract, std::ostream* out) { *out << contract.name; }
inline std::string ChannelContractName(const ::testing::TestParamInfo<ChannelContract>& info) {
  return info.param.name;
}

class ChannelContractTest : public ::testing::TestWithParam<ChannelContract> {
 protected:
  struct Result {
    bool ended = false;
    int ends = 0;
    absl::Status status;
    Tensor tensor;
    bool is_dead = false;
  };
  class Pending;

  void SetUp() override;
  void TearDown() override;
  // The key of `edge`, from the producer to the consumer.
  TensorKey Key(const std::string& edge, uint64_t incarnation = 0) const;
  // A float tensor of `elements` numbers that start at `first`.
  static Tensor Numbers(int64_t elements, float first);
  static bool IsNumbers(const Tensor& tensor, int64_t elements, float first);
  std::shared_ptr<Pending> StartFetch(int64_t step, const TensorKey& key,
                                      const RecvArgs& args = {});
  Result FetchNow(int64_t step, const TensorKey& key, const RecvArgs& args = {});
  void Send(int64_t step, const TensorKey& key, Tensor tensor, bool is_dead = false);

  std::unique_ptr<ChannelWorld> world_;
};

// How a fetch ended. The test fails if its callback is dropped without being called, or runs twice.
class ChannelContractTest::Pending : public std::enable_shared_from_this<Pending> {
 public:
  DoneFn Done() {
    struct Bomb {
      explicit Bomb(std::shared_ptr<Pending> pending) : pending(std::move(pending)) {}
      Bomb(Bomb&& other) noexcept : pending(std::move(other.pending)) {}
      ~Bomb() {
        if (pending != nullptr) ADD_FAILURE() << "a callback was dropped unrun";
      }
      std::shared_ptr<Pending> pending;
    };
    return [bomb = Bomb(shared_from_this())](Received&& received) mutable {
      std::shared_ptr<Pending> pending = std::move(bomb.pending);
      MutexLock lock(&pending->mu_);
      pending->result_.ended = true;
      ++pending->result_.ends;
      pending->result_.status = std::move(received.status);
      pending->result_.tensor = std::move(received.tensor);
      pending->result_.is_dead = received.is_dead;
      pending->ended_.NotifyAll();
    };
  }

  Result Wait(std::chrono::milliseconds at_most = std::chrono::seconds(20)) {
    const auto until = std::chrono::steady_clock::now() + at_most;
    MutexLock lock(&mu_);
    while (!result_.ended) {
      if (ended_.WaitUntil(&mu_, until)) break;
    }
    if (!result_.ended) result_.status = absl::UnknownError("the fetch hangs");
    return result_;
  }
  bool ended() {
    MutexLock lock(&mu_);
    return result_.ended;
  }

 private:
  Mutex mu_;
  CondVar ended_;
  Result result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_CHANNEL_CONTRACT_H_
