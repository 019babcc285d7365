#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "server/server.h"
#include "server/status/weight_views.h"
#include "server/weights/leader_link.h"
#include "server/weights/patience.h"
#include "server/weights/sealed_version.h"
#include "server/weights/stand_ins.h"
#include "server/weights/weight_calls.h"
#include "server/weights/weight_relay.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"
#include "weights/layout_wire.h"
#include "weights/member.h"
#include "weights/pace.h"
#include "weights/permit.h"
#include "weights/questions.h"

namespace tryst {

struct WeightMemberOptions {
  std::string set;
  std::vector<std::string> owners;  // Workers' names, by rank.
  // Only learns of versions and fetches them: no activation waits for it, and it serves nothing.
  bool observes = false;
  // Without a permit it may go on with what it serves, and knows that it is not confirmed.
  bool keeps_knowingly = false;
  // It has up to so many bytes of the active version and of the one that it fetches for other
  // members, in memory of its own, so that owners need not send them again. 0: none, as where it
  // observes. One member of a set in a worker may have some.
  uint64_t hold_bytes = 0;
  // What it fetches of boxes comes no faster, over all its fetches and whichever way it comes: once
  // more has come it asks for nothing until the rate has made up for that. 0: no limit.
  uint64_t bytes_per_second = 0;
  GroupTimes times;  // All owners and members have the same.
};

// What a member hears, in the order in which the log brings it about.
struct WeightEvent {
  enum class Kind {
    kSealed,    // There is a newer version. Several may be told as one.
    kPrepare,   // Stage it beside what is served, then Vote().
    kHold,      // Start nothing new with what is served; when nothing runs, Held().
    kActive,    // Serve it from now on, then Switched().
    kDropped,   // The stage is wanted no more; whoever held goes on with what is served.
    kHeadless,  // The permit has run out: nobody who decides is heard.
  };
  Kind kind = Kind::kSealed;
  uint64_t number = 0;
};
const char* WeightEventName(WeightEvent::Kind kind);

class GpuContext;

// A consumer's end of a set: learns of sealed versions and fetches boxes of them into its own
// memory. Unless it observes, it is also a member of the group that serves one version: it stages,
// votes, holds and switches as the set's log says, and has a permit to serve while the leader
// answers it. Its calls wait on the caller's thread, and not on one that delivers for others.
// Thread-safe. The server outlives it. It has one thread of its own.
class WeightMember : private GroupMember::Port {
 public:
  // kInvalidArgument. kFailedPrecondition: the server has not started.
  static absl::StatusOr<std::unique_ptr<WeightMember>> Open(Server* server,
                                                            const WeightMemberOptions& options);
  ~WeightMember() override;  // It leaves the group, which notices by its silence.

  // The newest sealed version above `number`, as soon as there is one: by the log, or as the first
  // owner knows, or others where that one is gone. kDeadlineExceeded, kCancelled. kUnavailable: no
  // owner can be reached, or the first one has not opened the set.
  absl::StatusOr<SealedVersion> Newer(uint64_t number, const Patience& patience);
  // The version of that number. kNotFound: it is over. kAborted: it was dropped.
  absl::StatusOr<SealedVersion> Find(uint64_t number, const Patience& patience);
  // The active version, as soon as the log of this member has one. kFailedPrecondition: it
  // observes.
  absl::StatusOr<SealedVersion> Active(const Patience& patience);
  // What is declared, by whose digest the version names it.
  absl::StatusOr<std::shared_ptr<const DeclaredLayouts>> Layouts(const SealedVersion& version,
                                                                 const Patience& patience);

  // A member that observes may not make the following calls: kFailedPrecondition.
  absl::StatusOr<WeightEvent> NextEvent(const Patience& patience);
  // Answers to events. What names another version than the one that is staged came late, and
  // changes nothing: kFailedPrecondition says so.
  // OK: all of it is there, and every digest was right. Else the version is dropped for all. The
  // same version may be staged twice: only who has taken the event of a stage votes on it.
  absl::Status Vote(uint64_t number, const absl::Status& staged);
  absl::Status Held(uint64_t number);
  absl::Status Switched(uint64_t number);
  // Number 0: nothing may be served now. Costs three loads and the clock.
  Serving Serve() const { return permit_.Serve(clock_); }
  std::string Explain() const;
  WeightView View() const;

