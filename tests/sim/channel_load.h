#ifndef TRYST_TESTS_SIM_CHANNEL_LOAD_H_
#define TRYST_TESTS_SIM_CHANNEL_LOAD_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rendezvous/allocator.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/tensor_fetcher.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "tests/process/faults/canary_buffers.h"
#include "tests/process/history/history_file.h"
#include "tests/sim/sim_executor.h"

namespace tryst {

inline constexpr int64_t kMs = 1'000'000;  // In nanoseconds.

// What a load came to.
struct LoadCounts {
  uint64_t sends = 0;
  uint64_t fetches = 0;
  uint64_t cancels = 0;            // Cancels of fetches still open.
  uint64_t cancels_in_flight = 0;  // Those with bytes of the tensor in the destination.
  uint64_t aborts = 0;             // Aborted steps.
  uint64_t delivered = 0;
  uint64_t failed = 0;  // Ended with a status.
  uint64_t early = 0;   // Those that were cancelled or past their deadline.
  uint64_t left = 0;    // Sent, and fetched only at the very end.
  uint64_t bytes = 0;
  uint64_t operations() const { return sends + fetches + cancels; }

  LoadCounts& operator+=(const LoadCounts& other);
};

struct LoadOptions {
  int operations = 300;          // Sends, and as many fetches.
  int64_t load_ns = 60'000'000;  // The time over which they are started.
  bool faults = true;
  bool aborts = false;  // Steps, on either side.
  bool many = false;    // Some fetches are of many keys, whose tensors land and wait for the last.
  // Not 0: what this draws fetches small tensors of the same keys together, again and again, so
  // that they are asked for in runs.
  uint64_t run_seed = 0;
  // Not 0: what this draws aims at moments that chance hardly hits. Cancels come while the bytes
  // are on their way, as often as in a storm.
  uint64_t aim_seed = 0;
  // Not 0: steps fail with texts of lengths that follow from it. Otherwise all have one of fifteen
  // bytes.
  uint64_t text_seed = 0;
  // Not 0: what this draws sends with selections, gathers, and cancels groups of gathers.
  uint64_t gather_seed = 0;
  // Every fetch is of a tensor of 1 KiB to 16 MiB that has been sent, mostly into memory of
  // the caller, and mostly cancelled while the bytes are on their way.
  bool cancel_storm = false;
  // Not 0: what this draws gives transfers of a storm a deadline beside their cancel.
  uint64_t deadline_seed = 0;
  int64_t link_bytes_per_second = 0;  // Every wire's; 0: what the kind of load has.
  // Who gets a tensor often has it for a while, and it must not change meanwhile. Of tensors to
  // send, many lie in memory that is shared.
  bool holds = false;
  bool large = false;  // In a storm: more of the tensors are large, and without a destination.
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();
  size_t forgetful = kNobody;  // This worker only fetches, and what it gives up may be lost.
};

// The workers that a load is put on.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  virtual uint64_t IncarnationOf(size_t worker) const = 0;
  virtual LocalRendezvous* StepOf(size_t worker, int64_t step) = 0;
  virtual TensorFetcher* FetcherOf(size_t worker) = 0;
  // Memory that the worker shares with its consumers; null: it has none.
  virtual Allocator* SharedBy(size_t /*worker*/) { return nullptr; }
  virtual std::string ExplainTo(size_t consumer, size_t producer) = 0;
  virtual void Violate(const std::string& what) = 0;
};

// Sends and fetches drawn from a seed, and what must be true of their ends: each fetch
// ends once, by its deadline, with the bytes of its own Send, in order, or with a status
// that something explains.
class ChannelLoad {
 public:
  ChannelLoad(SimWorld* world, SimRandom random, LoadTarget* target, size_t workers,
              const LoadOptions& options);

  void Plan();  // Schedules it all in the world.
  // Sends one tensor more, which is no small one, and fetches it.
  void StartOne(SimRandom* random);
  size_t open() const { return open_; }
  // A worker died or stopped: from now on kAborted and kUnavailable are ends like others.
  void NoteKill() { killed_ = true; }
  // Bits flip: a digest may be wrong twice, and kDataLoss ends that fetch.
  void NoteFlips() { flips_ = true; }
  // A connection of this worker broke. Cancels some of its open fetches before the queue pair has
  // drained.
  void CancelSoon(size_t consumer, int64_t within_ns);
  // Sends one more tensor for each open fetch whose producer lives and that would otherwise get
  // none. With `anyhow` it sends to all of them, because a consumer that died may have taken a
  // tensor.
  void SendWhatIsWaitedFor(bool anyhow);
  // Fetches, without any options, the tensors that living producers still have. Returns how many.
  size_t FetchWhatIsLeft();
  // Everything that can end has ended, and every Send was delivered once, unless its
  // producer died, its step was aborted, or a consumer died that may have got it.
  void CheckEnds();
  // The workers are closed: whatever is still open lost its callback.
  void CheckNothingLost();
  // Nobody has any tensor any more.
  void DropHeld() { held_.clear(); }
  const LoadCounts& counts() const { return counts_; }

