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
  virtual void OnProof() = 0;  // It must leave the way's `waiting` in this call.
};

// What is known of one way to another process's memory.
struct DeviceWay {
  enum class State { kUnknown, kProbing, kProved, kRefused };
  State state = State::kUnknown;
  bool direct = false;  // Over NICs; else over CUDA IPC.
  std::string worker;
  std::string exporter;  // The exporting process, which names its mappings.
  std::string why;
  int64_t refused_at_ns = 0;
  bool may_pass = false;   // Why it is refused says nothing of the way, or may change.
  uint64_t forgotten = 0;  // The exporter's last count (DeviceManifest).
  uint64_t staged = 0;     // Tensors that could not be mapped although the way is proved.
  std::vector<ProofWaiter*> waiting;
  size_t proofs = 0;  // Under way; each has the way's address.
  uint64_t used = 0;  // When it was last looked for, as a number of ProvedWays.
};

// The ways to the memory of other processes, and their proofs: before a tensor is read through a
// mapping, or brought by NICs alone, memory with a known digest is. Poller thread only.
class ProvedWays {
 public:
  // A bound, because each life of a peer has ways of its own, and peers name themselves. The way
  // that was not used for longest makes room.
  static constexpr size_t kMost = 4096;
  // Fetches something beside a tensor from the peer; `done` runs on the poller thread.
  using AsideFn =
      absl::AnyInvocable<void(int64_t step, const absl::StatusOr<TensorKey>& key, Tensor into,
                              absl::AnyInvocable<void(absl::Status, Tensor) &&> done)>;

  // `again_ms`: after this time a refused way over NICs is proved again.
  ProvedWays(Poller* poller, int64_t again_ms, AsideFn aside)
      : poller_(poller), again_ms_(again_ms), aside_(std::move(aside)) {}

  // The way to the memory of the process that wrote `manifest`. It lasts until another one is
  // looked for, and while it is being proved.
  DeviceWay* Find(const DeviceManifest& manifest, const DeviceEngine& engine, bool direct);
  // Its state. If that is unknown, a proof begins now by means of `key`; the fetches in `waiting`
  // continue when it ends.
  DeviceWay::State StateOf(DeviceWay* way, int64_t step, const TensorKey& key,
                           DeviceEngine* engine);
  // One line for each.
  std::string Explain() const;
  bool idle() const { return copies_ == 0; }

 private:
  // Makes room for one; false: all of them are being proved.
  bool ForgetOldest();
  void Probe(DeviceWay* way, int64_t step, const TensorKey& key, DeviceEngine* engine);
  void OnProbe(DeviceWay* way, DeviceEngine* engine, absl::Status status, const Tensor& answer);
  void ProbeDirect(DeviceWay* way, int64_t step, const TensorKey& key, DeviceEngine* engine,
                   const DeviceManifest& manifest);
  void Compare(DeviceWay* way, DeviceEngine* engine, const void* from, uint64_t bytes,
               uint32_t digest, absl::AnyInvocable<void() &&> after);
  // `may_pass`: what failed says nothing of the way.
  void End(DeviceWay* way, absl::Status status, bool may_pass = false);

  Poller* const poller_;
  const int64_t again_ms_;
  AsideFn aside_;
  // By process, host, our GPU, and whether it is by NICs.
  std::map<std::tuple<uint64_t, uint64_t, int, bool>, DeviceWay> ways_;
  uint64_t finds_ = 0;
  DeviceWay one_too_many_;  // Stands for all ways beyond the bound, and is refused.
  size_t copies_ = 0;       // Copies of ours under way.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_PROVED_WAYS_H_
