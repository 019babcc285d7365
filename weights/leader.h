#ifndef TRYST_WEIGHTS_LEADER_H_
#define TRYST_WEIGHTS_LEADER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/decider.h"
#include "weights/holders.h"
#include "weights/questions.h"

namespace tryst {

// What the leader has to know of bytes.
class Covers {
 public:
  virtual ~Covers() = default;
  struct Sealed {
    uint64_t birth = 0;  // Random, and not 0.
    WeightRoot root = {};
  };
  // By the digests of all owners' lists: the boxes cover each tensor, and replicas are equal.
  // kUnavailable: it does not know yet, and is asked again; any other status drops it.
  virtual absl::StatusOr<Sealed> Judge(uint64_t term, uint64_t number,
                                       const std::vector<WeightRoot>& digests) = 0;
};

// Runs the protocol of one set while it holds the lease; any worker of the set may have one of
// these wait for its turn. What it knows besides the log it hears again from the questions, so it
// keeps nothing of a former reign. One thread calls it; it never waits.
class WeightLeader {
 public:
  struct Options {
    GroupTimes times;
    size_t min_members = 1;              // With fewer an activation is dropped.
    size_t kept_entries = kKeptEntries;  // It keeps so many for those that lack some.
    int64_t resume_permits = 10;         // For an activation that a former leader began.
  };
  using SayFn = std::function<void(const Answer&)>;
  // `decider` answers never inside a call of its own.
  WeightLeader(const Options& options, Decider* decider, Covers* covers, SayFn say)
      : options_(options),
        decider_(decider),
        covers_(covers),
        say_(std::move(say)),
        log_(options.kept_entries) {}

  // Returns when to be called again.
  int64_t Advance(int64_t now_ns);
  // `worker` has asked it; needed of members that have parts for others.
  void OnQuestion(const Question& question, int64_t now_ns, absl::string_view worker = {});
  void OnDecider(const DeciderAnswer& answer, int64_t now_ns);

  // By its own clock; the decider's word may be another.
  bool leads(int64_t now_ns) const { return phase_ == Phase::kLeads && now_ns < lease_end_ns_; }
  const LogState& state() const { return log_.state(); }
  size_t peers() const { return peers_.size(); }
  std::string Explain(int64_t now_ns) const;  // What an activation waits for.
  // Members that it waits for, or, where nothing is being activated, that do not serve what is
  // active.
  std::vector<uint64_t> Awaited() const;
  size_t behind() const;  // Members that do not serve the active version.
  // Members that have parts of the version for others, as far as they have been heard of lately:
  // kMaxHolders at most, and for each that asks they begin elsewhere. None where the log has no
  // such version, or has ended it.
  std::vector<Holder> HoldersOf(const WeightVersion& version, uint64_t asker, int64_t now_ns) const;
  // The rank of an owner of the term that has been silent three times as long as makes it lost, and
  // whose place nobody has taken.
  std::optional<uint32_t> LostOwner(int64_t now_ns) const;

 private:
  enum class Phase : uint8_t {
    kFollows,  // Somebody else has the lease, or nobody.
    kReads,    // It has the lease, and not all of the log.
    kLeads,
  };
  enum class Activation : uint8_t {
    kNone,
    kPreparing,  // Members stage it, and vote.
    kHolding,    // All have voted; under a barrier all hold.
    kChoosing,   // ACTIVE is being appended: it may be decided at any moment.
  };
  struct Peer {
    Question last;
    std::string worker;
    int64_t heard_ns = 0;
    int64_t permit_end_ns = 0;  // All its permits by this leader are over by then.
  };
  static constexpr size_t kMaxPeers = kMaxGroup + 2 * kMaxOwners;

  void KeepOffice(int64_t now_ns);
  void OnLease(const DeciderAnswer& answer, int64_t now_ns);
  void OnLogAnswer(const DeciderAnswer& answer, int64_t now_ns);
  void Resign();
  void Read(int64_t now_ns);
  void Append(LogEntry entry, int64_t now_ns);
  void AskLog(int64_t now_ns);
  void OnLogGrew();

  void Lead(int64_t now_ns);
  void BeginWhatWaited(int64_t now_ns);
  void GoOnActivating(int64_t now_ns);
  // Puts all members out of the set but those of which `have` is true.
  void PutOutBut(bool (*have)(const Question&, const WeightVersion&), int64_t now_ns);
  // Each of these returns whether it has begun an append.
  bool BeginTerm(int64_t now_ns);
  bool DropLost(int64_t now_ns);
  bool SealReady(int64_t now_ns);
  bool ChangeMembers(int64_t now_ns);
  bool Drop(uint64_t number, int64_t now_ns);
  void Begin(uint64_t number, ActivateMode mode, int64_t deadline_ns);
  void BeginWhatIsWished(const Question& question, int64_t now_ns);

  bool Alive(const Peer& peer, int64_t now_ns) const;
  const Peer* FindPeer(uint64_t incarnation) const;
  std::vector<const Peer*> Owners(int64_t now_ns) const;
  bool Lost(uint64_t incarnation, int64_t now_ns) const;
  bool AllMembers(bool (*have)(const Question&, const WeightVersion&)) const;
  bool NobodyServes(int64_t now_ns) const;
  bool MayPermit(const Question& question, int64_t now_ns) const;
  Answer MakeAnswer(const Question& question) const;
  bool Settled() const;
  void TellAll();
  void Forget(int64_t now_ns);
  std::string WhyNoTerm(int64_t now_ns) const;  // Empty: the owners that are there are named.

  const Options options_;
  Decider* const decider_;
  Covers* const covers_;
  const SayFn say_;

  Phase phase_ = Phase::kFollows;
  uint64_t calls_ = 0;
  uint64_t lease_call_ = 0;  // 0: none is out.
  int64_t lease_asked_ns_ = 0;
  int64_t next_lease_ns_ = 0;
  uint64_t lease_ = 0;
  int64_t lease_end_ns_ = 0;
  int64_t leads_since_ns_ = 0;
  int64_t quiet_ns_ = 0;  // The permits of former leaders are over by then.

  uint64_t life_ = 0;  // The log's.
  WeightLog log_;
  uint64_t log_call_ = 0;  // 0: none is out.
  int64_t log_asked_ns_ = 0;
  std::optional<LogEntry> append_;  // Until the log has grown there.
  bool reading_ = false;

  std::map<uint64_t, Peer> peers_;  // By incarnation; at most kMaxPeers.
  Activation activation_ = Activation::kNone;
  WeightVersion version_;  // That is being activated.
  ActivateMode mode_ = ActivateMode::kRolling;
  int64_t deadline_ns_ = 0;
  bool wishes_wait_ = false;  // Until all have had the time to ask a new leader.
  int64_t next_join_ns_ = 0;
  int64_t next_forget_ns_ = 0;
  bool tell_ = false;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_LEADER_H_
