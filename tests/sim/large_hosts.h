#ifndef TRYST_TESTS_SIM_LARGE_HOSTS_H_
#define TRYST_TESTS_SIM_LARGE_HOSTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "channel/transports.h"
#include "rendezvous/tensor_source.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

inline constexpr int64_t kMs = 1'000'000;  // In nanoseconds.

class LargeHosts;

// One life of a host: a poller, a NIC and the channels that ship. It lies here until the end,
// dead or alive, so that pointers to it stay good.
class SimProcess final : public TensorSource {
 public:
  SimProcess(LargeHosts* hosts, uint32_t host, uint64_t incarnation);
  ~SimProcess() override;

  uint32_t host() const { return host_; }
  uint64_t incarnation() const { return incarnation_; }
  bool alive() const { return alive_; }
  ChannelPool* pool() const { return pool_.get(); }  // Null: dead and drained.
  // Its processor is busy for so much longer when this turn is over.
  void Charge(int64_t ns) { charged_ns_ += ns; }

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override;

 private:
  friend class LargeHosts;
  void End(const absl::Status& why);
  bool Turn();
  bool DropWhenDrained();

  LargeHosts* const hosts_;
  const uint32_t host_;
  const uint64_t incarnation_;
  Poller poller_;
  std::shared_ptr<Nic> nic_;
  std::unique_ptr<ChannelPool> pool_;
  bool alive_ = true;
  bool queued_ = false;
  int64_t charged_ns_ = 0;
  int64_t busy_until_ns_ = 0;
  int64_t wakes_at_ns_ = std::numeric_limits<int64_t>::max();
};

// What the processes are for.
class SimProgram {
 public:
  virtual ~SimProgram() = default;
  virtual void Take(SimProcess* process, int64_t step_id, const TensorKey& key,
                    const RecvArgs& args, DoneFn done) = 0;
  virtual void GiveBack(SimProcess* process, int64_t step_id, const TensorKey& key,
                        Received taken) = 0;
  // Does a little of what the process wants to do. True: there is more.
  virtual bool StartSome(SimProcess* process) = 0;
};

struct LargeHostsOptions {
  uint64_t seed = 1;
  uint32_t hosts = 100;
  SimOptions world;
  TransportsOptions transports;  // Every host has them, but for its name.
};

// A thousand hosts on one thread and virtual time. Unlike ChannelCluster, which looks at every
// worker between two events, it turns only the pollers that have something to do.
class LargeHosts final : public Bootstrap {
 public:
  LargeHosts(const LargeHostsOptions& options, SimProgram* program);
  ~LargeHosts() override;  // REQUIRES: TakeDown() has returned true, or Start() was not called.

  void Start();  // All processes, at once.
  // Everything that happens before `until_ns`; ends early when `over` says so.
  void RunUntil(int64_t until_ns, const std::function<bool()>& over);
  bool TakeDown();  // False: something does not drain.

  SimWorld* world() { return &world_; }
  SimProcess* process(uint32_t host) const { return now_[host]; }
  uint32_t hosts() const { return options_.hosts; }
  static std::string NameOf(uint32_t host);
  void Wake(SimProcess* process);

  // The process dies without a word; `restarted` when another runs in its place.
  void Kill(uint32_t host, int64_t down_ns, std::function<void()> restarted);
  // It closes its channels, ends, and another runs in its place.
  void Restart(uint32_t host, int64_t down_ns, std::function<void()> restarted);
  void SetSilent(uint32_t host, bool silent);

  // Bootstrap: hellos, at the speed of a network, lost with a host that is silent.
  void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                HelloDone done) override;

 private:
  friend class SimProcess;
  bool RunReady();
  void WakeAt(SimProcess* process, int64_t at_ns);
  SimProcess* StartProcess(uint32_t host);
  void Replace(uint32_t host, int64_t down_ns, std::function<void()> restarted);

  const LargeHostsOptions options_;
  SimProgram* const program_;
  SimWorld world_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<SimProcess*> now_;  // By host; the last one while it is down.
  std::vector<bool> silent_;
  std::unordered_map<std::string, uint32_t> host_of_;
  std::deque<SimProcess*> ready_;
  uint64_t next_incarnation_ = 1000;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_LARGE_HOSTS_H_
