#include "channel/device/device_fetcher.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/crc32c.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr int64_t kDeliverAgainNs = 1'000'000;
constexpr absl::Duration kAsidePatience = absl::Seconds(30);

}  // namespace

// One fetch into device memory, from Begin() to its end.
class DeviceFetcher::Op {
 public:
  Op(DeviceFetcher* owner, int64_t its_step, const TensorKey& its_key, const Args& its_args,
     DoneFn done)
      : owner_(owner),
        step(its_step),
        key(its_key),
        args(its_args),
        context(std::static_pointer_cast<GpuContext>(its_args.device_context)),
        engine(context->engine()),
        done_(std::move(done)) {}
  ~Op() { TRYST_CHECK(ended_ && pending_ == 0); }

  void Start();
  // The probe has ended.
  void GoOn() {
    --pending_;
    BringIpcOrStaged();
  }
  void WaitForProbe() { ++pending_; }

 private:
  DeviceFetcher* const owner_;

 public:
  const int64_t step;
  const TensorKey key;
  const Args args;
  const std::shared_ptr<GpuContext> context;
  DeviceEngine* const engine;
  DeviceManifest manifest;
  std::list<std::unique_ptr<Op>>::iterator self;

 private:
  Args InnerArgs(Tensor destination);
  std::string WayName() const {
    return absl::StrCat(WayKey(manifest), ";", engine->gpu()->ordinal());
  }
  void FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination,
                 absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done);
  void OnManifest(absl::Status status, Tensor answer, bool is_dead);
  absl::Status ChooseDestination();
  void BringInside(const Tensor& answer);
  void BringIpcOrStaged();
  void BringIpc();
  void BringStaged();
  void OnIpcCopied(int64_t began_ns, absl::Status status);
  void MoreChunks();
  void OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot, absl::Status status);
  // Copies into the destination; the end is counted in pending_.
  void CopyIn(Copier::Direction direction, uint64_t at, const void* from, uint64_t bytes,
              Copier::Done done);
  void Fail(const absl::Status& status);
  void AllStarted();
  void EndIfDone();
  void Report(absl::Status status, Tensor tensor, bool is_dead);
  void EndCancellation();

  DoneFn done_;
  Cancellation inner_;  // Of the fetches that we make.
  Cancellation::Token token_ = Cancellation::kNoToken;
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  absl::Status status_;
  Tensor into_;
  IpcMappings::Mapping* mapping_ = nullptr;
  uint64_t chunks_ = 0;
  uint64_t next_chunk_ = 0;
  uint32_t in_flight_ = 0;
  uint64_t copies_begun_ = 0;  // Of chunks, into the destination.
  bool started_ = false;       // Every copy is on its way.
  bool committed_ = false;     // All is here: too late to cancel.
  bool reported_ = false;
  bool ended_ = false;
  int pending_ = 0;  // Fetches, copies and probes that will still call us.
};

// ---- DeviceFetcher ----

DeviceFetcher::DeviceFetcher(Poller* poller, TensorFetcher* fetcher, DeviceFetcherOptions options)
    : poller_(poller), fetcher_(fetcher), options_(options), deliver_timer_(this) {}

DeviceFetcher::~DeviceFetcher() {
  TRYST_CHECK(Drained() && undelivered_.empty());
  poller_->CancelTimer(&deliver_timer_);
}

void DeviceFetcher::OnPoller(absl::AnyInvocable<void() &&> fn) {
  if (poller_->OnThread()) return std::move(fn)();
  poller_->PostFn(std::move(fn));
}

bool DeviceFetcher::WantsDevice(const TensorKey& key, const Args& args) {
  if (args.destination.valid()) return !args.destination.space().host_readable();
  return args.device_context != nullptr && !args.alloc_attrs.on_host && key.dst().type != "CPU";
}

