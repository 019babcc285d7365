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
#include "rendezvous/host_source.h"

namespace tryst {

struct DeviceSourceOptions {
  uint64_t inside_bytes = 32 << 10;  // Up to this size a tensor travels inside its manifest.
  uint64_t chunk_bytes = 2 << 20;    // At most the size of a staging slot.
  int64_t lease_ms = 60'000;         // How long a tensor is kept for a silent consumer.
  bool offer_ipc = true;
  bool offer_direct = true;
  uint64_t seed = 1;  // For the numbers of transfers.
};

struct DeviceSourceCounters {
  uint64_t inside = 0;
  uint64_t ipc = 0;
  uint64_t transfers = 0;
  uint64_t chunks = 0;
  uint64_t handed_on = 0;   // Chunks of virtual memory that consumers were given to map.
  uint64_t not_shared = 0;  // Tensors for this host whose memory cannot be shared.
  uint64_t bytes_staged = 0;
  uint64_t expired = 0;  // Leases that ran out: the consumer died or was cut off.
};

// The producer's end of the device proxy, through which peers take all tensors of this worker. With
// an ordinary key they get them in host memory (HostSource). For a key that asks (manifest.h) a
// tensor is described, and then sent in chunks or read by the consumer itself, while a lease keeps
// it. A worker without GPUs has one, too: its peers may have some.
//
// Take() and what is beside it are thread-safe; the rest is for the poller thread only.
class DeviceSource final : public TensorSource {
 public:
  // The arguments outlive it. `engines` may be empty: then all tensors are host tensors, or copied
  // to the host by the context that their sender gave.
  DeviceSource(Poller* poller, TensorSource* source, std::vector<DeviceEngine*> engines,
               DeviceSourceOptions options);
  ~DeviceSource() override;  // REQUIRES: closed, and no Take runs.

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) override {
    return on_host_.TakeHere(step_id, key, place, taken);
  }
  bool MayTake(const TensorKey& key) const override;
  // A chunk is dropped, because whoever has the manifest has taken the tensor.
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override;

  size_t copying() const { return on_host_.copying(); }  // As of HostSource. Thread-safe.

  // From now on no tensor is lent; who asks for one is refused, and it stays. Returns how many are
  // lent to peers that read them where they lie.
  size_t EndLending();
  // Drops every transfer. On the poller thread.
  void Close();
  size_t transfers() const { return transfers_.size(); }
  const DeviceSourceCounters& counters() const { return counters_; }
  // One line, if tensors for this host must be staged; else empty.
  std::string Explain() const;

 private:
  struct Transfer {
    Received taken;  // Its context keeps the moment that reads wait for.
    std::string consumer;
    int64_t step_id = 0;
    TensorKey plain;
    int64_t expires_ns = 0;
    bool in_reach = false;  // The consumer's GPU reads it where it lies.
  };
  struct Answer {
    DoneFn done;
    std::string consumer;
    DeviceAsk ask;
    int64_t step_id = 0;
    TensorKey plain;
    Received taken;
  };
  struct Probe {
    Tensor tensor;
    // The CRC-32C of its bytes. Whoever fills it while another reads it writes the same bytes.
    uint64_t seed = 0;
    uint32_t digest = 0;
    bool ready = false;
  };
  struct LeaseTimer final : PollerTimer {
    explicit LeaseTimer(DeviceSource* source) : source(source) {}
    void OnTimer() override { source->OnLeaseTimer(); }
    DeviceSource* const source;
  };

  void TakeForAsker(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                    const RecvArgs& args, DoneFn done);
  template <typename Fn>
  void OnPoller(Fn fn) {
    if (poller_->OnThread()) return fn();
    poller_->PostFn(std::move(fn));
  }
  // Poller thread only, from here on.
  void AnswerAsker(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                   const RecvArgs& args, DoneFn done);
  void TakeForManifest(int64_t step_id, const TensorKey& key, const DeviceAsk& ask,
                       const RecvArgs& args, DoneFn done);
  void AnswerManifest(std::shared_ptr<Answer> answer);
  void AnswerInside(const std::shared_ptr<Answer>& answer, DeviceManifest manifest);
  bool AnswerIpc(const std::shared_ptr<Answer>& answer, DeviceManifest* manifest);
  void EndKept(const std::shared_ptr<Answer>& answer, DeviceManifest manifest, absl::Status status);
  void FailInside(const std::shared_ptr<Answer>& answer, const absl::Status& why);
  void AnswerChunk(const TensorKey& key, uint64_t id, uint64_t chunk, DoneFn done);
  void AnswerChunks(const TensorKey& key, uint64_t id, uint64_t first, const std::string& mailbox,
                    const std::string& token, DoneFn done);
  void AnswerWhole(const TensorKey& key, uint64_t id, DoneFn done);
  void AnswerProbe(bool direct, DoneFn done);
  void EndProbe(DeviceEngine* engine, bool direct, const DeviceManifest& manifest, DoneFn done);
  void GiveBackManifest(int64_t step_id, const TensorKey& plain, Received taken);
  uint64_t Keep(const Answer& answer);
  void GiveBackTransfer(uint64_t id);
  // `turn`: of the tensor that was taken for it, if that can be given back.
  static void End(DoneFn done, absl::StatusOr<Tensor> tensor, uint64_t turn = 0);
  static void EndAnswer(Answer* answer, absl::StatusOr<Tensor> tensor) {
    End(std::move(answer->done), std::move(tensor), answer->taken.turn);
  }
  static void EndEmpty(DoneFn done);
  DeviceEngine* EngineOf(const Tensor& tensor) const;
  void FillIpc(DeviceEngine* engine, const Tensor& tensor, const IpcReference& reference,
               DeviceManifest* manifest) const;
  void FillOrigin(DeviceManifest* manifest) const;
  void OnLeaseTimer();
  int64_t LeaseEnd() const { return poller_->clock().NowNs() + options_.lease_ms * 1'000'000; }
  Transfer* Find(const TensorKey& key, uint64_t id);

  Poller* const poller_;
  HostSource on_host_;
  const std::vector<DeviceEngine*> engines_;
  TensorSource* const source_;  // What who asks gets: has the same tensors.
  const DeviceSourceOptions options_;
  const uint64_t host_ = ThisHost();
  const uint64_t process_ = ThisProcess();
  std::mt19937_64 random_;
  std::map<uint64_t, Transfer> transfers_;
  std::map<DeviceEngine*, Probe> probes_;
  LeaseTimer lease_timer_;
  bool lends_ = true;
  bool closed_ = false;
  std::string not_shared_;  // Why memory could not be shared, the last time.
  DeviceSourceCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_SOURCE_H_
