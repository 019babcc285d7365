#include <sched.h>

#include <atomic>

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

std::atomic<int> kept{0};  // How often something was.

// Whoever dialled and whoever was dialled keeps what is large, and copies it only where nobody can
// keep it.
TEST_P(NicContractTest, EitherEndKeepsWhatItSends) {
  constexpr uint64_t kBytes = 64 << 10;
  QueuePairOptions options = Options();
  options.keep = [](const void*) {
    ++kept;
    return std::shared_ptr<const void>();
  };
  OpenBoth(options, options, 2 * kBytes);
  for (const auto& [from, to] : {std::pair<NicEnd*, NicEnd*>{&a_, &b_}, {&b_, &a_}}) {
    for (const bool has_owner : {true, false}) {
      const int before = kept;
      const Entry large = from->Piece(0, kBytes);
      SendWork work;
      work.entries = absl::MakeConstSpan(&large, 1);
      work.remote_address = to->At(kBytes);
      work.remote_key = to->region->remote_key();
      work.owner = has_owner ? from : nullptr;
      const size_t done = from->done.size();
      ASSERT_TRUE(Post(from, work).ok());
      ASSERT_TRUE(UntilDone(*from, done + 1));
      EXPECT_EQ(kept > before, has_owner) << (from == &a_ ? "the first" : "the second");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grpc, NicContractTest,
                         ::testing::Values(Contract("Stream", ""),
                                           Contract("Sealed", "a token of all workers")),
                         NicContractName);

}  // namespace
}  // namespace tryst