void DeviceFetcher::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  if (key.empty() || !WantsDevice(key, args)) {
    return fetcher_->Fetch(step_id, key, args, std::move(done));
  }
  if (dynamic_cast<GpuContext*>(args.device_context.get()) == nullptr) {
    return FetchByHost(step_id, key, args, std::move(done));
  }
  poller_->PostFn(
      [this, op = std::make_unique<Op>(this, step_id, key, args, std::move(done))]() mutable {
        Begin(std::move(op));
      });
}

void DeviceFetcher::Begin(std::unique_ptr<Op> op) {
  ++counters_.fetches;
  ops_.push_front(std::move(op));
  ops_.front()->self = ops_.begin();
  ops_.front()->Start();
}

// For a device that is somebody else's: whole through host memory, and its own copy.
void DeviceFetcher::FetchByHost(int64_t step_id, const TensorKey& key, const Args& args,
                                DoneFn done) {
  if (args.device_context == nullptr) {
    poller_->PostFn([args, done = std::move(done)]() mutable {
      std::move(done)(
          absl::InvalidArgumentError("a destination on a device needs the device's context"),
          Args(), args, Tensor(), false);
    });
    return;
  }
  Args host_args = args;
  host_args.destination = Tensor();
  host_args.executor = nullptr;
  fetcher_->Fetch(
      step_id, key, host_args,
      [args, done = std::move(done)](absl::Status status, const Args&, const Args&, Tensor tensor,
                                     bool is_dead) mutable {
        auto end = [args, is_dead](DoneFn fn, absl::Status why, Tensor result) {
          if (args.executor == nullptr) {
            return std::move(fn)(std::move(why), Args(), args, std::move(result), is_dead);
          }
          args.executor->Run([args, is_dead, fn = std::move(fn), why = std::move(why),
                              result = std::move(result)]() mutable {
            std::move(fn)(std::move(why), Args(), args, std::move(result), is_dead);
          });
        };
        if (!status.ok() || is_dead || tensor.dtype() == DType::kString) {
          return end(std::move(done), std::move(status), std::move(tensor));
        }
        absl::StatusOr<Tensor> into = args.destination;
        if (!args.destination.valid()) {
          into = args.device_context->Allocate(tensor.dtype(), tensor.shape(), args.alloc_attrs);
        }
        if (!into.ok()) return end(std::move(done), into.status(), Tensor());
        args.device_context->StartCopy(
            tensor, *into,
            [end, tensor, into = *into, done = std::move(done)](absl::Status copied) mutable {
              const bool ok = copied.ok();
              end(std::move(done), std::move(copied), ok ? into : Tensor());
            });
      });
}

void DeviceFetcher::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                              ManyDoneFn done) {
  if (keys.empty() || !WantsDevice(keys.front(), args)) {
    return fetcher_->FetchMany(step_id, keys, args, std::move(done));
  }
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyDoneFn done;
  };
  auto many = std::make_shared<Many>();
  many->results.resize(keys.size());
  many->left = keys.size();
  many->done = std::move(done);
  for (size_t i = 0; i < keys.size(); ++i) {
    Fetch(step_id, keys[i], args,
          [many, i](absl::Status status, const Args&, const Args&, Tensor tensor, bool is_dead) {
            Received& result = many->results[i];
            result.status = std::move(status);
            result.tensor = std::move(tensor);
            result.is_dead = is_dead;
            if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
            absl::Status first;
            for (const Received& each : many->results) {
              if (first.ok()) first = each.status;
            }
            std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
          });
  }
}

void DeviceFetcher::FetchAside(const Op& op, const absl::StatusOr<TensorKey>& key,
                               absl::AnyInvocable<void(absl::Status, Tensor) &&> done) {
  ++asides_;
  if (!key.ok()) {
    poller_->PostFn([this, status = key.status(), done = std::move(done)]() mutable {
      --asides_;
      std::move(done)(status, Tensor());
    });
    return;
  }
  Args args;
  args.deadline = Deadline::After(poller_->clock(), kAsidePatience);
  fetcher_->Fetch(op.step, *key, args,
                  [this, done = std::move(done)](absl::Status status, const Args&, const Args&,
                                                 Tensor tensor, bool) mutable {
                    OnPoller([this, status = std::move(status), tensor = std::move(tensor),
                              done = std::move(done)]() mutable {
                      --asides_;
                      std::move(done)(std::move(status), std::move(tensor));
                    });
                  });
}

