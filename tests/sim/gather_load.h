#ifndef TRYST_TESTS_SIM_GATHER_LOAD_H_
#define TRYST_TESTS_SIM_GATHER_LOAD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/alarms.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/selected_landing.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "tests/sim/channel_load.h"
#include "tests/sim/sim_executor.h"

namespace tryst {

struct GatherCounts {
  uint64_t gathers = 0;
  uint64_t filled = 0;
  uint64_t misfits = 0;    // They wanted other bytes than were sent.
  uint64_t cancelled = 0;  // By their group's cancel.
  uint64_t failed = 0;     // Otherwise.
  uint64_t groups = 0;     // That were cancelled,
  uint64_t in_flight = 0;  // with gathers under way.
  uint64_t late = 0;       // Sent, and gathered at the very end.
  uint64_t bytes = 0;

  GatherCounts& operator+=(const GatherCounts& other);
};

// Sends with selections and gathers, many of them in groups that are cancelled at any moment; drawn
// from a seed, beside a ChannelLoad or alone. Each gather ends once; with the bytes of its own send
// where its selection says, or without having written anything; behind a group's fence all of its
// gathers have ended, and nothing is written. No send is lost.
class GatherLoad {
 public:
  // `alarms` never move.
  GatherLoad(SimWorld* world, SimRandom random, LoadTarget* target, Alarms* alarms, size_t workers,
             const LoadOptions& options);
  ~GatherLoad();

  void Plan();
  size_t open() const { return open_; }
  void NoteKill() { killed_ = true; }
  void NoteFlips() { flips_ = true; }
  // Gathers what living producers still have for living consumers, or these have themselves.
  // Returns how much that is.
  size_t GatherWhatIsLeft();
  void CheckEnds();
  void CheckNothingLost();
  void Drop();  // All that it has. REQUIRES: the workers are closed.
  const GatherCounts& counts() const { return counts_; }

 private:
  // What is sent once under a key of its own.
  struct Edge {
    size_t producer = 0, consumer = 0;
    uint64_t producer_incarnation = 0, consumer_incarnation = 0;
    int64_t step = 0;
    TensorKey key;
    std::vector<ByteSpan> spans;  // They lie in the producer's pool.
    uint64_t bytes = 0;
    bool digests = false;
    bool sent = false;
    bool arrived = false;
    bool kept = false;  // The consumer has it, because it did not fit; perhaps in a landing.
    size_t open = 0;    // Gathers.
  };
  struct Group;
  struct One {
    size_t id = 0;
    Edge* edge = nullptr;
    Group* group = nullptr;
    std::vector<ByteSpan> landing;
    std::vector<char> memory;  // With canaries.
    bool misfit = false;
    bool may_end_early = false;
    int ends = 0;
    absl::Status status;
    GatherResult result;
  };
  struct Group {
    explicit Group(const Clock* clock) : fetches(clock) {}
    std::vector<One*> members;
    FetchGroup fetches;
    size_t under_way = 0;  // When it was cancelled.
    bool cancelled = false;
    int fenced = 0;
    int64_t cancelled_ns = 0;
  };

  uint64_t Draw(uint64_t below) { return random_.Below(below); }
  bool Chance(uint32_t percent) { return Draw(100) < percent; }
  Edge* NewEdge();
  void Send(Edge* edge);
  void StartGroup(const std::vector<Edge*>& edges);
  void StartOne(Edge* edge, Group* group, bool misfit, bool with_options);
  void CancelGroup(Group* group);
  void OnFenced(Group* group, const FenceReport& report);
  void OnDone(One* one, Received&& received);
  void CheckStatus(const One& one);
  void CheckBytes(const One& one);
  std::vector<ByteSpan> DrawLanding(uint64_t bytes, uint64_t* memory_bytes);
  std::shared_ptr<RoutingRendezvous> StepOf(const Edge& edge);
  bool ProducerLives(const Edge& edge) const {
    return target_->IncarnationOf(edge.producer) == edge.producer_incarnation;
  }
  bool ConsumerLives(const Edge& edge) const {
    return target_->IncarnationOf(edge.consumer) == edge.consumer_incarnation;
  }
  void Violate(const One& one, const std::string& what);

  SimWorld* const world_;
  SimRandom random_;
  LoadTarget* const target_;
  Alarms* const alarms_;
  const size_t workers_;
  const LoadOptions options_;
  SimExecutor executor_;
  const Tensor pool_;  // Every producer has the same.
  std::deque<Edge> edges_;
  std::deque<One> ones_;
  std::deque<Group> groups_;
  // By the consumer's incarnation, and step.
  std::map<std::pair<uint64_t, int64_t>, std::shared_ptr<RoutingRendezvous>> steps_;
  size_t open_ = 0;
  bool killed_ = false;
  bool flips_ = false;
  GatherCounts counts_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_GATHER_LOAD_H_
