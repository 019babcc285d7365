// The contract of every NIC, over libfabric's verbs provider and Soft-RoCE. Runs in the guest
// (run.sh), where TRYST_HOST_A and TRYST_HOST_B are the devices' addresses.
#include <sched.h>

#include <cstdlib>

#include "tests/contract/nic_contract.h"
#include "verbs/ofi/ofi_nic.h"

namespace tryst {
namespace {

std::unique_ptr<Nic> OpenProvider(const char* variable) {
  const char* const host = std::getenv(variable);
  OfiNicOptions options;
  options.provider = "ofi:verbs";
  options.host = host == nullptr ? "10.0.0.1" : host;
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenOfiNic(options);
  EXPECT_TRUE(nic.ok()) << nic.status();
  return nic.ok() ? *std::move(nic) : nullptr;
}

class OfiVerbsPair final : public NicPair {
 public:
  OfiVerbsPair() : first_(OpenProvider("TRYST_HOST_A")), second_(OpenProvider("TRYST_HOST_B")) {}
  Nic* first() override { return first_.get(); }
  Nic* second() override { return second_.get(); }
  const Clock& clock() override { return clock_; }
  void Progress(absl::Duration) override { sched_yield(); }

 private:
  const SteadyClock clock_;
  const std::unique_ptr<Nic> first_;
  const std::unique_ptr<Nic> second_;
};

NicContract VerbsContract() {
  NicContract contract;
  contract.name = "Verbs";
  contract.open = [] { return std::make_unique<OfiVerbsPair>(); };
  contract.patience = absl::Seconds(30);  // An emulated machine on a busy one.
  contract.ack_timeout = 14;
  contract.total_bytes = 64 << 20;
  contract.connections = 20;
  contract.responder_events = false;
  contract.refusal = CompletionStatus::kRetryExceeded;
  contract.skips = {
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
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Ofi, NicContractTest, ::testing::Values(VerbsContract()), NicContractName);

}  // namespace
}  // namespace tryst