// ---- The proof ----

std::string DeviceFetcher::WayKey(const DeviceManifest& manifest) {
  return absl::StrCat(absl::Hex(manifest.process, absl::kZeroPad16),
                      absl::Hex(manifest.host, absl::kZeroPad16));
}

void DeviceFetcher::Probe(Way* way, Op* op) {
  way->state = Way::State::kProbing;
  way->worker = std::string(op->key.src().worker);
  FetchAside(*op, TransferKey(op->key, 0, "probe"),
             [this, way, engine = op->engine](absl::Status status, const Tensor& answer) {
               OnProbe(way, engine, std::move(status), answer);
             });
}

void DeviceFetcher::OnProbe(Way* way, DeviceEngine* engine, absl::Status status,
                            const Tensor& answer) {
  if (!status.ok()) return EndProbe(way, status);
  auto manifest = DecodeManifest(static_cast<const uint8_t*>(answer.data()), answer.bytes());
  if (!manifest.ok()) return EndProbe(way, manifest.status());
  if (!manifest->has_ipc || manifest->bytes > engine->slot_bytes()) {
    return EndProbe(way, absl::DataLossError("the probe has no memory to read"));
  }
  auto mapping = engine->mappings()->Open(WayKey(*manifest), manifest->reference);
  if (!mapping.ok()) return EndProbe(way, mapping.status());
  ++asides_;
  engine->WhenFetchSlot([this, way, engine, manifest = *manifest,
                         mapping = *mapping](StorageRef slot) {
    const cuda::Address from = mapping->base() + manifest.reference.offset;
    void* const into = slot->data();
    engine->Copy(Copier::Direction::kToHost, into, reinterpret_cast<const void*>(from),
                 manifest.bytes, nullptr, nullptr,
                 [this, way, engine, manifest, mapping, slot](absl::Status copied) {
                   --asides_;
                   engine->mappings()->Close(mapping);
                   if (copied.ok() && Crc32c(0, slot->data(), manifest.bytes) != manifest.digest) {
                     copied = absl::DataLossError("the probe read other bytes than are there");
                   }
                   EndProbe(way, std::move(copied));
                 });
  });
}

void DeviceFetcher::EndProbe(Way* way, absl::Status status) {
  way->state = status.ok() ? Way::State::kProved : Way::State::kRefused;
  way->why = status.ok() ? "a probe read the right bytes" : std::string(status.message());
  TRYST_LOG(Info) << "device tensors of " << way->worker << " are "
                  << (status.ok() ? "read in place: " : "staged: ") << way->why;
  std::vector<Op*> waiting;
  waiting.swap(way->waiting);
  for (Op* op : waiting) op->GoOn();
}

std::string DeviceFetcher::Explain() const {
  std::string out;
  for (const auto& [process, way] : ways_) {
    absl::StrAppend(&out, "device tensors of ", way.worker, " (process ", process.substr(0, 8),
                    "): ");
    switch (way.state) {
      case Way::State::kUnknown:
      case Way::State::kProbing:
        absl::StrAppend(&out, "the way is being proved\n");
        break;
      case Way::State::kProved:
        absl::StrAppend(&out, "cuda_ipc, ", way.why, "\n");
        break;
      case Way::State::kRefused:
        absl::StrAppend(&out, "staged; not by cuda_ipc: ", way.why, "\n");
        break;
    }
  }
  absl::StrAppend(&out, "device fetches: ", counters_.ipc, " by cuda_ipc, ", counters_.staged,
                  " staged in chunks, ", counters_.inside, " inside of a message\n");
  return out;
}

void DeviceFetcher::Deliver(Executor* executor, Executor::Work work) {
  if (executor->TryRun(&work)) return;
  undelivered_.emplace_back(executor, std::move(work));
  if (!deliver_timer_.is_set()) {
    poller_->SetTimer(&deliver_timer_, poller_->clock().NowNs() + kDeliverAgainNs);
  }
}

