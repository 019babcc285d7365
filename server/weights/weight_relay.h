#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "server/server.h"
#include "server/weights/parked_asks.h"
#include "server/weights/part_line.h"
#include "server/weights/part_source.h"
#include "weights/asks.h"
#include "weights/shelf.h"

namespace tryst {

// Has what a member has fetched, and answers other members with it. Who asks for what is still to
// come waits here. Thread-safe. The server outlives it.
class WeightRelay final : public Answerer, public std::enable_shared_from_this<WeightRelay> {
 public:
  WeightRelay(Server* server, std::string set, uint64_t max_bytes)
      : server_(server),
        set_(std::move(set)),
        waiting_(std::make_shared<ParkedAsks>(kMostWaiting, kMostWaitingOfOne)),
        shelf_(max_bytes) {}
  void Open();   // Once.
  void Close();  // Nobody is answered any more.

  // As PartShelf's.
  void Allow(const WeightVersion& active, const std::vector<WeightVersion>& open);
  bool Expect(const PartName& part, uint64_t bytes);
  void Put(const PartName& part, const Tensor& bytes);
  void GiveUp(const PartName& part);
  Tensor Find(const PartName& part) const;  // Invalid: it is not here.
  uint64_t bytes_held() const;
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override;

 private:
  static constexpr size_t kMostWaiting = 16'384;
  static constexpr size_t kMostWaitingOfOne = 64;

  // kNotFound: it is not here. Unset: it is to come.
  absl::StatusOr<std::optional<PartSource>> SourceOf(const WeightAsk& ask) const;
  void Settle();
  void Go(AskOfPeer ask);

  Server* const server_;
  const std::string set_;
  const std::shared_ptr<ParkedAsks> waiting_;
  std::shared_ptr<PartLine> parts_;  // Set by Open().
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  PartShelf shelf_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_
