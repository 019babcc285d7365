#include "bench/turned_pair.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/arena/arena.h"
#include "channel/transports.h"
#include "rendezvous/step_registry.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kIncarnation = 0xab;

}  // namespace

// Hands hellos directly to the other pool.
class TurnedPair::Hellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    producer->OnHello(hello, std::move(done));
  }
  HelloHandler* producer = nullptr;
};

// The parts of a worker: a poller, a pool with one transport, a registry of steps.
struct TurnedPair::Worker {
  Worker(const char* name, uint64_t incarnation, const TurnedPairOptions& how, const Clock* clock,
         Alarms* alarms, Hellos* hellos)
      : poller(clock) {
    TraceOptions tracing;
    tracing.sample_every = how.sample_every;
    if (how.sample_every > 0) trace = std::make_unique<Trace>(tracing);
    TransportsOptions options;
    options.self = name;
    options.incarnation = incarnation;
    options.trace = trace.get();
    // This thread turns both ends, so a silent peer means that the whole process was stopped.
    options.heartbeat_ms = 100'000;
    options.silence_ms = 400'000;
    std::vector<NicPath> nics;
    if (how.open_nic) {
      nics.push_back({"rdma/instant", std::shared_ptr<Nic>(how.open_nic())});
    } else {
      ArenaOptions arena_options;
      arena_options.seed = incarnation << 32;
      arena = options.shm_arena = Arena::Make(arena_options);
    }
    pool = MakeChannelPool(&poller, hellos, &source, std::move(nics), nullptr, std::move(options));
    StepRegistry::Options steps_options;
    steps_options.worker = name;
    steps_options.incarnations[absl::StrCat(name, "/device:CPU:0")] = incarnation;
    steps_options.step.check_immutable = false;
    steps_options.step.gathers_into = arena.get();
    steps_options.max_held_bytes = int64_t{1} << 30;
    auto made = StepRegistry::Make(steps_options, alarms, pool.get());
    TRYST_CHECK(made.ok()) << made.status();
    steps = *std::move(made);
    source.steps = steps.get();
    const absl::Status opened = pool->Open();
    TRYST_CHECK(opened.ok()) << opened;
  }

  // Exists because the pool is made before the steps from which it takes.
  struct Source final : TensorSource {
    void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override {
      steps->Take(step_id, key, args, std::move(done));
    }
    bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) override {
      return steps->TakeHere(step_id, key, place, taken);
    }
    bool MayTake(const TensorKey& key) const override { return steps->MayTake(key); }
    void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
      steps->GiveBack(step_id, key, std::move(taken));
    }
    StepRegistry* steps = nullptr;
  };

  std::unique_ptr<Trace> trace;
  std::shared_ptr<Arena> arena;
  Poller poller;
  Source source;
  std::unique_ptr<ChannelPool> pool;
  std::unique_ptr<StepRegistry> steps;
};

TurnedPair::TurnedPair(const TurnedPairOptions& options)
    : asks_in_its_turn_(options.open_nic != nullptr), hellos_(std::make_unique<Hellos>()) {
  producer_ =
      std::make_unique<Worker>(kProducer, kIncarnation, options, &clock_, &alarms_, hellos_.get());
  consumer_ = std::make_unique<Worker>(kConsumer, 0xc0, options, &clock_, &alarms_, hellos_.get());
  hellos_->producer = producer_->pool.get();
  sends_ = *producer_->steps->StartStep(1);
  receives_ = *consumer_->steps->StartStep(1);
  for (int i = 0; i < options.keys; ++i) {
    keys_.push_back(TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), kIncarnation,
                                          absl::StrCat(kConsumer, "/device:CPU:0"),
                                          absl::StrCat("edge_", i, "_w/read"))
                        ->At(0, 0));
  }
  // A pool has four times what is selected of it.
  const uint64_t bytes = options.spans > 0 ? 4 * options.bytes : options.bytes;
  const TensorShape shape = *TensorShape::Make({static_cast<int64_t>(bytes)});
  source_ = *Tensor::Allocate(DType::kUint8, shape);
  args_.destination = *Tensor::Allocate(DType::kUint8, shape);
  if (options.spans == 0) return;
  block_bytes_ = options.bytes / options.spans;
  std::mt19937 random(1);
  for (std::vector<uint32_t>* const blocks : {&blocks_there_, &blocks_here_}) {
    blocks->resize(4 * options.spans);
    std::iota(blocks->begin(), blocks->end(), 0);
    std::shuffle(blocks->begin(), blocks->end(), random);
    blocks->resize(options.spans);
  }
}

TurnedPair::~TurnedPair() {
  const absl::Status why = absl::CancelledError("over");
  consumer_->pool->Close(why);
  producer_->pool->Close(why);
  do {
    TurnIdle();
  } while (!consumer_->pool->Drained() || !producer_->pool->Drained());
  sends_ = receives_ = nullptr;
  for (Worker* worker : {consumer_.get(), producer_.get()}) {
    worker->steps.reset();
    worker->pool.reset();
  }
}

void TurnedPair::Send(int key) {
  const absl::Status sent =
      sends_->Send(keys_[static_cast<size_t>(key)], SendArgs(), source_, false);
  TRYST_CHECK(sent.ok()) << sent;
}

void TurnedPair::SendMany(int first, int count) {
  items_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    SendItem& item = items_[static_cast<size_t>(i)];
    item.key = keys_[static_cast<size_t>(first + i)];
    item.tensor = source_;
  }
  const absl::Status sent = sends_->SendMany(absl::MakeSpan(items_), SendArgs());
  TRYST_CHECK(sent.ok()) << sent;
}

void TurnedPair::Ask(int key) {
  receives_->RecvAsync(keys_[static_cast<size_t>(key)], args_, [this](Received&& received) {
    TRYST_CHECK(received.status.ok()) << received.status;
    ++landed_;
  });
  if (asks_in_its_turn_) Deliver();
}

void TurnedPair::SendSelected(int key) {
  const absl::Status sent =
      sends_->SendSelected(keys_[static_cast<size_t>(key)], SendArgs(), source_,
                           Selection::Indices(blocks_there_, block_bytes_));
  TRYST_CHECK(sent.ok()) << sent;
}

void TurnedPair::AskSelected(int key) {
  receives_->RecvSelectedAsync(keys_[static_cast<size_t>(key)], args_,
                               Selection::Indices(blocks_here_, block_bytes_),
                               [this](Received&& received) {
                                 TRYST_CHECK(received.status.ok()) << received.status;
                                 ++landed_;
                               });
  if (asks_in_its_turn_) Deliver();
}

ChannelPool* TurnedPair::producer() { return producer_->pool.get(); }
ChannelPool* TurnedPair::consumer() { return consumer_->pool.get(); }

void TurnedPair::Answer() { producer_->poller.Turn(); }
void TurnedPair::Deliver() { consumer_->poller.Turn(); }

void TurnedPair::TurnIdle() {
  consumer_->poller.Turn();
  producer_->poller.Turn();
}

void TurnedPair::AskMany(int first, int count) {
  receives_->RecvManyAsync(
      absl::MakeConstSpan(keys_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
      RecvArgs(), [this](const absl::Status& status, absl::Span<Received> all) {
        TRYST_CHECK(status.ok()) << status;
        landed_ += static_cast<int>(all.size());
      });
  if (asks_in_its_turn_) Deliver();
}

void TurnedPair::WaitFor(int count) {
  while (landed_ < count) TurnIdle();
  landed_ -= count;
}

}  // namespace tryst
