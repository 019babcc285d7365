#ifndef TRYST_TESTS_CONTRACT_POOL_WORLD_H_
#define TRYST_TESTS_CONTRACT_POOL_WORLD_H_

#include <functional>
#include <memory>
#include <string>

#include "channel/transports.h"
#include "tests/contract/channel_contract.h"

namespace tryst {

// Two workers in this process, each with poller threads, a NIC and a ChannelPools. Hellos are
// handed over in memory. A PoolWorldWrap is what a test puts between a worker's pool and its steps,
// and between the pool and its receives. It is made before the poller runs, and destroyed after it.
class PoolWorldWrap {
 public:
  virtual ~PoolWorldWrap() = default;
  virtual TensorSource* source() = 0;
  virtual void SetChannels(TensorFetcher* channels) = 0;
  virtual TensorFetcher* fetcher() = 0;
  virtual absl::Status Stop() = 0;       // Call it after the pool was stopped.
  virtual std::string ExplainNow() = 0;  // Call it on the poller's thread.
};

struct PoolWorldOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;
  std::function<void(TransportsOptions*)> adjust;
  int paths = 1;    // How many NICs each worker has. The first can be lost.
  int pollers = 1;  // How many pollers each worker has; one if there is a wrap.
  std::function<std::unique_ptr<PoolWorldWrap>(bool is_producer, uint64_t incarnation,
                                               const TransportsOptions& pool, Poller* poller,
                                               TensorSource* source)>
      wrap;  // May be null.
  // Breaks a connection that has no NIC, on the poller thread of either side. Null: break the NICs'
  // queue pairs, if there are NICs.
  std::function<void(bool is_producer)> break_link;
  // What Explain() must say of the consumer's channel after it was used. Empty: anything.
  std::string path;
  // Whether its fetches go through the states of fetch_table.h, as a trace shows.
  bool states = true;
  // See ChannelWorld::EndOfALife().
  absl::StatusCode end_of_a_life = absl::StatusCode::kAborted;
};
std::unique_ptr<ChannelWorld> OpenPoolWorld(const PoolWorldOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_POOL_WORLD_H_
