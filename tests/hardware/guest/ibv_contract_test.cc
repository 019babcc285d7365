// The NIC contract over real libibverbs and Soft-RoCE. Runs in the guest (run.sh), where
// TRYST_NIC_A and TRYST_NIC_B name the devices.
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

INSTANTIATE_TEST_SUITE_P(Ibv, NicContractTest, ::testing::Values(RxeContract()), NicContractName);

}  // namespace
}  // namespace tryst
