#ifndef TRYST_BENCH_DEVICE_PAIR_H_
#define TRYST_BENCH_DEVICE_PAIR_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "channel/device/device_proxy.h"
#include "channel/poller/poller.h"
#include "channel/transports.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {

class OneStep;

// Carries hellos between two processes, over one socket with a thread on each side.
class SocketBootstrap final : public Bootstrap {
 public:
  explicit SocketBootstrap(int fd) : fd_(fd) {}
  ~SocketBootstrap() override { Stop(); }
  void Start(HelloHandler* handler);
  void Stop();
  void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                HelloDone done) override;

 private:
  void Loop();
  void Send(uint8_t kind, uint32_t id, const std::string& body);

  const int fd_;
  HelloHandler* handler_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  Mutex mu_;
  uint32_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, HelloDone> waiting_ ABSL_GUARDED_BY(mu_);
};

struct DeviceEndOptions {
  int rank = 0;  // 0 or 1: which of the two this process is.
  int hello_fd = -1;
  const Gpu* gpu = nullptr;
  uint32_t queue_pairs = 1;
  int64_t spin_us = 20;  // How long the poller spins.
  bool shared_memory = false;
  int helpers = 0;  // As the setting of a server.
  DeviceProxyOptions proxy;
};

// The worker of this process, with a GPU: a pool over the soft NIC, the device proxy around it, and
// one step.
class DeviceEnd {
 public:
  explicit DeviceEnd(const DeviceEndOptions& options);
  ~DeviceEnd();

  // The key of a tensor that `producer_rank` sends to the other rank.
  static TensorKey Key(int producer_rank, const std::string& edge, uint64_t iteration);
  absl::Status Send(const TensorKey& key, const Tensor& tensor, cuda::Stream stream,
                    GpuContext::Options options = GpuContext::Options());
  void Fetch(const TensorKey& key, const RecvArgs& args, DoneFn done) {
    proxy_->fetcher()->Fetch(1, key, args, std::move(done));
  }
  std::shared_ptr<GpuContext> Context(cuda::Stream stream,
                                      GpuContext::Options options = GpuContext::Options());
  const Gpu* gpu() const { return options_.gpu; }
  std::string Explain();
  size_t TransfersKept();
  void RunOnPoller(absl::AnyInvocable<void() &&> fn) { poller_.RunAndWait(std::move(fn)); }
  DeviceProxy* proxy() { return proxy_.get(); }

 private:
  const DeviceEndOptions options_;
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  std::unique_ptr<OneStep> step_;
  Poller poller_;
  SocketBootstrap bootstrap_;
  std::shared_ptr<Nic> nic_;
  std::unique_ptr<DeviceProxy> proxy_;
  std::unique_ptr<ChannelPool> pool_;
};

}  // namespace tryst

#endif  // TRYST_BENCH_DEVICE_PAIR_H_