  struct Item {
    std::string tensor;
    Box box;
    Tensor into;     // Memory of the tensor's type, of any shape.
    Strides places;  // Where the box's elements go in it.
    // What lies there already is the same box of this version, so that only what has changed need
    // come; 0: it is of none. A wrong word here costs time, and no byte is wrong for it.
    uint64_t has = 0;
    // For memory of a GPU, which is written once the stream of this has reached its moment. All of
    // it comes, whatever it has.
    std::shared_ptr<GpuContext> context = nullptr;
  };
  // Fetches all items, each of the owners that have it, or of a member that they name; where one
  // cannot be reached, of another owner that has the same box; where all owners of a box are gone,
  // of members that have it for others. Every whole box is checked against the version's root,
  // every part of one against a digest that its owner has sent, to this member or to another. Where
  // the owners of a box are gone, and nobody has all of it, that digest is the members' own word:
  // one that lies is believed where no more members say otherwise. On an error some of `into` may
  // have been written, with bytes of this version alone, and none is written any more.
  // kInvalidArgument: no such tensor, box or view. kNotFound: the version is over. kDataLoss: bytes
  // are not those that were sealed. kResourceExhausted: this worker asks an owner for too much at
  // once.
  absl::Status Fetch(const SealedVersion& version, absl::Span<const Item> items,
                     const Patience& patience);
  // Fetch() of the version that kPrepare has named, as the log names it.
  absl::Status Stage(uint64_t number, absl::Span<const Item> items, const Patience& patience);

