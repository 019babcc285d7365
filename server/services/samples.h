#ifndef TRYST_SERVER_SERVICES_SAMPLES_H_
#define TRYST_SERVER_SERVICES_SAMPLES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Tensors without meaning that `tryst bench` has a peer send, to measure the path to it. They lie
// in steps of their own, which no job uses, and which end with their tensors.

// These steps hold samples.
inline constexpr int64_t kLastSampleStep = -(int64_t{1} << 62);
inline constexpr int64_t kFirstSampleStep = kLastSampleStep - (int64_t{1} << 60);
inline constexpr uint64_t kMostSampleBytes = uint64_t{64} << 20;
inline constexpr uint32_t kMostSamples = 4096;
inline constexpr size_t kMostSampledPeers = 4;
// A step of samples ends after this, whether its tensors were taken or not.
inline constexpr absl::Duration kSampleLife = absl::Seconds(60);
// The samples of a step use this many keys in turn.
inline constexpr uint64_t kSampleKeys = 8;

absl::StatusOr<TensorKeyPrefix> SampleKeys(const std::string& from, uint64_t from_incarnation,
                                           const std::string& to);
// Whether the tensor holds what was sent. IsSample() compares every byte, LooksLikeSample() only
// the first and the last.
bool IsSample(const Tensor& tensor, uint64_t bytes);
bool LooksLikeSample(const Tensor& tensor, uint64_t bytes);

// Thread-safe.
class SampleSender {
 public:
  // `steps` and `clock` outlive it.
  SampleSender(std::string worker, uint64_t incarnation, StepRegistry* steps, const Clock* clock)
      : worker_(std::move(worker)), incarnation_(incarnation), steps_(steps), clock_(clock) {}

  // Sends `count` tensors of `bytes`, which share one buffer. Ends the peer's earlier step of
  // samples. kInvalidArgument: over a limit, or not a step of samples. kResourceExhausted: the most
  // peers that may have samples here have some already.
  absl::Status Send(const std::string& to, int64_t step_id, uint64_t bytes, uint32_t count);
  // Ends the steps that are older than kSampleLife.
  void Sweep();

 private:
  const std::string worker_;
  const uint64_t incarnation_;
  StepRegistry* const steps_;
  const Clock* const clock_;
  Mutex mu_;
  struct Step {
    int64_t id = 0;
    Deadline ends;
  };
  std::map<std::string, Step> steps_by_peer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVICES_SAMPLES_H_
