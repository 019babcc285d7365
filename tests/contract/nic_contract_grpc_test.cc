#include <sched.h>

#include "tests/contract/grpc_nic.h"
#include "tests/contract/nic_contract.h"

namespace tryst {
namespace {

class GrpcPair final : public NicPair {
 public:
  explicit GrpcPair(const std::string& token) : net_(GrpcNet::Make(token)) {
    first_ = net_->OpenNic();
    second_ = net_->OpenNic();
  }
  Nic* first() override { return first_.get(); }
  Nic* second() override { return second_.get(); }
  const Clock& clock() override { return clock_; }
  void Progress(absl::Duration) override { sched_yield(); }

 private:
  const SteadyClock clock_;
  const std::shared_ptr<GrpcNet> net_;
  std::unique_ptr<Nic> first_;
  std::unique_ptr<Nic> second_;
};

NicContract Contract(const char* name, const std::string& token) {
  NicContract contract;
  contract.name = name;
  contract.open = [token] { return std::make_unique<GrpcPair>(token); };
  contract.checks_tokens = true;
  contract.total_bytes = 64 << 20;
  contract.connections = 60;
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Grpc, NicContractTest,
                         ::testing::Values(Contract("Stream", ""),
                                           Contract("Sealed", "a token of all workers")),
                         NicContractName);

}  // namespace
}  // namespace tryst
