#ifndef TRYST_SERVER_WEIGHTS_STAND_INS_H_
#define TRYST_SERVER_WEIGHTS_STAND_INS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rendezvous/tensor.h"
#include "server/weights/holder_notes.h"
#include "server/weights/patience.h"
#include "server/weights/sealed_version.h"
#include "server/weights/weight_calls.h"
#include "weights/digests.h"
#include "weights/held.h"
#include "weights/holders.h"
#include "weights/layout_wire.h"
#include "weights/log.h"

namespace tryst {

// Asks members for what owners that are gone had: the leader knows who has parts of a version, and
// these say which. Where nobody leads, or who leads has a log that does not know the version, all
// that this member has heard of are asked, and of whom owners and members have. Waits on the
// caller's thread. Thread-safe.
class StandIns {
 public:
  // How long anybody is waited for who may be gone.
  static constexpr absl::Duration kTry = absl::Seconds(2);
  // How long it may take to find out who an owner is.
  static constexpr absl::Duration kReach = absl::Seconds(1);
  // So many owners are asked in the place of one, within one kTry.
  static constexpr size_t kMostOthers = 8;
  // Each is reached for after the other, and those that are gone cost half of that time at most.
  static absl::Duration ReachOfEach(size_t owners) { return kTry / (2 * owners); }
  struct Parts {
    WeightCalls* calls;
    std::vector<std::string> leaders;  // One of them leads.
    std::vector<std::string> owners;   // The first ones are asked where nobody leads.
    std::string self;                  // This worker.
    uint64_t asker;                    // Differs between members, and is not 0.
    std::shared_ptr<HolderNotes> notes;
  };
  explicit StandIns(Parts parts) : parts_(std::move(parts)) {}

  // None: nobody is known to have parts of it.
  std::vector<Holder> HoldersOf(const WeightVersion& version, const Patience& patience) const;

  // What a few of them answer, the first of which `accepts`; or why there is none. For what each
  // holder of the version has.
  absl::StatusOr<Tensor> Answer(const WeightAsk& ask, const WeightVersion& version,
                                absl::FunctionRef<absl::Status(const Tensor&)> accepts,
                                const Patience& patience) const;

  // A box whose owners are gone, and what members have of it.
  struct Lost {
    uint32_t tensor = 0;
    std::vector<uint32_t> owners;
    BoxCover cover;                  // Holders count from 0, as in Found.
    const Digest* digest = nullptr;  // By its owner's list, once that is known.
    // Parts of it that are wanted by the digests of parts, where members do not have all of it.
    std::vector<Box> wanted = {};
  };
  struct Found {
    std::vector<Holder> holders;
    std::map<uint32_t, std::vector<Digest>> lists;  // By owner; each is the version's.
  };
  // Asks holders, but for `without`, until every box has a cover and a digest, or all that is
  // wanted of it has a cover of parts with digests, or all were asked.
  Found Find(const SealedVersion& version, const DeclaredLayouts& layouts,
             const std::set<std::string>& without, const Patience& patience,
             std::vector<Lost>* lost) const;

 private:
  void AskFor(uint32_t owner, absl::Span<const Holder> of, uint32_t first,
              const SealedVersion& version, const DeclaredLayouts& layouts,
              const Patience& patience, std::vector<Lost>* lost, Found* found) const;
  static void Note(HeldParts held, uint32_t owner, uint32_t holder, const SealedVersion& version,
                   const DeclaredLayouts& layouts, std::vector<Lost>* lost, Found* found);

  bool AskLeader(const WeightVersion& version, const Patience& patience) const;
  void AskAround(const WeightVersion& version, const Patience& patience) const;

  const Parts parts_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_STAND_INS_H_
