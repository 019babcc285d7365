#include <sched.h>

#include <utility>

#include "base/clock.h"
#include "tests/contract/nic_contract.h"
#include "verbs/ofi/ofi_nic.h"

namespace tryst {
namespace {

class OfiPair final : public NicPair {
 public:
  explicit OfiPair(const std::string& provider) {
    OfiNicOptions options;
    options.provider = provider;
    auto first = OpenOfiNic(options);
    auto second = OpenOfiNic(options);
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    first_ = *std::move(first);
    second_ = *std::move(second);
  }
  Nic* first() override { return first_.get(); }
  Nic* second() override { return second_.get(); }
  const Clock& clock() override { return clock_; }
  void Progress(absl::Duration) override { sched_yield(); }

 private:
  const SteadyClock clock_;
  std::unique_ptr<Nic> first_;
  std::unique_ptr<Nic> second_;
};

using Skips = std::vector<std::pair<std::string, std::string>>;

NicContract OfiContract(const std::string& name, const std::string& provider, Skips skips) {
  NicContract contract;
  contract.name = name;
  contract.open = [provider] { return std::make_unique<OfiPair>(provider); };
  contract.patience = absl::Seconds(30);
  contract.total_bytes = 128 << 20;
  contract.connections = 100;
  contract.responder_events = false;
  // Some providers never report a refusal, so such a work fails only when the patience is over.
  contract.ack_timeout = 14;
  contract.refusal = CompletionStatus::kRetryExceeded;
  contract.skips = std::move(skips);
  const Skips all = {
      {"SendWithoutAReceiveFailsWhenTheRetriesAreOver",
       "libfabric keeps a send until there is a receive for it"},
      {"WorkOfAPeerWithoutReceivesIsDoneMeanwhile",
       "a send completes when the peer's library has it, before it meets its receive"},
      {"SendWaitsForItsReceiveAsLongAsItIsTold", "libfabric's immediates need no receive"},
      {"SendLongerThanItsReceiveFailsOnBothSides",
       "a send completes when the peer's library has it, before it meets its receive"},
      {"ReceiveIntoMemoryThatIsNotOursFailsOnBothSides",
       "a send completes when the peer's library has it, before it meets its receive"},
  };
  contract.skips.insert(contract.skips.end(), all.begin(), all.end());
  return contract;
}

const char kStays[] = "where both ends are in one process, its endpoints stay to the end";
const char kLeaks[] =
    "libfabric 1.17 keeps the socket of a peer that left while its connection was being made";
const char kReads[] = "libfabric 1.17's tcp does not ask whether a region may be read";
const char kBlocks[] =
    "libfabric 1.17's shm leaves a refused write at the head of the peer's queue";
const char kCrashes[] =
    "libfabric 1.17's shm crashes whoever greets one of its own process that is gone";
const char kLooks[] = "a provider without a descriptor has its sleepers look every millisecond";
const char kSleeper[] = "SleeperLearnsThatItsPeerDoesNotAnswer";

INSTANTIATE_TEST_SUITE_P(
    Ofi, NicContractTest,
    ::testing::Values(OfiContract("Tcp", "ofi:tcp",
                                  {{"ConnectsAndDisconnectsWithoutALeak", kLeaks},
                                   {"RegionIsReadOnlyWhereItAllowsIt", kReads}}),
                      OfiContract("Shm", "ofi:shm",
                                  {{"ArmedQueueWakesItsSleeper", kLooks},
                                   {kSleeper, kLooks},
                                   {"ConnectsAndDisconnectsWithoutALeak", kStays},
                                   {"RefusedRequestBreaksThePeerToo", kBlocks},
                                   {"WorkFailsWhenNobodyIsThere", kCrashes}}),
                      OfiContract("Udp", "ofi:udp",
                                  {{"ArmedQueueWakesItsSleeper", kLooks},
                                   {kSleeper, kLooks},
                                   {"RefusedRequestBreaksThePeerToo", kBlocks}})),
    NicContractName);

}  // namespace
}  // namespace tryst
