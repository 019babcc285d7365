#ifndef TRYST_CHANNEL_DEVICE_DEVICE_SOURCE_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "channel/device/device_engine.h"
#include "channel/device/manifest.h"
#include "channel/poller/poller.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct DeviceSourceOptions {
  uint64_t inside_bytes = 32 << 10;  // Up to here a tensor travels inside of its manifest.
  uint64_t chunk_bytes = 2 << 20;    // At most a staging slot.
  int64_t lease_ms = 60'000;         // How long a tensor is kept for a consumer that is silent.
  bool offer_ipc = true;
  bool offer_direct = true;
  uint64_t seed = 1;  // Of the transfers' numbers.
};

struct DeviceSourceCounters {
  uint64_t inside = 0;
  uint64_t ipc = 0;
  uint64_t transfers = 0;
  uint64_t chunks = 0;
  uint64_t handed_on = 0;   // Chunks of virtual memory, for consumers to map.
  uint64_t not_shared = 0;  // Tensors of this host whose memory cannot be.
  uint64_t whole = 0;       // Read by a NIC where they lie.
  uint64_t bytes_staged = 0;
  uint64_t expired = 0;  // Leases that ran out: the consumer died or was cut off.
};

// The producer's end of the device proxy: what peers take of this worker goes through it.
// Host tensors of ordinary keys pass untouched. A device tensor is staged whole for an
// ordinary key; for a key that asks (manifest.h) it is described, and then handed out in
// chunks or read by the consumer itself, while a lease keeps it.
//
// Take() and GiveBack() are safe from any thread; the rest belongs to the poller.
class DeviceSource final : public TensorSource {
 public:
  // Everything given outlives it. `engines` may be empty: then there are no device tensors.
  DeviceSource(Poller* poller, TensorSource* source, std::vector<DeviceEngine*> engines,
               DeviceSourceOptions options);
  ~DeviceSource() override;  // REQUIRES: closed, and no Take runs.

  void Take(int64_t step_id, const TensorKey& key, uint64_t request_id, const Args& args,
            DoneFn done) override;
  // What was staged is given back as it is, in host memory. A chunk is dropped: who has the
  // manifest has taken the tensor.
  void GiveBack(int64_t step_id, const TensorKey& key, Taken taken) override;

  // Drops every transfer. On the poller thread.
  void Close();
  size_t transfers() const { return transfers_.size(); }
  const DeviceSourceCounters& counters() const { return counters_; }
  // One line, if there are tensors that peers of this host have to be staged; else empty.
  std::string Explain() const;

 private:
  struct Transfer {
    Tensor tensor;
    std::shared_ptr<DeviceContext> context;  // Keeps the moment that reads wait for.
    std::string consumer;
    int64_t step_id = 0;
    TensorKey plain;
    uint64_t turn = 0;
    int64_t expires_ns = 0;
  };
  struct Answer {
    DoneFn done;
    Args args;
    std::string consumer;
    DeviceAsk ask;
    int64_t step_id = 0;
    TensorKey plain;
    uint64_t turn = 0;
    Tensor tensor;
    std::shared_ptr<DeviceContext> context;
  };
  struct Probe {
    Tensor tensor;
    uint32_t digest = 0;
    bool ready = false;
  };
  struct LeaseTimer final : PollerTimer {
    explicit LeaseTimer(DeviceSource* source) : source(source) {}
    void OnTimer() override { source->OnLeaseTimer(); }
    DeviceSource* const source;
  };

  void TakeForAsker(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                    uint64_t request_id, const Args& args, DoneFn done);
  void TakeForManifest(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                       uint64_t request_id, const Args& args, DoneFn done);
  // All that follows: poller thread.
  void OnPoller(absl::AnyInvocable<void() &&> fn);
  void AnswerManifest(std::shared_ptr<Answer> answer);
  void AnswerInside(const std::shared_ptr<Answer>& answer, DeviceManifest manifest);
  bool AnswerIpc(const std::shared_ptr<Answer>& answer, DeviceManifest* manifest);
  void AnswerChunk(const TensorKey& key, uint64_t id, uint64_t chunk, const Args& args,
                   DoneFn done);
  void AnswerChunks(const TensorKey& key, uint64_t id, uint64_t first, const std::string& mailbox,
                    const std::string& token, const Args& args, DoneFn done);
  void AnswerWhole(const TensorKey& key, uint64_t id, const Args& args, DoneFn done);
  void AnswerProbe(bool direct, const Args& args, DoneFn done);
  void EndProbe(DeviceEngine* engine, bool direct, const DeviceManifest& manifest, const Args& args,
                DoneFn done);
  void GiveBackManifest(int64_t step_id, const TensorKey& plain, Taken taken);
  uint64_t Keep(const Answer& answer);
  void GiveBackTransfer(uint64_t id);
  static void End(DoneFn done, const Args& args, absl::StatusOr<Tensor> tensor);
  static void EndEmpty(DoneFn done, const Args& args);
  DeviceEngine* EngineOf(const Tensor& tensor) const;
  void FillIpc(DeviceEngine* engine, const Tensor& tensor, const IpcReference& reference,
               DeviceManifest* manifest) const;
  void FillOrigin(DeviceManifest* manifest) const;
  void OnLeaseTimer();
  int64_t LeaseEnd() const { return poller_->clock().NowNs() + options_.lease_ms * 1'000'000; }
  Transfer* Find(const TensorKey& key, uint64_t id);

  Poller* const poller_;
  TensorSource* const source_;
  const std::vector<DeviceEngine*> engines_;
  const DeviceSourceOptions options_;
  const uint64_t host_ = ThisHost();
  const uint64_t process_ = ThisProcess();
  std::mt19937_64 random_;
  std::map<uint64_t, Transfer> transfers_;
  std::map<DeviceEngine*, Probe> probes_;
  LeaseTimer lease_timer_;
  bool closed_ = false;
  std::string not_shared_;  // Why, the last time.
  DeviceSourceCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_SOURCE_H_