void DeviceFetcher::DeliverTimer::OnTimer() {
  std::deque<std::pair<Executor*, Executor::Work>> works;
  works.swap(fetcher->undelivered_);
  for (auto& [executor, work] : works) fetcher->Deliver(executor, std::move(work));
}

// ---- One fetch ----

void DeviceFetcher::Op::Start() {
  if (args.cancellation != nullptr) {
    // Runs on any thread; the operation may be over when the poller gets to it.
    token_ = args.cancellation->Register([this, owner = owner_, alive = alive_] {
      owner->poller_->PostFn([this, alive] {
        if (*alive && !committed_)
          Fail(MarkDerived(absl::CancelledError("the fetch was cancelled")));
      });
    });
    if (token_ == Cancellation::kNoToken) {
      return Fail(MarkDerived(absl::CancelledError("the fetch was cancelled")));
    }
  }
  FetchPart(ManifestKey(key, owner_->options_.use_ipc ? owner_->host_ : 0, args.destination),
            Tensor(), [this](absl::Status status, Tensor answer, bool is_dead) {
              OnManifest(std::move(status), std::move(answer), is_dead);
            });
}

Args DeviceFetcher::Op::InnerArgs(Tensor destination) {
  Args inner;
  inner.destination = std::move(destination);
  inner.cancellation = &inner_;
  inner.deadline = args.deadline;
  return inner;
}

void DeviceFetcher::Op::FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination,
                                  absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done) {
  if (!part.ok()) return Fail(part.status());
  ++pending_;
  owner_->fetcher_->Fetch(
      step, *part, InnerArgs(std::move(destination)),
      [this, done = std::move(done)](absl::Status status, const Args&, const Args&, Tensor tensor,
                                     bool is_dead) mutable {
        owner_->OnPoller([this, done = std::move(done), status = std::move(status),
                          tensor = std::move(tensor), is_dead]() mutable {
          --pending_;
          std::move(done)(std::move(status), std::move(tensor), is_dead);
        });
      });
}

void DeviceFetcher::Op::OnManifest(absl::Status status, Tensor answer, bool is_dead) {
  if (!status.ok()) return Fail(status_.ok() ? status : status_);
  // What came although we were cancelled meanwhile is delivered where it is whole; where it
  // is not, it goes back.
  const absl::Status cancelled = std::exchange(status_, absl::OkStatus());
  if (is_dead || answer.dtype() == DType::kString) {
    started_ = true;
    Report(absl::OkStatus(), std::move(answer), is_dead);
    return EndIfDone();
  }
  auto decoded = DecodeManifest(static_cast<const uint8_t*>(answer.data()), answer.bytes());
  if (!decoded.ok()) return Fail(decoded.status());
  manifest = *decoded;
  if (!cancelled.ok() && !manifest.inside) return Fail(cancelled);
  status = ChooseDestination();
  if (!status.ok()) return Fail(status);
  if (manifest.inside) return BringInside(answer);
  BringIpcOrStaged();
}

absl::Status DeviceFetcher::Op::ChooseDestination() {
  if (args.destination.valid()) {
    into_ = args.destination;
    if (into_.dtype() == manifest.dtype && into_.shape() == manifest.shape) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the destination is ", DTypeName(into_.dtype()), into_.shape().ToString(),
                     ", the tensor ", DTypeName(manifest.dtype), manifest.shape.ToString()));
  }
  auto made = context->Allocate(manifest.dtype, manifest.shape, args.alloc_attrs);
  if (made.ok()) into_ = *std::move(made);
  return made.status();
}

void DeviceFetcher::Op::CopyIn(Copier::Direction direction, uint64_t at, const void* from,
                               uint64_t bytes, Copier::Done done) {
  ++pending_;
  // Memory of the caller's follows the moment of its context, memory of the pool its last use.
  engine->Copy(direction, static_cast<char*>(into_.mutable_data()) + at, from, bytes,
               args.destination.valid() ? context->moment() : nullptr, LastUse(into_),
               [this, done = std::move(done)](absl::Status status) mutable {
                 --pending_;
                 std::move(done)(std::move(status));
               });
}

