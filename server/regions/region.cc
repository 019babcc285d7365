#include "server/regions/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "rendezvous/selected.h"
#include "rendezvous/selection.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_grants.h"
#include "server/security/allow_list.h"
#include "server/weights/part_line.h"

namespace tryst {
namespace {

// So much is copied on the thread that hears the ask: another thread would wake up for longer.
constexpr uint64_t kAtOnceBytes = 64 << 10;
// If such answers hold more, with what each takes beside its bytes, they wait in line, too.
constexpr uint64_t kMostAtOnceBytes = 32 << 20;
constexpr uint64_t kAnswerBytes = 512;
constexpr size_t kMostWaitingOfPeer = 1024;

}  // namespace

// What runs when nothing reads the memory any more.
struct Region::Fence {
  void Fall() {
    std::vector<absl::AnyInvocable<void() &&>> waiting;
    {
      MutexLock lock(&mu);
      fallen = true;
      waiting.swap(callbacks);
      changed.NotifyAll();
    }
    for (auto& closed : waiting) std::move(closed)();
  }

  Mutex mu;
  CondVar changed;
  bool fallen ABSL_GUARDED_BY(mu) = false;
  std::vector<absl::AnyInvocable<void() &&>> callbacks ABSL_GUARDED_BY(mu);
};

// Answers asks. Those that are large wait in a line, and are copied on the server's own executor
// (part_line.h says why not on an embedder's).
class Region::Answers final : public Answerer, public std::enable_shared_from_this<Answers> {
 public:
  Answers(Server* server, const std::string& name, Tensor memory, ControlList readers)
      : server_(server),
        prefix_(RegionEdge(name)),
        name_(name),
        readers_(std::move(readers)),
        grant_(server->grants()->given.Open(memory.data(), memory.bytes())),
        memory_(std::move(memory)) {}

  void SetLine(const RegionOptions& options) {
    PartLine::Limits limits;
    limits.bytes = options.answer_bytes;
    limits.bytes_of_one = options.answer_bytes_of_peer;
    limits.waiting_of_one = kMostWaitingOfPeer;
    line_ = std::make_shared<PartLine>(
        limits, server_->own_executor(),
        [weak = weak_from_this()](const AskOfPeer& ask) -> absl::StatusOr<Tensor> {
          const auto self = weak.lock();
          if (self == nullptr) return absl::UnavailableError("the region was closed");
          return self->Make(ask.text);
        });
  }

  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    AskOfPeer ask;
    ask.peer = std::string(key.dst().worker);
    ask.args = args;
    ask.done = std::move(done);
    const absl::string_view list = key.edge().substr(prefix_.size());
    if (list == kGrantList && MayRead(ask.peer)) return EndAsk(std::move(ask), GrantText());
    absl::StatusOr<Reading> reading = Read(list);
    if (!MayRead(ask.peer)) reading = NoReader(ask.peer);
    if (!reading.ok()) return EndAsk(std::move(ask), reading.status());
    if (reading->wanted.answer_bytes() <= kAtOnceBytes && *at_once_ < kMostAtOnceBytes) {
      return EndAsk(std::move(ask), Counted(Copy(*reading)));
    }
    ask.bytes = reading->wanted.answer_bytes();
    ask.text = std::string(list);
    reading = absl::UnknownError("");  // What waits in line does not read.
    line_->Enter(std::move(ask));
  }

