#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "server/server.h"
#include "server/weights/holder_notes.h"
#include "server/weights/parked_asks.h"
#include "server/weights/part_line.h"
#include "server/weights/part_source.h"
#include "server/weights/sealed_version.h"
#include "weights/asks.h"
#include "weights/held.h"
#include "weights/layout_wire.h"
#include "weights/shelf.h"

namespace tryst {

// Has what a member has fetched, and answers other members with it. Who asks for what is still to
// come waits here. Has also what the bytes of a version are held against, for those that find its
// owners gone. Thread-safe. The server outlives it.
class WeightRelay final : public Answerer, public std::enable_shared_from_this<WeightRelay> {
 public:
  // Notes whom it hears of in `notes`.
  WeightRelay(Server* server, std::string set, uint64_t max_bytes,
              std::shared_ptr<HolderNotes> notes = std::make_shared<HolderNotes>())
      : server_(server),
        set_(std::move(set)),
        notes_(std::move(notes)),
        waiting_(std::make_shared<ParkedAsks>(kMostWaiting, kMostWaitingOfOne)),
        shelf_(max_bytes) {}
  void Open();   // Once.
  void Close();  // Nobody is answered any more.

  // As PartShelf's.
  void Allow(const WeightVersion& active, const std::vector<WeightVersion>& open);
  bool Expect(const PartName& part, uint64_t bytes);
  void Put(const PartName& part, const Tensor& bytes,
           const std::optional<Digest>& digest = std::nullopt);
  void GiveUp(const PartName& part);
  Tensor Find(const PartName& part) const;  // Invalid: it is not here.
  std::vector<WeightVersion> Held() const;
  // All that are held, up to as many as one holder is asked for.
  std::vector<HeldPart> PartsOf(const WeightVersion& version) const;

  // This member has seen that the version is this one, and that an owner's list is. Kept as long as
  // parts of it may be.
  void Prove(const SealedVersion& version, std::shared_ptr<const DeclaredLayouts> layouts);
  void ProveList(const WeightVersion& version, uint32_t owner, std::vector<Digest> list);
  // What this member has seen of it; unset, null or empty: nothing.
  std::optional<SealedVersion> FindSealed(const WeightVersion& version) const;
  std::shared_ptr<const DeclaredLayouts> FindLayouts(const Digest& digest) const;
  std::vector<Digest> FindList(const WeightVersion& version, uint32_t owner) const;
  uint64_t bytes_held() const;
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override;

 private:
  static constexpr size_t kMostWaiting = 16'384;
  static constexpr size_t kMostWaitingOfOne = 64;

  struct Proof {
    SealedVersion sealed;
    std::shared_ptr<const DeclaredLayouts> layouts;
    std::map<uint32_t, std::vector<Digest>> lists;  // By owner.
  };
  // Null: it is not here. By number; 0: by the digest of the layouts.
  const Proof* FindProof(const WeightAsk& ask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t BytesOfProof(const WeightAsk& ask) const;
  absl::StatusOr<Tensor> MakeProof(const WeightAsk& ask) const;
  absl::StatusOr<Tensor> Make(const WeightAsk& ask);
  // kNotFound: it is not here. Unset: it is to come.
  absl::StatusOr<std::optional<PartSource>> SourceOf(const WeightAsk& ask) const;
  void NoteAsker(const AskOfPeer& ask);
  void Settle();
  void Go(AskOfPeer ask);

  Server* const server_;
  const std::string set_;
  const std::shared_ptr<HolderNotes> notes_;
  const std::shared_ptr<ParkedAsks> waiting_;
  std::shared_ptr<PartLine> parts_;  // Set by Open().
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  PartShelf shelf_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Proof> proofs_ ABSL_GUARDED_BY(mu_);  // By number, of what the shelf allows.
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_RELAY_H_
