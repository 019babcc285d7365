#include <sched.h>

#include "tests/contract/nic_contract.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

class SoftPair final : public NicPair {
 public:
  explicit SoftPair(const SoftNicOptions& options) {
    auto first = OpenSoftNic(options);
    auto second = OpenSoftNic(options);
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

NicContract SoftContract(std::string name, const SoftNicOptions& options) {
  NicContract contract;
  contract.name = std::move(name);
  contract.open = [options] { return std::make_unique<SoftPair>(options); };
  contract.checks_tokens = true;
  return contract;
}

SoftNicOptions Sockets(int count) {
  SoftNicOptions options;
  options.sockets_per_queue_pair = count;
  options.stripe_bytes = 1 << 16;
  return options;
}

// Helpers make the system calls of large messages.
SoftNicOptions Helpers() {
  SoftNicOptions options = Sockets(3);
  options.crew = std::make_shared<Crew>(2, &Crew::Never);
  return options;
}

SoftNicOptions Tls() {
  SoftNicOptions options;
  options.tls = true;
  options.sockets_per_queue_pair = 2;
  options.stripe_bytes = 1 << 16;
  return options;
}

// Each socket has a session of its own, which a helper uses in one direction at a time.
SoftNicOptions TlsHelpers() {
  SoftNicOptions options = Helpers();
  options.tls = true;
  options.secret = "a token that all workers share";
  return options;
}

SoftNicOptions Unix() {
  SoftNicOptions options;
  options.listen_address = "unix:";
  return options;
}

// TCP moves more than a gibibyte and makes a thousand connections; the others need not repeat that.
NicContract Shortened(NicContract contract) {
  contract.total_bytes = 128 << 20;
  contract.connections = 250;
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Soft, NicContractTest,
                         ::testing::Values(SoftContract("Tcp", SoftNicOptions()),
                                           Shortened(SoftContract("FourSockets", Sockets(4))),
                                           Shortened(SoftContract("Helpers", Helpers())),
                                           Shortened(SoftContract("Unix", Unix())),
                                           Shortened(SoftContract("Tls", Tls())),
                                           Shortened(SoftContract("TlsHelpers", TlsHelpers()))),
                         NicContractName);

}  // namespace
}  // namespace tryst
