#ifndef TRYST_TESTS_CONTRACT_POOL_WORLD_H_
#define TRYST_TESTS_CONTRACT_POOL_WORLD_H_

#include <functional>
#include <memory>
#include <string>

#include "channel/transports.h"
#include "tests/contract/channel_contract.h"

namespace tryst {

// Two workers in this process, each with poller threads, a NIC and a ChannelPools; hellos
// are handed over in memory.
// What a test puts between a worker's pool and its steps on one side, its receives on the
// other. Made before the poller runs; destroyed after it.
class PoolWorldWrap {
 public:
  virtual ~PoolWorldWrap() = default;
  virtual TensorSource* source() = 0;
  virtual void SetChannels(TensorFetcher* channels) = 0;
  virtual TensorFetcher* fetcher() = 0;
  virtual absl::Status Stop() = 0;       // After the pool was stopped.
  virtual std::string ExplainNow() = 0;  // On the poller thread.
};

struct PoolWorldOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;
  std::function<void(TransportsOptions*)> adjust;
  int paths = 1;    // NICs of each worker. The first can be lost.
  int pollers = 1;  // Of each worker; one, where there is a wrap.
  std::function<std::unique_ptr<PoolWorldWrap>(bool is_producer, uint64_t incarnation,
                                               const TransportsOptions& pool, Poller* poller,
                                               TensorSource* source)>
      wrap;  // May be null.
  // Breaks what connects the two without a NIC, on the poller thread of either side. Null: the
  // NICs' queue pairs are broken, if there are NICs.
  std::function<void(bool is_producer)> break_link;
  // What Explain() must say of the consumer's channel when it has been used. Empty: anything.
  std::string path;
  // ChannelWorld::EndOfALife().
  absl::StatusCode end_of_a_life = absl::StatusCode::kAborted;
};
std::unique_ptr<ChannelWorld> OpenPoolWorld(const PoolWorldOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_POOL_WORLD_H_
