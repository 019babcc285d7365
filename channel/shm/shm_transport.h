#ifndef TRYST_CHANNEL_SHM_SHM_TRANSPORT_H_
#define TRYST_CHANNEL_SHM_SHM_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "channel/arena/arena.h"
#include "channel/ops/session_transport.h"
#include "channel/shm/fetch_link.h"
#include "channel/shm/serve_link.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/shm_options.h"
#include "channel/transport.h"

namespace tryst {

// The path over shared memory between the workers of this process and others on this host. Makes
// the consumer's channels, and answers the hellos of consumers.
class ShmTransport final : public SessionTransport {
 public:
  ShmTransport(const TransportContext& context, std::shared_ptr<Arena> arena, ShmOptions options);
  ~ShmTransport() override;

  const std::string& name() const override { return name_; }
  // kUnavailable: this system has no shared memory for us.
  absl::Status Open() override;
  bool is_optional() const override { return true; }
  // Drops consumers that have gone, and unused memory.
  void Maintain() override;

  void ExplainServing(const std::string& consumer, std::string* out) const override;
  void AddCounters(Counters* counters) const override;
  ShmHub* hub() { return hub_.get(); }

  // The most links of one consumer that are kept beside its present one, which an honest one comes
  // to only if link after link breaks while it holds tensors of each. Of all consumers together
  // there are at most ShmOptions::max_consumers.
  static constexpr size_t kMostKept = 64;

 private:
  // kUnimplemented: it is not the same host.
  absl::StatusOr<absl::optional<std::string>> FarewellIn(const Hello& hello) const override;
  absl::Status MayOpen(const std::string& consumer);
  // How many links of this consumer are over and kept, because it has not returned all that they
  // brought.
  size_t KeptFor(const std::string& consumer);

  // Constant after construction.
  const std::string name_ = kShmPath;
  const std::shared_ptr<Arena> arena_;
  const ShmOptions options_;
  std::unique_ptr<ShmHub> hub_;  // Null until Open().

  // Poller thread only.
  struct KeptLink {
    std::string consumer;
    std::weak_ptr<const GivenReferences> given;
  };
  std::vector<KeptLink> kept_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SHM_TRANSPORT_H_
