#ifndef TRYST_TESTS_CONTRACT_NIC_CONTRACT_H_
#define TRYST_TESTS_CONTRACT_NIC_CONTRACT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "verbs/nic.h"

// What verbs/nic.h promises, as tests that every NIC must pass. A back end instantiates the suite
// in a test of its own:
//
//   INSTANTIATE_TEST_SUITE_P(Soft, NicContractTest, ::testing::Values(SoftContract()),
//                            NicContractName);
//
// Where NICs may differ, the parameter says how. A test that a NIC cannot pass is skipped with the
// reason.
namespace tryst {

// Two NICs whose queue pairs can reach each other, and their time.
class NicPair {
 public:
  virtual ~NicPair() = default;
  virtual Nic* first() = 0;
  virtual Nic* second() = 0;  // May be the same.
  virtual const Clock& clock() = 0;
  // Lets up to `duration` pass on clock(). Virtual time runs what is due; in real time other
  // threads may get the processor.
  virtual void Progress(absl::Duration duration) = 0;
};

struct NicContract {
  std::string name;
  std::function<std::unique_ptr<NicPair>()> open;
  // The longest time, on the pair's clock, that anything other than a timeout may take.
  absl::Duration patience = absl::Seconds(10);
  uint8_t ack_timeout = 19;  // For queue pairs that must not time out: 2 s for each attempt.
  // For queue pairs that must time out: short, but long enough for a busy machine.
  uint8_t short_ack_timeout = 14;
  uint64_t largest_region_bytes = 64 << 20;  // The largest region that a test may register.
  uint64_t total_bytes = 1280 << 20;         // How much the test of large transfers moves.
  int connections = 1000;                    // How many the test for leaks makes.
  // Each completion queue may be used on a thread of its own.
  bool threads = true;
  bool sleeps = true;  // event_fd() can be polled.
  // A queue pair that a peer's request broke has an event.
  bool responder_events = true;
  bool loss_is_noticed = true;  // A work fails when the peer's queue pair is gone.
  // A queue pair accepts only the peer that it was told of.
  bool checks_tokens = false;
  // The status of a request that the peer refused.
  CompletionStatus refusal = CompletionStatus::kRemoteAccess;
  // The tests that this NIC cannot pass: name, reason.
  std::vector<std::pair<std::string, std::string>> skips;
};

inline void PrintTo(const NicContract& contract, std::ostream* out) { *out << contract.name; }
inline std::string NicContractName(const ::testing::TestParamInfo<NicContract>& info) {
  return info.param.name;
}

// One end of a connection: a completion queue, a queue pair, and memory registered for all uses.
struct NicEnd {
  Nic* nic = nullptr;
  std::vector<uint8_t> memory;
  std::unique_ptr<Region> region;
  std::unique_ptr<CompletionQueue> completions;
  std::unique_ptr<QueuePair> queue_pair;
  std::vector<Completion> done;  // In the order of polling.

  uint64_t At(uint64_t offset) const { return region->address() + offset; }
  Entry Piece(uint64_t offset, uint64_t bytes) const {
    return {At(offset), bytes, region->local_key()};
  }
};

class NicContractTest : public ::testing::TestWithParam<NicContract> {
 protected:
  static constexpr uint64_t kMemoryBytes = 1 << 16;

  void SetUp() override;
  void TearDown() override;

  // Options that time out late.
  QueuePairOptions Options() const;
  QueuePairOptions ImpatientOptions() const;  // Options that time out soon.
  NicEnd OpenEnd(Nic* nic, QueuePairOptions options, uint64_t memory_bytes = kMemoryBytes);
  void OpenQueuePair(NicEnd* end, QueuePairOptions options);
  void Connect(NicEnd* a, NicEnd* b);
  void OpenBoth(QueuePairOptions a_options, QueuePairOptions b_options,
                uint64_t memory_bytes = kMemoryBytes);
  void OpenBoth() { OpenBoth(Options(), Options()); }

  void PollOnce(NicEnd* end);
  // Polls both ends until `condition` holds, for at most `patience`. False: it never held.
  [[nodiscard]] bool Until(const std::function<bool()>& condition);
  [[nodiscard]] bool UntilDone(const NicEnd& end, size_t completions);
  // Polls for a while, to see that something does not happen.
  void LetPass(absl::Duration duration);

  SendWork Write(uint64_t id, uint64_t from, uint64_t to, uint64_t bytes);
  SendWork Read(uint64_t id, uint64_t into, uint64_t from, uint64_t bytes);
  SendWork Send(uint64_t id, uint64_t from, uint64_t bytes);
  // Takes one receive of b's, as PostReceives() makes them, and completes at both.
  SendWork Knock(uint64_t id);
  void PostReceives(NicEnd* end, int count, uint64_t first_id = 100);
  absl::Status Post(NicEnd* end, const SendWork& work);
  // Posts from a_, and expects only its completion, soon.
  void ExpectStatus(const SendWork& work, CompletionStatus status);

  std::unique_ptr<NicPair> pair_;
  NicEnd a_;
  NicEnd b_;

 private:
  Entry piece_[8];  // The entries of the works made last.
  int next_piece_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_NIC_CONTRACT_H_