  // What reads the memory has a reference to it.
  void Close() {
    if (grant_.ok()) (*grant_)->End();
    Tensor memory;  // It goes without the lock.
    {
      MutexLock lock(&mu_);
      memory = std::move(memory_);
    }
    line_->Close(Closed());
  }
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  absl::Status Closed() const {
    return absl::UnavailableError(
        absl::StrCat("the region ", name_, " of ", server_->worker(), " was closed"));
  }
  // An answer that is being made. It keeps the memory.
  struct Reading {
    Tensor memory;
    WantedSpans wanted;
  };
  bool MayRead(const std::string& peer) const {
    return readers_.empty() || readers_.Check(peer).ok();
  }
  absl::Status NoReader(const std::string& peer) const {
    return absl::PermissionDeniedError(absl::StrCat("the owner of the region ", name_, ", ",
                                                    server_->worker(), ", does not let ", peer,
                                                    " read it: name it in the region's readers"));
  }
  absl::StatusOr<Tensor> GrantText() const {
    if (!grant_.ok()) return grant_.status();
    const std::string& text = (*grant_)->text();
    auto tensor = Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(text.size())});
    if (tensor.ok()) memcpy(tensor->mutable_data(), text.data(), text.size());
    return tensor;
  }
  absl::StatusOr<Reading> Read(absl::string_view list) const {
    Reading reading;
    {
      MutexLock lock(&mu_);
      reading.memory = memory_;
    }
    if (!reading.memory.valid()) return Closed();
    auto wanted = ParseList(list, reading.memory.bytes());
    if (!wanted.ok()) return wanted.status();
    reading.wanted = *std::move(wanted);
    return reading;
  }
  absl::StatusOr<Tensor> Copy(const Reading& reading) {
    bytes_sent_.fetch_add(reading.wanted.bytes, std::memory_order_relaxed);
    return GatherChecked(reading.memory, Selection::Spans(reading.wanted.spans),
                         reading.wanted.bytes, reading.wanted.granule, server_->allocator());
  }
  // An answer that is counted until it is freed.
  absl::StatusOr<Tensor> Counted(absl::StatusOr<Tensor> made) {
    if (!made.ok()) return made;
    const uint64_t bytes = made->bytes() + kAnswerBytes;
    at_once_->fetch_add(bytes, std::memory_order_relaxed);
    void* const data = made->mutable_data();
    const TensorShape shape = made->shape();
    const MemorySpace space = made->space();
    return Tensor::Adopt(data, DType::kUint8, shape, space,
                         [at_once = at_once_, bytes, made = *std::move(made)]() mutable {
                           made.Reset();
                           at_once->fetch_sub(bytes, std::memory_order_relaxed);
                         });
  }
  absl::StatusOr<Tensor> Make(absl::string_view list) {
    const absl::StatusOr<Reading> reading = Read(list);
    if (!reading.ok()) return reading.status();
    return Copy(*reading);
  }

  Server* const server_;
  const std::string prefix_;
  const std::string name_;
  const ControlList readers_;
  const absl::StatusOr<std::unique_ptr<GrantBook::Opening>> grant_;
  std::shared_ptr<PartLine> line_;
  std::atomic<uint64_t> bytes_sent_{0};
  // What small answers hold that were not given back; they may outlive this.
  const std::shared_ptr<std::atomic<uint64_t>> at_once_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  mutable Mutex mu_;
  Tensor memory_ ABSL_GUARDED_BY(mu_);  // Invalid: it is closed.
};

absl::StatusOr<std::unique_ptr<Region>> Region::Open(Server* server, absl::string_view name,
                                                     const Tensor& memory,
                                                     const RegionOptions& options) {
  absl::Status named = CheckRegionName(name);
  if (!named.ok()) return named;
  if (server->steps() == nullptr) {
    return absl::FailedPreconditionError("the server has not started: start it first");
  }
  if (!memory.valid() || memory.dtype() == DType::kString || !memory.on_host()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the region ", name, " needs memory of the host, and not strings"));
  }
  auto readers = ControlList::Parse(absl::StrJoin(options.readers, ","));
  if (!readers.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a reader of the region ", name, " should look like /job:J or /job:J/replica:0/task:T: ",
        absl::StrJoin(options.readers, ", ")));
  }
  const auto fence = std::make_shared<Fence>();
  // The last to let go of it has read it last.
  auto bytes = Tensor::Adopt(memory.mutable_data(), DType::kUint8,
                             TensorShape({static_cast<int64_t>(memory.bytes())}), memory.space(),
                             [fence, kept = Tensor(memory)]() mutable {
                               kept.Reset();
                               fence->Fall();
                             });
  if (!bytes.ok()) return bytes.status();
  auto answers =
      std::make_shared<Answers>(server, std::string(name), *std::move(bytes), *std::move(readers));
  answers->SetLine(options);
  if (!server->steps()->AddAnswerer(RegionEdge(name), answers)) {
    return absl::AlreadyExistsError(absl::StrCat("a region ", name, " is open already"));
  }
  return std::unique_ptr<Region>(new Region(server, std::string(name), std::move(answers), fence));
}

Region::Region(Server* server, std::string name, std::shared_ptr<Answers> answers,
               std::shared_ptr<Fence> fence)
    : server_(server),
      name_(std::move(name)),
      answers_(std::move(answers)),
      fence_(std::move(fence)) {}

Region::~Region() {
  Close(nullptr);
  (void)AwaitClosed(absl::InfiniteDuration());
}

void Region::Close(absl::AnyInvocable<void() &&> closed) {
  server_->steps()->RemoveAnswerer(RegionEdge(name_), answers_.get());
  answers_->Close();
  if (!closed) return;
  {
    MutexLock lock(&fence_->mu);
    if (!fence_->fallen) {
      fence_->callbacks.push_back(std::move(closed));
      return;
    }
  }
  std::move(closed)();
}

bool Region::AwaitClosed(absl::Duration timeout) {
  // A year means for ever; more could overflow a time point.
  const auto until = std::chrono::steady_clock::now() +
                     absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
  MutexLock lock(&fence_->mu);
  while (!fence_->fallen) {
    if (fence_->changed.WaitUntil(&fence_->mu, until)) return fence_->fallen;
  }
  return true;
}

uint64_t Region::bytes_sent() const { return answers_->bytes_sent(); }

}  // namespace tryst
