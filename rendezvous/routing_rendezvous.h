#ifndef TRYST_RENDEZVOUS_ROUTING_RENDEZVOUS_H_
#define TRYST_RENDEZVOUS_ROUTING_RENDEZVOUS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "rendezvous/device_handover.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_fetcher.h"

namespace tryst {

class KeptTensors;
class MatchCore;

// One step on one worker. Tensors that this worker produces meet in the local table; those of other
// workers are fetched. A host tensor of this worker is shared with its receiver. A device context
// copies tensors between device and host.
//
// It lives as long as its users refer to it, and until each fetch has its results.
class RoutingRendezvous final : public Rendezvous,
                                public std::enable_shared_from_this<RoutingRendezvous>,
                                private BeforeDone {
 public:
  // `worker` is "/job:J/replica:R/task:T". `fetcher` may be null: the process has no peers.
  // `alarms` and `fetcher` outlive every `done`.
  static std::shared_ptr<RoutingRendezvous> Make(absl::string_view worker, int64_t step_id,
                                                 const LocalRendezvous::Options& options,
                                                 Alarms* alarms, std::shared_ptr<HeldBytes> process,
                                                 TensorFetcher* fetcher);
  ~RoutingRendezvous() override;

  absl::Status Send(const TensorKey& key, const SendArgs& args, Tensor tensor,
                    bool is_dead) override;
  absl::Status SendMany(absl::Span<SendItem> items, const SendArgs& args) override;
  void RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  using Rendezvous::RecvAsync;
  void RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                     ManyDoneFn done) override;
  absl::Status SendSelected(const TensorKey& key, const SendArgs& args, const Tensor& tensor,
                            const Selection& selection) override;
  void RecvSelectedAsync(const TensorKey& key, const RecvArgs& args, const SelectedLanding& landing,
                         DoneFn done) override;
  std::shared_ptr<Turns> TurnsFor(const TensorKey& key) override;
  void StartAbort(const absl::Status& status) override;
  bool aborted() const override;
  void WhenRoom(int64_t bytes, absl::AnyInvocable<void(absl::Status) &&> ready) override;

  // Where what is produced here meets its receivers. Peers' takes go there: they get the tensor
  // where it lies, without a copy to the host.
  MatchCore* table() const { return table_; }
  RendezvousCounters counters() const;
  void ListWaiting(WaitingItems* items) const;
  int64_t step_id() const { return step_id_; }

 private:
  struct SelectedReceive;
  struct Mixed;

  RoutingRendezvous(absl::string_view worker, int64_t step_id,
                    const LocalRendezvous::Options& options, Alarms* alarms,
                    std::shared_ptr<HeldBytes> process, TensorFetcher* fetcher);
  const Clock& clock() const override { return alarms_->clock(); }
  bool EndsElsewhere(const TensorKey& key, const RecvArgs& args) const override;
  bool ProducedHere(const TensorKey& key) const {
    return key.src_device().empty() || key.IsFrom(worker_);
  }
  // Whether a tensor that is produced here needs a hand-over.
  bool NeedsHandover(const TensorKey& key, const RecvArgs& recv_args) const {
    return has_devices_ || MayNeedCopy(key, recv_args);
  }
  absl::Status CheckSend(const TensorKey& key) const;
  absl::Status CheckReceive(const TensorKey& key) const;
  absl::Status PackForPeer(const TensorKey& key, Tensor* tensor) const;
  void Fetch(const TensorKey& key, const RecvArgs& args, DoneFn&& done);
  void FetchInto(const TensorKey& key, const RecvArgs& args, DoneFn done);
  void FetchMany(absl::Span<const TensorKey> keys, const RecvArgs& args, ManyDoneFn done);
  void ReceiveEach(absl::Span<const TensorKey> keys, const RecvArgs& args, ManyDoneFn done);
  void StartFetching(uint64_t fetches);
  void EndStarting();
  void OnResults(absl::Status* first_error, absl::Span<Received> results) override;
  void AbortFetchesIfAborted();
  void Drop(uint64_t holds);
  KeptTensors* Kept();  // It stays as long as this.
  bool KeepsAny() const;
  bool KeepsOneOf(absl::Span<const TensorKey> keys);
  bool IsOver(const RecvArgs& args) const;
  bool RecvKept(const TensorKey& key, const RecvArgs& args, DoneFn* done);
  void FirstOfKept(const TensorKey& key, Received* received);

  // Constant after construction.
  const std::string worker_;
  const int64_t step_id_;
  Alarms* const alarms_;
  TensorFetcher* const fetcher_;
  const bool has_devices_;
  Allocator* const gathers_into_;

  MatchCore* const table_;
  // Who keeps it alive: the fetches under way, counted by one each, and its users and each call
  // that starts fetches, counted by kUser each. A pull changes it three times, and takes no lock
  // for that.
  static constexpr uint64_t kUser = uint64_t{1} << 40;
  std::atomic<uint64_t> holds_{kUser};
  std::atomic<int64_t> fetches_{0};  // That there were.
  // Fetched, and not as its receive wanted it. Null: none ever was.
  std::atomic<KeptTensors*> kept_{nullptr};
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ROUTING_RENDEZVOUS_H_