 private:
  struct Part;
  struct Came;
  struct Fetching;
  struct Watched;
  struct Rescued;
  struct Wanted;
  struct OwnersList {
    std::vector<size_t> offsets;  // ListOffsets().
    std::vector<Digest> digests;
  };
  WeightMember(Server* server, const WeightMemberOptions& options);
  // GroupMember::Port, under group_mu_.
  void Ask(const Question& question) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void Stage(const LogEntry& version) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void Hold(const WeightVersion& version) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void Switch(const WeightVersion& version) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void Drop(const WeightVersion& version) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void Push(WeightEvent::Kind kind, uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  void TellNews(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  int64_t Turn(const LeaderLink::Heard& heard, std::vector<Question>* questions);
  absl::Status Observes() const;
  // The version that is being staged, if its number is `number`.
  absl::StatusOr<WeightVersion> StageOf(uint64_t number) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_mu_);
  absl::StatusOr<std::shared_ptr<const OwnersList>> ListOf(const Fetching& fetching,
                                                           uint32_t owner);
  absl::StatusOr<Tensor> AskForList(const Fetching& fetching, uint32_t owner);
  std::vector<WeightCalls::Call> ToOthers(const WeightCalls::Call& call) const;
  absl::StatusOr<Tensor> AskOwners(const WeightAsk& ask, const Patience& patience);
  uint64_t NewestByLog() const;  // 0: none, or it has no log.
  absl::StatusOr<Tensor> AskAnybody(const WeightAsk& ask, const WeightVersion& version,
                                    absl::FunctionRef<absl::Status(const Tensor&)> accepts,
                                    const Patience& patience);
  absl::StatusOr<std::vector<Part>> Plan(const VersionName& version, const DeclaredLayouts& layouts,
                                         absl::Span<const Item> items) const;
  absl::Status SendOn(const Fetching& fetching, absl::string_view text, Part* part);
  absl::Status Land(const Fetching& fetching, const Tensor& answer, Part* part);
  static absl::Status Put(const Item& item, const Box& part, const Tensor& from,
                          const Strides& lies);
  absl::Status FetchParts(Fetching* fetching, std::vector<Part*> left);
  void Prove(const SealedVersion& version, const std::shared_ptr<const DeclaredLayouts>& layouts);
  bool FindWhom(const Fetching& fetching, Part* part) const;
  // How long it may ask for nothing. `out`: of what this fetch has asked for and not got.
  absl::Duration PaceOf(uint64_t out);
  void Charge(const absl::StatusOr<Tensor>& answer);
  void Ask(Fetching* fetching, Part* part, CancellationRef cancellation,
           const std::shared_ptr<Came>& came);
  absl::StatusOr<bool> OnAnswer(Fetching* fetching, const absl::StatusOr<Tensor>& answer,
                                Part* part);
  void MakeOrphan(Fetching* fetching, Part* part);
  absl::Status AwaitOwners(Fetching* fetching);
  bool MayComeBack(const Fetching& fetching, const absl::Status& why) const;
  void WatchAsked(Fetching* fetching);
  absl::Status Rescue(Fetching* fetching);
  absl::Status RescueOnce(Fetching* fetching, std::set<std::string>* tried);
  absl::Status RescueBoxes(Fetching* fetching, const StandIns::Found& found,
                           std::vector<StandIns::Lost>* lost, std::vector<Rescued*> boxes,
                           std::vector<Part*>* missing);
  bool BeginBox(const Fetching& fetching, const StandIns::Found& found, StandIns::Lost* lost,
                Rescued* box, std::deque<Part>* chosen) const;
  absl::Status EndBox(Rescued* box) const;
  void HaveForOthers(const Part& part, const Tensor& own) const;
  void AddOwnParts(const WeightVersion& version, std::vector<StandIns::Lost>* lost) const;
  absl::Status RescueParts(Fetching* fetching);
  absl::Status RescueWanted(Fetching* fetching, const StandIns::Found& found,
                            absl::Span<Wanted> wanted);
  absl::Status FetchTaken(Fetching* fetching, const StandIns::Found& found,
                          absl::Span<const BoxCover::Part> taken, absl::Span<Wanted* const> of);
  bool TakeHeld(const Part& part) const;

  const WeightMemberOptions options_;
  Server* const server_;
  const std::vector<std::string>& owners_ = options_.owners;
  const uint64_t incarnation_;  // Each opening of the set has another.
  const BootClock clock_;
  WeightCalls calls_;
  const std::shared_ptr<HolderNotes> notes_;
  const StandIns stand_ins_;
  Permit permit_;

  mutable Mutex group_mu_;
  CondVar changed_;  // An event, or another active version.
  GroupMember group_ ABSL_GUARDED_BY(group_mu_);
  std::vector<Question> questions_ ABSL_GUARDED_BY(group_mu_);  // To be sent.
  // One of a kind at most, but for those of a stage that was dropped and the one after it.
  std::deque<WeightEvent> events_ ABSL_GUARDED_BY(group_mu_);
  uint64_t newest_ ABSL_GUARDED_BY(group_mu_) = 0;  // That kSealed was told of.
  int64_t headless_ns_ ABSL_GUARDED_BY(group_mu_) =
      0;  // The end of the permit that kHeadless was told of.
  // The version that is active, and since when, as this member knows.
  uint64_t active_ ABSL_GUARDED_BY(group_mu_) = 0;
  int64_t active_ns_ ABSL_GUARDED_BY(group_mu_) = 0;
  uint64_t permits_lost_ ABSL_GUARDED_BY(group_mu_) = 0;
  // What was active last by any log: another log may begin without it.
  LogEntry last_active_ ABSL_GUARDED_BY(group_mu_);
  std::atomic<uint64_t> bytes_fetched_{0};
  Mutex pace_mu_;
  Pace pace_ ABSL_GUARDED_BY(pace_mu_);
  Mutex mu_;
  // The layouts and lists that were fetched last.
  Digest layouts_digest_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const DeclaredLayouts> layouts_ ABSL_GUARDED_BY(mu_);
  Digest lists_of_ ABSL_GUARDED_BY(mu_);  // The root of the version that the lists are of.
  absl::flat_hash_map<uint32_t, std::shared_ptr<const OwnersList>> lists_
      ABSL_GUARDED_BY(mu_);             // By owner.
  std::shared_ptr<WeightRelay> relay_;  // Null: it has nothing for others.
  // Null: it observes. Its thread uses the others above.
  std::unique_ptr<LeaderLink> link_;
  std::unique_ptr<WeightViews::Shown> shown_;  // The last one: it uses the others, too.
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_
