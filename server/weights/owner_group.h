#ifndef TRYST_SERVER_WEIGHTS_OWNER_GROUP_H_
#define TRYST_SERVER_WEIGHTS_OWNER_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/server.h"
#include "server/status/weight_views.h"
#include "server/weights/leader_link.h"
#include "server/weights/leading.h"
#include "server/weights/patience.h"
#include "weights/owner.h"
#include "weights/questions.h"

namespace tryst {

// An owner's part in who decides: it says READY, learns from the log what became of versions, and
// asks for activations. The first owner also leads. Thread-safe.
class OwnerGroup {
 public:
  struct Parts {
    Server* server;  // It outlives this.
    std::string set;
    std::vector<std::string> owners;  // Workers' names, by rank.
    uint32_t rank;
    WeightLeader::Options leads;  // Who leads does by it, and each takes its times.
    Covers* covers;               // Asked under locks of this object's.
    // Those that may lead have one each. Null: the first owner has the log in memory, and leads.
    Leading::MakeDeciderFn make_decider;
    // Called on a thread of this object's, without a lock.
    std::function<void(const WeightVersion&)> on_sealed;
    std::function<void(uint64_t)> on_active;
    // Brings the others what the leader is to tell, where this owner leads. Called on any thread.
    std::function<void(std::vector<Answer>)> tell;
  };
  explicit OwnerGroup(Parts parts);
  // Who waits in here hears kCancelled. REQUIRES: Close() has returned, and so have all calls.
  ~OwnerGroup();
  void Close();

  void Declare(const WeightRoot& layouts);  // Once.
  // READY; until the log says what becomes of the version, and on_sealed() has returned.
  absl::Status Seal(uint64_t number, const WeightRoot& digest, const Patience& patience);
  absl::Status Activate(uint64_t number, ActivateMode mode, const Patience& patience);
  // Others ask it. kUnavailable: this owner does not lead now.
  absl::StatusOr<Answer> OnQuestion(const Question& question, absl::string_view worker);
  // Members that have parts of the version for others. kUnavailable: this owner does not lead
  // now.
  absl::StatusOr<std::vector<Holder>> HoldersOf(const WeightVersion& version, uint64_t asker) const;
  std::optional<uint32_t> LostOwner() const;  // Its rank, if this owner leads.
  uint64_t term() const;  // The log is in it; 0: in none, or nothing is declared.
  std::string Explain() const;
  size_t members() const;
  void View(WeightView* view) const;  // All but the versions and bytes that the owner holds.

 private:
  // What a thread waits for; under mu_.
  struct Decision {
    bool ended = false;
    absl::Status status;
  };
  absl::Status NoLeader() const;
  int64_t Turn(const LeaderLink::Heard& heard, std::vector<Question>* questions);
  void Tell(std::vector<Answer> news);
  std::string Note() const;  // What it leads, or what is wrong; may be empty.

  const Parts parts_;
  const uint64_t incarnation_;  // Each opening of the set has another.
  std::shared_ptr<Leading> leading_;
  std::function<void(Answer)> hear_;
  mutable Mutex mu_;
  CondVar decided_;
  std::unique_ptr<GroupOwner> group_ ABSL_GUARDED_BY(mu_);  // Null: nothing is declared.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Question> questions_ ABSL_GUARDED_BY(mu_);  // To be sent.
  uint64_t told_length_ ABSL_GUARDED_BY(mu_) = 0;  // on_sealed() has heard so much of the log.
  uint64_t told_active_ ABSL_GUARDED_BY(mu_) = 0;  // And on_active() of this version.
  std::vector<WeightVersion> sealed_ ABSL_GUARDED_BY(mu_);  // on_sealed() is yet to hear of them.
  bool telling_ ABSL_GUARDED_BY(mu_) = false;               // One of the two hears something now.
  std::unique_ptr<LeaderLink> link_;  // The last one: its thread uses the others.
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_OWNER_GROUP_H_
