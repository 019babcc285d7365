#ifndef TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "channel/device/device_engine.h"
#include "channel/device/device_views.h"
#include "channel/device/fetch_lines.h"
#include "channel/device/manifest.h"
#include "channel/device/proved_ways.h"
#include "channel/poller/poller.h"
#include "rendezvous/tensor_fetcher.h"

namespace tryst {

struct DeviceFetcherOptions {
  uint32_t chunks_in_flight = 8;  // Of one transfer.
  // A copy out of the producer's memory that took longer is believed only if the producer
  // says that it still kept the tensor. Less than half of its lease.
  int64_t trust_ms = 20'000;
  bool use_ipc = true;
  bool use_direct = true;             // A NIC that writes into the GPU (gpu_nic.h).
  uint64_t direct_bytes = 256 << 10;  // Smaller ones are staged: registering costs more.
  int64_t direct_again_ms = 10'000;   // After which a refusal is looked at again.
  int64_t view_renewal_ms = 10'000;   // Of the leases of views; less than half of one.
  uint64_t max_tensor_bytes = UINT64_MAX;
};

struct DeviceFetcherCounters {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t inside = 0;
  uint64_t ipc = 0;
  uint64_t views = 0;      // Of ipc: by reference.
  uint64_t in_chunks = 0;  // Of ipc: out of virtual memory that is mapped chunk by chunk.
  uint64_t direct = 0;     // Written by a NIC.
  uint64_t staged = 0;
  uint64_t read_in_peer = 0;  // Chunks that the GPU read in the producer's shared memory.
  uint64_t bytes = 0;
};

// The consumer's end of the device proxy. A fetch that wants host memory passes untouched;
// one that wants device memory asks the producer what the tensor is (manifest.h), and
// brings it by the best way that has been proved: reading the producer's memory, or its NIC
// and ours without the hosts, or chunk by chunk through pinned slots, over whatever channel
// `fetcher` has to the peer.
//
// With Args::by_reference and no destination, a tensor that is read in the producer's memory
// comes as a view of it, which the producer keeps as long as the view is held.
//
// Fetches of one key and step that want device memory go on one at a time (fetch_lines.h), so
// that one which is cancelled or late leaves the order of its neighbours as it was.
//
// Fetch(), FetchMany() and AbortStep() are safe from any thread; the rest
// belongs to the poller.
class DeviceFetcher final : public TensorFetcher {
 public:
  // Everything given outlives it.
  DeviceFetcher(Poller* poller, TensorFetcher* fetcher, DeviceFetcherOptions options);
  ~DeviceFetcher() override;  // REQUIRES: drained.

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                 ManyDoneFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& status) override;

  // ---- Poller thread only ----
  // True when nothing of ours is on its way any more; `fetcher` must end what it has.
  bool Drained() const;
  // One line for each process that was offered memory by: which way, and why.
  std::string Explain() const;
  const DeviceFetcherCounters& counters() const { return counters_; }

 private:
  class Op;

  static bool WantsDevice(const TensorKey& key, const Args& args);
  void FetchByHost(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  void Begin(std::unique_ptr<Op> op);
  // Asks the peer for something beside the tensor itself.
  void FetchAside(int64_t step, const absl::StatusOr<TensorKey>& key, Tensor destination,
                  absl::AnyInvocable<void(absl::Status, Tensor) &&> done);
  ProvedWays::AsideFn Aside();
  bool InThisProcess(const DeviceManifest& manifest) const {
    return manifest.host == host_ && manifest.process == process_;
  }
  void Deliver(Executor* executor, Executor::Work work);
  void OnPoller(absl::AnyInvocable<void() &&> fn);

  struct DeliverTimer final : PollerTimer {
    explicit DeliverTimer(DeviceFetcher* fetcher) : fetcher(fetcher) {}
    void OnTimer() override;
    DeviceFetcher* const fetcher;
  };

  Poller* const poller_;
  TensorFetcher* const fetcher_;
  const DeviceFetcherOptions options_;
  const uint64_t host_ = ThisHost();
  const uint64_t process_ = ThisProcess();
  std::list<std::unique_ptr<Op>> ops_;
  FetchLines lines_;
  ProvedWays ways_;
  DeviceViews views_;
  size_t asides_ = 0;
  std::deque<std::pair<Executor*, Executor::Work>> undelivered_;
  DeliverTimer deliver_timer_;
  DeviceFetcherCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_
