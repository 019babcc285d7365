// The NIC contract over real libibverbs and Soft-RoCE or software iWARP. Runs in the
// guest (run.sh), where TRYST_NIC_A and TRYST_NIC_B name the devices.
#include <sched.h>

#include <cstdlib>

#include "tests/contract/nic_contract.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

std::string DeviceName(const char* variable) {
  const char* const name = std::getenv(variable);
  return name == nullptr ? "rxe0" : name;
}

std::unique_ptr<Nic> OpenDevice(const char* variable) {
  IbvNicOptions options;
  options.choice.settings.device = DeviceName(variable);
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(options);
  EXPECT_TRUE(nic.ok()) << nic.status();
  return nic.ok() ? *std::move(nic) : nullptr;
}

class IbvPair final : public NicPair {
 public:
  IbvPair() : first_(OpenDevice("TRYST_NIC_A")), second_(OpenDevice("TRYST_NIC_B")) {}
  Nic* first() override { return first_.get(); }
  Nic* second() override { return second_.get(); }
  const Clock& clock() override { return clock_; }
  void Progress(absl::Duration) override { sched_yield(); }

 private:
  const SteadyClock clock_;
  const std::unique_ptr<Nic> first_;
  const std::unique_ptr<Nic> second_;
};

NicContract RxeContract() {
  NicContract contract;
  contract.name = "Rxe";
  contract.open = [] { return std::make_unique<IbvPair>(); };
  contract.patience = absl::Seconds(20);  // It runs on an emulated machine on a busy host.
  // A responder that refuses a request enters the error state without an event, unless it has
  // receives to flush.
  contract.responder_events = false;
  // At 100 MB/s or less, a sample is enough.
  if (std::getenv("TRYST_GUEST_LONG") == nullptr) contract.total_bytes = 192 << 20;
  contract.skips = {
      {"ArmedQueueWakesItsSleeper",
       "sleeps without the Poll() after Arm(): verbs wakes for later completions only"},
      {"SendWaitsForItsReceiveAsLongAsItIsTold",
       "Soft-RoCE 6.1 goes on counting its retries while the peer has no receive"},
      {"SendLongerThanItsReceiveFailsOnBothSides",
       "Soft-RoCE calls it an operation error on both sides"},
      {"ReceiveIntoMemoryThatIsNotOursFailsOnBothSides",
       "Soft-RoCE's receiver calls it an operation error"},
  };
  return contract;
}

// What iWARP's wire has not, or has otherwise: docs/OPERATIONS.md says it to users.
NicContract SiwContract() {
  NicContract contract;
  contract.name = "Siw";
  contract.completes_landed = false;
  contract.open = [] { return std::make_unique<IbvPair>(); };
  contract.patience = absl::Seconds(20);  // An emulated machine on a busy one.
  contract.responder_events = false;
  if (std::getenv("TRYST_GUEST_LONG") == nullptr) contract.total_bytes = 192 << 20;
  const auto skip = [&contract](const char* why, std::initializer_list<const char*> tests) {
    for (const char* const test : tests) contract.skips.emplace_back(test, why);
  };
  skip("it has no immediates",
       {"WriteWithImmediateTakesOneReceive", "NothingAtAllCanBeMoved", "ArrivesInTheOrderOfPosting",
        "BothWaysAtOnce", "SendWaitsForItsReceiveAsLongAsItIsTold",
        "SendFillsTheReceivesEntriesInOrder", "ConnectsAndDisconnectsWithoutALeak",
        "QueuesOfOneAreEnough"});
  skip("a write completes when it has left: what the peer refuses breaks the queue pair afterwards",
       {"WriteOneBytePastTheEndChangesNothing", "WriteOneByteBeforeTheBeginningChangesNothing",
        "WriteThatWrapsAroundTheAddressSpaceChangesNothing", "WrongKeyOpensNothing",
        "RevokedKeyOpensNothing", "RegionIsWrittenOnlyWhereItAllowsIt",
        "RefusedRequestBreaksThePeerToo", "WorkBeforeAFailedOneIsDoneAndThoseAfterAreFlushed"});
  skip("what of a write lies within the region lands before the rest is refused",
       {"LargeWriteOneBytePastTheEndChangesNothing"});
  skip(
      "a send completes when it has left, before it meets its receive",
      {"SendWithoutAReceiveFailsWhenTheRetriesAreOver", "WorkOfAPeerWithoutReceivesIsDoneMeanwhile",
       "SendLongerThanItsReceiveFailsOnBothSides", "ReceiveIntoMemoryThatIsNotOursFailsOnBothSides",
       "BreakFlushesEverythingInOrderAndDrains"});
  skip("siw calls it an operation error", {"LocalEntryPastItsRegionIsAProtectionError"});
  skip("a refused READ is flushed, as its connection breaks",
       {"ReadPastTheEndBringsNothing", "RegionIsReadOnlyWhereItAllowsIt"});
  skip("the peer's leaving breaks the queue pair before the next work asks for it",
       {"WorkFailsWhenThePeersQueuePairIsGone"});
  skip("a READ has one entry", {"ReadFetchesAndScatters"});
  return contract;
}

}  // namespace

// Whatever the work's own completion says.
TEST_P(NicContractTest, WhatIsRefusedLandsNowhereAndBreaksTheSender) {
  OpenBoth();
  const std::vector<uint8_t> before = b_.memory;
  SendWork work = Write(1, 0, 0, 10);
  work.remote_key ^= 0x100;
  ASSERT_TRUE(Post(&a_, work).ok());
  EXPECT_TRUE(Until([&] { return a_.queue_pair->state() != QueuePairState::kReady; }));
  EXPECT_EQ(b_.memory, before);
  EXPECT_FALSE(Post(&a_, Write(2, 0, 0, 10)).ok());
}

namespace {

NicContract ContractOfDevice() {
  return DeviceName("TRYST_NIC_A").rfind("siw", 0) == 0 ? SiwContract() : RxeContract();
}

INSTANTIATE_TEST_SUITE_P(Ibv, NicContractTest, ::testing::Values(ContractOfDevice()),
                         NicContractName);

}  // namespace
}  // namespace tryst