void DeviceFetcher::Op::BringInside(const Tensor& answer) {
  ++owner_->counters_.inside;
  committed_ = true;
  if (manifest.bytes == 0) {
    AllStarted();
    return EndIfDone();
  }
  ++pending_;
  engine->WhenFetchSlot([this, answer](StorageRef slot) {
    --pending_;
    void* const data = slot->data();
    memcpy(data, static_cast<const char*>(answer.data()) + DeviceManifest::kBytes, manifest.bytes);
    CopyIn(Copier::Direction::kToDevice, 0, data, manifest.bytes,
           [this, slot = std::move(slot)](absl::Status status) {
             if (!status.ok()) return Fail(status);
             EndIfDone();
           });
    AllStarted();
  });
}

void DeviceFetcher::Op::BringIpcOrStaged() {
  if (!status_.ok()) return EndIfDone();
  if (manifest.has_ipc) {
    Way& way = owner_->ways_[WayName()];
    if (owner_->InThisProcess(manifest) && way.state == Way::State::kUnknown) {
      way.state = Way::State::kProved;
      way.worker = std::string(key.src().worker);
      way.why = "it is this process";
    }
    if (way.state == Way::State::kUnknown) owner_->Probe(&way, this);
    if (way.state == Way::State::kProbing) {
      WaitForProbe();
      way.waiting.push_back(this);
      return;
    }
    if (way.state == Way::State::kProved) return BringIpc();
  }
  BringStaged();
}

void DeviceFetcher::Op::BringStaged() {
  ++owner_->counters_.staged;
  chunks_ = (manifest.bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes;
  if (manifest.chunk_bytes > engine->slot_bytes()) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "the producer sends chunks of ", manifest.chunk_bytes, " bytes, a staging slot here has ",
        engine->slot_bytes(), ": set the same size on both")));
  }
  MoreChunks();
  EndIfDone();
}

// ---- Out of the producer's memory ----

void DeviceFetcher::Op::BringIpc() {
  const void* from = reinterpret_cast<const void*>(manifest.address);
  const std::string process = owner_->WayKey(manifest);
  if (!owner_->InThisProcess(manifest)) {
    auto mapping = engine->mappings()->Open(process, manifest.reference);
    if (!mapping.ok()) {
      // This allocation only: the next is tried again.
      Way& way = owner_->ways_[WayName()];
      if (way.staged++ == 0) {
        TRYST_LOG(Warning) << "a device tensor of " << way.worker
                           << " is staged: " << mapping.status().message();
      }
      way.why = absl::StrCat(way.staged, " were staged, the last: ", mapping.status().message());
      return BringStaged();
    }
    mapping_ = *mapping;
    from = reinterpret_cast<const void*>(mapping_->base() + manifest.reference.offset);
  }
  ++owner_->counters_.ipc;
  const int64_t now_ns = owner_->poller_->clock().NowNs();
  CopyIn(Copier::Direction::kOnDevice, 0, from, manifest.bytes,
         [this, now_ns](absl::Status status) { OnIpcCopied(now_ns, std::move(status)); });
  AllStarted();
}

void DeviceFetcher::Op::OnIpcCopied(int64_t began_ns, absl::Status status) {
  if (mapping_ != nullptr) engine->mappings()->Close(std::exchange(mapping_, nullptr));
  const int64_t took_ms = (owner_->poller_->clock().NowNs() - began_ns) / 1'000'000;
  if (status.ok() && took_ms > owner_->options_.trust_ms) {
    ++pending_;
    owner_->FetchAside(*this, TransferKey(key, manifest.transfer, "alive"),
                       [this](absl::Status kept, const Tensor&) {
                         --pending_;
                         if (!kept.ok()) return Fail(kept);
                         EndIfDone();
                       });
    return;
  }
  if (!status.ok()) return Fail(status);
  EndIfDone();
}

// ---- Chunk by chunk ----

