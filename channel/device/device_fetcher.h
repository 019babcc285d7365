#ifndef TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_

#include <cstdint>
#include <deque>
#include <limits>
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
#include "rendezvous/host_fetcher.h"
#include "rendezvous/kept_tensors.h"
#include "rendezvous/tensor_fetcher.h"

namespace tryst {

struct DeviceFetcherOptions {
  uint32_t chunks_in_flight = 8;  // How many one transfer has.
  // If a copy out of the producer's memory took longer than this, it counts only if the producer
  // says that it still kept the tensor. Less than half of the producer's lease.
  int64_t trust_ms = 20'000;
  bool use_ipc = true;
  bool use_direct = true;  // A NIC that writes into the GPU (gpu_nic.h).
  // Smaller tensors are staged, because registering would cost more.
  uint64_t direct_bytes = 256 << 10;
  int64_t direct_again_ms = 10'000;  // After this time a way that was refused is tried again.
  // Between renewals of a view's lease; less than half of the lease.
  int64_t view_renewal_ms = 10'000;
  uint64_t max_tensor_bytes = UINT64_MAX;
};

struct DeviceFetcherCounters {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t inside = 0;
  uint64_t ipc = 0;
  uint64_t views = 0;      // The part of ipc that came by reference.
  uint64_t in_chunks = 0;  // The part of ipc that came out of memory mapped chunk by chunk.
  uint64_t direct = 0;     // Written by a NIC.
  uint64_t staged = 0;
  uint64_t read_in_peer = 0;  // Chunks that the GPU read in place, in the producer's shared memory.
  uint64_t bytes = 0;
};

// The consumer's end of the device proxy. A fetch that wants host memory passes through unchanged.
// One that wants device memory asks the producer what the tensor is (manifest.h), and brings it in
// the best way that has been proved: it reads the producer's memory, or the two NICs move it
// without the hosts, or it comes chunk by chunk through pinned slots over the channel of `fetcher`.
//
// With RecvArgs::by_reference and no destination, a tensor that can be read in the producer's
// memory comes as a view of it. The producer keeps it as long as the view is held.
//
// Of the fetches of one key and step that want device memory, one proceeds at a time
// (fetch_lines.h). So a fetch that is cancelled or late does not disturb the order of the others. A
// tensor that came inside of the producer's answer, and for which the fetch gets no memory, is kept
// for the next of these fetches, since the producer has let go of it.
//
// Fetch(), FetchMany() and AbortStep() are thread-safe; the rest is for the poller thread only.
class DeviceFetcher final : public TensorFetcher {
 public:
  // The arguments outlive it.
  DeviceFetcher(Poller* poller, TensorFetcher* fetcher, DeviceFetcherOptions options);
  ~DeviceFetcher() override;  // REQUIRES: drained.

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& status) override;

  size_t copying() const { return on_host_.copying(); }  // As of HostFetcher. Thread-safe.

  // ---- Poller thread only ----
  // True when nothing of ours is under way any more. `fetcher` must end the fetches that it has.
  bool Drained() const;
  // One line for each process that offered its memory: in which way we reach it, and why.
  std::string Explain() const;
  const DeviceFetcherCounters& counters() const { return counters_; }

 private:
  class Op;

  void Begin(std::unique_ptr<Op> op);
  // Fetches something beside the tensor itself, such as a chunk or a probe.
  void FetchAside(int64_t step, const absl::StatusOr<TensorKey>& key, Tensor destination,
                  absl::AnyInvocable<void(absl::Status, Tensor) &&> done);
  // Tells the producer that it need not keep a tensor any longer: "done", or "back". Of no step, so
  // that a step whose end comes at once does not keep the producer from hearing it.
  static constexpr int64_t kNoStep = std::numeric_limits<int64_t>::min();
  void LetGo(const TensorKey& key, uint64_t transfer, const char* how,
             absl::AnyInvocable<void() &&> heard);
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
  HostFetcher on_host_{fetcher_};  // For devices that are not ours.
  const DeviceFetcherOptions options_;
  const uint64_t host_ = ThisHost();
  const uint64_t process_ = ThisProcess();
  std::list<std::unique_ptr<Op>> ops_;
  FetchLines lines_;
  KeptTensors kept_;  // Producers' answers with the bytes inside.
  ProvedWays ways_;
  DeviceViews views_;
  size_t asides_ = 0;
  std::deque<std::pair<Executor*, Executor::Work>> undelivered_;
  DeliverTimer deliver_timer_;
  DeviceFetcherCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_FETCHER_H_
