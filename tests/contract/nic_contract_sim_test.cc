#include "absl/time/time.h"
#include "tests/contract/nic_contract.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

class SimPair final : public NicPair {
 public:
  SimPair(uint64_t seed, const SimOptions& options, const SimNicOptions& nic)
      : world_(seed, options), first_(world_.OpenNic(0, nic)), second_(world_.OpenNic(1, nic)) {}
  ~SimPair() override { EXPECT_EQ(world_.violations(), std::vector<std::string>()); }
  Nic* first() override { return first_.get(); }
  Nic* second() override { return second_.get(); }
  const Clock& clock() override { return world_.clock(); }
  void Progress(absl::Duration duration) override {
    world_.RunFor(absl::ToInt64Nanoseconds(duration));
  }

 private:
  SimWorld world_;
  std::unique_ptr<SimNic> first_;
  std::unique_ptr<SimNic> second_;
};

NicContract SimContract(std::string name, uint64_t seed, const SimOptions& options,
                        const SimNicOptions& nic = SimNicOptions()) {
  NicContract contract;
  contract.name = std::move(name);
  contract.open = [seed, options, nic] { return std::make_unique<SimPair>(seed, options, nic); };
  contract.threads = false;
  contract.sleeps = false;
  // One seed moves everything; for the others less is enough, because the simulator copies each
  // byte twice.
  if (seed != 1) contract.total_bytes = 128 << 20;
  return contract;
}

// Nothing takes time.
SimOptions Instant() {
  SimOptions options;
  options.doorbell_ns_max = options.completion_ns_max = options.break_ns_max = 0;
  options.link = {0, 0, 1'000'000'000'000, 0, 0};
  return options;
}

// Small chunks, over a link that delays and loses them.
SimOptions Rough() {
  SimOptions options;
  options.chunk_bytes = 4096;
  options.link.jitter_ns = 50'000;
  options.link.loss_ppm = 100;
  options.break_ns_max = 1'000'000;
  return options;
}

NicContract Unordered() {
  SimNicOptions nic;
  nic.limits.ordered = false;
  NicContract contract = SimContract("Unordered", 4, SimOptions(), nic);
  contract.skips = {
      {"ArrivesInTheOrderOfPosting", "it does not promise that"},
      {"WorkBeforeAFailedOneIsDoneAndThoseAfterAreFlushed", "a later one may go first, and fail"},
  };
  return contract;
}

NicContract NoImmediates() {
  SimNicOptions nic;
  nic.limits.write_with_immediate = false;
  NicContract contract = SimContract("NoImmediates", 5, SimOptions(), nic);
  for (const char* test :
       {"WriteWithImmediateTakesOneReceive", "NothingAtAllCanBeMoved", "ArrivesInTheOrderOfPosting",
        "BothWaysAtOnce", "SendWaitsForItsReceiveAsLongAsItIsTold",
        "ConnectsAndDisconnectsWithoutALeak", "QueuesOfOneAreEnough"}) {
    contract.skips.emplace_back(test, "it has no immediates");
  }
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Sim, NicContractTest,
                         ::testing::Values(SimContract("Usual", 1, SimOptions()),
                                           SimContract("Instant", 2, Instant()),
                                           SimContract("Rough", 3, Rough()), Unordered(),
                                           NoImmediates()),
                         NicContractName);

}  // namespace
}  // namespace tryst