void DeviceFetcher::Op::MoreChunks() {
  ++pending_;  // What fails in here must not end us in here.
  while (status_.ok() && next_chunk_ < chunks_ && in_flight_ < owner_->options_.chunks_in_flight) {
    const uint64_t chunk = next_chunk_++;
    ++in_flight_;
    ++pending_;
    engine->WhenFetchSlot([this, chunk](StorageRef slot) {
      --pending_;
      if (!status_.ok()) return EndIfDone();
      const uint64_t bytes =
          std::min(manifest.chunk_bytes, manifest.bytes - chunk * manifest.chunk_bytes);
      auto into = Tensor::FromStorage(slot, 0, DType::kUint8, {static_cast<int64_t>(bytes)});
      if (!into.ok()) return Fail(into.status());
      FetchPart(ChunkKey(key, manifest.transfer, chunk), *std::move(into),
                [this, chunk, bytes, slot = std::move(slot)](absl::Status status, const Tensor&,
                                                             bool) mutable {
                  OnChunk(chunk, bytes, std::move(slot), std::move(status));
                });
    });
  }
  --pending_;
}

void DeviceFetcher::Op::OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot,
                                absl::Status status) {
  if (!status_.ok()) return EndIfDone();
  if (!status.ok()) return Fail(status);
  void* const data = slot->data();
  CopyIn(Copier::Direction::kToDevice, chunk * manifest.chunk_bytes, data, bytes,
         [this, slot = std::move(slot)](absl::Status copied) mutable {
           slot = StorageRef();
           --in_flight_;
           if (!copied.ok()) return Fail(copied);
           MoreChunks();
           EndIfDone();
         });
  if (++copies_begun_ == chunks_) AllStarted();
}

// ---- Ending ----

void DeviceFetcher::Op::AllStarted() {
  started_ = true;
  if (!context->complete_on_stream() || reported_ || !status_.ok()) return;
  for (Copier::Direction direction : {Copier::Direction::kToDevice, Copier::Direction::kOnDevice}) {
    absl::StatusOr<bool> joined = engine->copier()->JoinStream(direction, context->stream());
    if (!joined.ok() || !*joined) return;  // It ends when the copies have.
  }
  Report(absl::OkStatus(), into_, false);
}

void DeviceFetcher::Op::Fail(const absl::Status& status) {
  if (status_.ok()) {
    status_ = status;
    if (reported_) {
      TRYST_LOG(Error) << "a device tensor that was given to its stream has not arrived: "
                       << key.text() << ": " << status;
    }
    inner_.StartCancel();
  }
  EndIfDone();
}

void DeviceFetcher::Op::EndIfDone() {
  if (pending_ > 0 || ended_ || (status_.ok() && !started_)) return;
  ended_ = true;
  if (status_.ok()) owner_->counters_.bytes += manifest.bytes;
  if (manifest.transfer != 0) {
    owner_->FetchAside(*this, TransferKey(key, manifest.transfer, status_.ok() ? "done" : "back"),
                       [](absl::Status, const Tensor&) {});
  }
  Report(status_, status_.ok() ? into_ : Tensor(), false);
  owner_->ops_.erase(self);
}

void DeviceFetcher::Op::EndCancellation() {
  *alive_ = false;
  if (token_ != Cancellation::kNoToken) args.cancellation->Deregister(token_);
  token_ = Cancellation::kNoToken;
}

void DeviceFetcher::Op::Report(absl::Status status, Tensor tensor, bool is_dead) {
  if (reported_) return;
  reported_ = true;
  EndCancellation();
  ++(status.ok() ? owner_->counters_.ended_ok : owner_->counters_.ended_failed);
  if (args.executor == nullptr) {
    return std::move(done_)(std::move(status), Args(), args, std::move(tensor), is_dead);
  }
  owner_->Deliver(args.executor, [args = args, done = std::move(done_), status = std::move(status),
                                  tensor = std::move(tensor), is_dead]() mutable {
    std::move(done)(std::move(status), Args(), args, std::move(tensor), is_dead);
  });
}

}  // namespace tryst
