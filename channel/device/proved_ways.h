#ifndef TRYST_CHANNEL_DEVICE_PROVED_WAYS_H_
#define TRYST_CHANNEL_DEVICE_PROVED_WAYS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/device/device_engine.h"
#include "channel/device/manifest.h"
#include "channel/poller/poller.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// A fetch that waits for a way to be proved.
class ProofWaiter {
 public:
  virtual ~ProofWaiter() = default;
  virtual void OnProof() = 0;  // It leaves the way's `waiting` in here.
};

// What is known of one way to another process's memory.
struct DeviceWay {
  enum class State { kUnknown, kProbing, kProved, kRefused };
  State state = State::kUnknown;
  bool direct = false;  // By NICs; else by cuda_ipc.
  std::string worker;
  std::string exporter;  // Its process, by which mappings are named.
  std::string why;
  int64_t refused_at_ns = 0;
  uint64_t staged = 0;  // Tensors that could not be mapped although it is proved.
  std::vector<ProofWaiter*> waiting;
};

// The ways to the memory of other processes, and their proofs: before a tensor is read through a
// mapping, or brought by NICs alone, memory with a known digest is. Poller thread only.
class ProvedWays {
 public:
  // Asks the peer for something beside a tensor; `done` runs on the poller thread.
  using AsideFn =
      absl::AnyInvocable<void(int64_t step, const absl::StatusOr<TensorKey>& key, Tensor into,
                              absl::AnyInvocable<void(absl::Status, Tensor) &&> done)>;

  // `again_ms`: after which NICs that were refused are looked at again.
  ProvedWays(Poller* poller, int64_t again_ms, AsideFn aside)
      : poller_(poller), again_ms_(again_ms), aside_(std::move(aside)) {}

  // To the memory of who wrote `manifest`; it stays where it is.
  DeviceWay* Find(const DeviceManifest& manifest, const DeviceEngine& engine, bool direct);
  // Its state; one that is not known is being proved from now on, by way of `key`, and whoever is
  // added to its `waiting` goes on then.
  DeviceWay::State StateOf(DeviceWay* way, int64_t step, const TensorKey& key,
                           DeviceEngine* engine);
  // One line for each.
  std::string Explain() const;
  bool idle() const { return copies_ == 0; }

 private:
  static constexpr size_t kMost = 4096;  // Peers say who they are.

  void Probe(DeviceWay* way, int64_t step, const TensorKey& key, DeviceEngine* engine);
  void OnProbe(DeviceWay* way, DeviceEngine* engine, absl::Status status, const Tensor& answer);
  void ProbeDirect(DeviceWay* way, int64_t step, const TensorKey& key, DeviceEngine* engine,
                   const DeviceManifest& manifest);
  void Compare(DeviceWay* way, DeviceEngine* engine, const void* from, uint64_t bytes,
               uint32_t digest, absl::AnyInvocable<void() &&> after);
  void End(DeviceWay* way, absl::Status status);

  Poller* const poller_;
  const int64_t again_ms_;
  AsideFn aside_;
  // By process, host, our GPU, and whether it is by NICs.
  std::map<std::tuple<uint64_t, uint64_t, int, bool>, DeviceWay> ways_;
  DeviceWay one_too_many_;  // Refused.
  size_t copies_ = 0;       // Of ours, on their way.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_PROVED_WAYS_H_