 private:
  // What was sent on one key of one step, in order, and what arrived.
  struct Edge {
    size_t producer = 0;
    size_t consumer = 0;
    size_t number = 0;
    int64_t step = 0;
    uint64_t producer_incarnation = 0;
    uint64_t consumer_incarnation = 0;  // When the edge was made.
    TensorKey key;
    std::vector<uint64_t> sent;    // Serials.
    std::set<uint64_t> delivered;  // But for dead ones, which have no serial.
    size_t arrived = 0;
    uint64_t size_class = 0;  // What its tensors have; 0: each has its own.
    bool recurring = false;
    uint64_t next_size_hint = 0;  // What the last one sent had.
    size_t fetched = 0;
    size_t ended_early = 0;
    bool aborted = false;  // At the producer.
  };
  struct Fetch {
    size_t id = 0;
    Edge* edge = nullptr;
    uint64_t producer_incarnation = 0;
    uint64_t consumer_incarnation = 0;
    int64_t deadline_ns = std::numeric_limits<int64_t>::max();
    bool may_end_early = false;
    bool step_aborted = false;  // At the consumer.
    bool many = false;
    bool has_destination = false;
    Tensor destination;
    std::unique_ptr<Cancellation> cancellation;
    size_t turn = 0;      // Which fetch of its key it is, from 0.
    uint64_t serial = 0;  // What it got; 0: nothing.
    int ends = 0;
    int64_t ended_ns = 0;
    absl::Status status;
  };
  enum class Kind { kNumbers, kDead, kStrings };

  uint64_t Draw(uint64_t below) { return random_.Below(below); }
  bool Chance(uint32_t percent) { return Draw(100) < percent; }
  int64_t SomeTime();
  Edge* EdgeOf(size_t producer, size_t consumer, size_t number, int64_t step);
  void Send(Edge* edge);
  void StartTransfer(size_t producer, size_t consumer, size_t number);  // cancel_storm.
  void StartFetch(Edge* edge);
  void PlanRecurring();
  void PlanRuns();
  void StartMany(size_t producer, size_t consumer, int64_t step);
  void StartRun(const std::vector<Edge*>& edges);
  void AskMany(const std::vector<Fetch*>& fetches, const RecvArgs& args);
  Fetch* NewFetch(Edge* edge);
  void Ask(Fetch* fetch, const RecvArgs& args);
  bool Lives(const Edge& edge) const;
  // Its consumer may have forgotten what it had been sent: for a fetch that ended early, for a run
  // that ended with its link, or ahead of a fetch.
  bool MayLose(const Edge& edge) const { return edge.consumer == options_.forgetful; }
  std::pair<size_t, size_t> DrawEnds(SimRandom* random);  // A producer and a consumer.
  RecvArgs DrawArgs(Fetch* fetch);
  void ScheduleCancel(Fetch* fetch, int64_t within_ns, SimRandom* random);
  void DrawDestination(Fetch* fetch, RecvArgs* args);
  void AimCancel(Fetch* fetch, RecvArgs* args);
  void AbortAtProducer(size_t producer, int64_t step);
  void AbortAtConsumer(size_t consumer, int64_t step);
  void OnDone(Fetch* fetch, absl::Status status, const Tensor& tensor, bool is_dead);
  void CheckStatus(const Fetch& fetch);
  void CheckDelivered(Fetch* fetch, const Tensor& tensor, bool is_dead);
  void CheckNumbers(const Fetch& fetch, const Tensor& tensor);
  void CheckOrder();
  // load_history.cc
  static std::string KeyOf(const Edge& edge);
  MadeReceive MadeBy(const Fetch& fetch, int64_t may_be_late_ns) const;
  History WholeHistory(int64_t may_be_late_ns) const;
  void JudgeWhole(int64_t may_be_late_ns);
  Kind KindOf(uint64_t serial) const;
  uint64_t ElementsOf(uint64_t serial) const;
  std::string WhyFailed(int64_t step) const;
  Tensor NewSource(uint64_t elements);
  Tensor MakeTensor(size_t producer, uint64_t serial);
  Tensor NewNumbers(size_t producer, uint64_t serial);
  void Hold(const Fetch& fetch, const Tensor& tensor);
  std::string Name(const Fetch& fetch) const;
  void Violate(const Fetch& fetch, const std::string& what) {
    target_->Violate(Name(fetch) + what);
  }

  SimWorld* const world_;
  SimRandom random_;
  LoadTarget* const target_;
  const size_t workers_;
  const LoadOptions options_;
  const uint64_t size_class_;
  CanaryBuffers buffers_;
  SimExecutor executor_;
  SimRandom aim_;
  SimRandom runs_;
  // Steps that a life of a producer has aborted.
  std::set<std::tuple<size_t, uint64_t, int64_t>> aborted_;
  Tensor storm_source_;  // What every tensor of a storm is a window of.
  uint64_t next_serial_ = 1;
  size_t started_more_ = 0;
  std::deque<Fetch> fetches_;
  // By producer, its incarnation, consumer, number, step.
  std::map<std::tuple<size_t, uint64_t, size_t, size_t, int64_t>, Edge> edges_;
  size_t open_ = 0;
  std::map<size_t, Tensor> held_;  // By the fetch that brought it.
  SimRandom holding_;
  SimRandom ends_;  // What ends early beside what random_ has drawn.
  bool killed_ = false;
  bool flips_ = false;
  LoadCounts counts_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_CHANNEL_LOAD_H_
