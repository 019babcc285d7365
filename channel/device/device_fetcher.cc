#include "channel/device/device_fetcher.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/crc32c.h"
#include "channel/ops/peer_words.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr int64_t kDeliverAgainNs = 1'000'000;
constexpr absl::Duration kAsidePatience = absl::Seconds(30);

// Whether a fetch that ended so tells nothing of the tensor: another one may have it.
bool StaysWhole(const absl::Status& why) {
  return absl::IsCancelled(why) || absl::IsDeadlineExceeded(why) || absl::IsInvalidArgument(why);
}

}  // namespace

// A tensor in another process's memory, by reference. The last one gone, the poller tells the
// producer.
class DeviceFetcher::View final : public Storage {
 public:
  View(DeviceFetcher* owner, DeviceEngine* engine, IpcMappings::Mapping* mapping, void* data,
       int64_t its_step, const TensorKey& its_key, const DeviceManifest& manifest)
      : Storage(data, manifest.bytes,
                MemorySpace{MemorySpace::Kind::kDevice, engine->gpu()->ordinal()}),
        step(its_step),
        key(its_key),
        transfer(manifest.transfer),
        owner_(owner),
        engine_(engine),
        mapping_(mapping) {}

  // On the poller thread.
  void Close() {
    if (mapping_ != nullptr) engine_->mappings()->Close(mapping_);
    delete this;
  }

  const int64_t step;
  const TensorKey key;
  const uint64_t transfer;

 private:
  ~View() override = default;
  void OnUnused() override {
    owner_->poller_->PostFn([this] { owner_->EndView(this); });
  }

  DeviceFetcher* const owner_;
  DeviceEngine* const engine_;
  IpcMappings::Mapping* const mapping_;
};

// One fetch into device memory, from Begin() to its end.
class DeviceFetcher::Op final : public LinedFetch {
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
  ~Op() override { TRYST_CHECK(ended_ && pending_ == 0); }

  void Start();
  void OnTurn(const DeviceManifest* met) override;
  // The step has.
  void Abort(const absl::Status& status) {
    if (!reported_) Fail(status);
  }
  // The probe has ended.
  void GoOn() {
    StopWaitingForProbe();
    BringBestWay();
  }
  void WaitForProbe(Way* way);

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
  Args InnerArgs(Tensor destination, bool by_reference);
  Way* WayOf(bool direct) { return owner_->WayOf(manifest, *engine, direct); }
  void FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination, bool by_reference,
                 absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done);
  void OnManifest(absl::Status status, Tensor answer, bool is_dead);
  void BringTransfer();
  absl::Status ChooseDestination();
  void BringInside(const Tensor& answer);
  void BringBestWay();
  void BringIpc();
  bool IsSmallAndFar() const;
  bool CopyInSmall(const void* from, Copier::Done done);
  void BringView(const void* from);
  void BringDirect();
  void FetchDirect();
  void OnDirect(const absl::Status& status, const Tensor& landed);
  void BringStaged();
  void OnIpcCopied(int64_t began_ns, absl::Status status);
  void MoreChunks();
  void OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot, absl::Status status, Tensor landed);
  // Copies into the destination; the end is counted in pending_.
  void CopyIn(Copier::Direction direction, uint64_t at, const void* from, uint64_t bytes,
              Copier::Done done);
  void Fail(const absl::Status& status);
  void AllStarted();
  void EndIfDone();
  void StopWaitingForProbe();
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
  bool is_view_ = false;       // The view has the mapping and the lease.
  bool started_ = false;       // Every copy is on its way.
  bool committed_ = false;     // All is here: too late to cancel.
  bool reported_ = false;
  bool ended_ = false;
  int pending_ = 0;  // Fetches, copies and probes that will still call us.
  // While no fetch of ours keeps the deadline.
  struct LateTimer final : PollerTimer {
    explicit LateTimer(Op* op) : op(op) {}
    void OnTimer() override;
    Op* const op;
  };
  Way* probed_ = nullptr;  // We are among those who wait for its probe.
  LateTimer late_timer_{this};
};

// ---- DeviceFetcher ----

DeviceFetcher::DeviceFetcher(Poller* poller, TensorFetcher* fetcher, DeviceFetcherOptions options)
    : poller_(poller),
      fetcher_(fetcher),
      options_(options),
      lines_([this](int64_t step, const TensorKey& key, uint64_t transfer,
                    absl::AnyInvocable<void() &&> done) {
        FetchAside(step, TransferKey(key, transfer, "back"), Tensor(),
                   [done = std::move(done)](const absl::Status&, const Tensor&) mutable {
                     std::move(done)();
                   });
      }),
      view_timer_(this),
      deliver_timer_(this) {}

DeviceFetcher::~DeviceFetcher() {
  TRYST_CHECK(Drained() && undelivered_.empty());
  poller_->CancelTimer(&deliver_timer_);
  poller_->CancelTimer(&view_timer_);
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

// Of those that wait in line or copy, the channel knows nothing.
void DeviceFetcher::AbortStep(int64_t step_id, const absl::Status& status) {
  fetcher_->AbortStep(step_id, status);
  poller_->PostFn([this, step_id, status] {
    std::vector<Op*> aborted;  // From the last made on: none has its turn by another's end.
    for (const auto& op : ops_) {
      if (op->step == step_id) aborted.push_back(op.get());
    }
    for (Op* op : aborted) op->Abort(status);
  });
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
          args.executor->RunWithoutWaiting([args, is_dead, fn = std::move(fn), why = std::move(why),
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

void DeviceFetcher::FetchAside(int64_t step, const absl::StatusOr<TensorKey>& key,
                               Tensor destination,
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
  args.destination = std::move(destination);
  args.deadline = Deadline::After(poller_->clock(), kAsidePatience);
  fetcher_->Fetch(step, *key, args,
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

DeviceFetcher::Way* DeviceFetcher::WayOf(const DeviceManifest& manifest, const DeviceEngine& engine,
                                         bool direct) {
  Way* way = &ways_[{manifest.process, manifest.host, engine.gpu()->ordinal(), direct}];
  if (way->exporter.empty()) way->exporter = WayKey(manifest);
  return way;
}

DeviceFetcher::Way::State DeviceFetcher::StateOf(Way* way, bool direct, Op* op) {
  way->direct = direct;
  way->worker = std::string(op->key.src().worker);
  if (direct && way->state == Way::State::kRefused &&
      poller_->now_ns() - way->refused_at_ns > options_.direct_again_ms * 1'000'000) {
    way->state = Way::State::kUnknown;  // The channel may be another one now.
  }
  if (way->state == Way::State::kUnknown) Probe(way, op);
  if (way->state == Way::State::kProbing) {
    op->WaitForProbe(way);
  }
  return way->state;
}

void DeviceFetcher::Probe(Way* way, Op* op) {
  way->state = Way::State::kProbing;
  FetchAside(op->step, TransferKey(op->key, 0, "probe"), Tensor(),
             [this, way, step = op->step, key = op->key, engine = op->engine](
                 absl::Status status, const Tensor& answer) {
               if (!way->direct) return OnProbe(way, engine, std::move(status), answer);
               if (!status.ok()) return EndProbe(way, status);
               auto manifest = DecodeManifest(answer.data_as<uint8_t>(), answer.bytes());
               if (!manifest.ok()) return EndProbe(way, manifest.status());
               ProbeDirect(way, step, key, engine, *manifest);
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
  const cuda::Address from = (*mapping)->base() + manifest->reference.offset;
  CompareProbe(way, engine, reinterpret_cast<const void*>(from), manifest->bytes, manifest->digest,
               [engine, mapping = *mapping] { engine->mappings()->Close(mapping); });
}

// Both NICs and the channel between them bring the producer's memory into ours.
void DeviceFetcher::ProbeDirect(Way* way, int64_t step, const TensorKey& key, DeviceEngine* engine,
                                const DeviceManifest& manifest) {
  if (!manifest.on_device || manifest.bytes > engine->slot_bytes()) {
    return EndProbe(way, absl::UnimplementedError("the producer has no memory to show"));
  }
  auto into = engine->Allocate(DType::kUint8, manifest.shape, nullptr);
  if (!into.ok()) return EndProbe(way, into.status());
  ++asides_;
  // A NIC waits for no stream: whoever used the block before must have ended.
  engine->copier()->WhenThere(LastUse(*into), [this, way, step, key, engine, manifest,
                                               into = *into](absl::Status there) {
    --asides_;
    if (!there.ok()) return EndProbe(way, there);
    FetchAside(step, TransferKey(key, 0, "direct"), into,
               [this, way, engine, manifest, into](absl::Status status, const Tensor& landed) {
                 if (status.ok() && !landed.SharesBytesWith(into)) {
                   status = absl::UnimplementedError("it did not come into device memory");
                 }
                 if (!status.ok()) return EndProbe(way, status);
                 CompareProbe(way, engine, into.data(), manifest.bytes, manifest.digest, [into] {});
               });
  });
}

void DeviceFetcher::CompareProbe(Way* way, DeviceEngine* engine, const void* from, uint64_t bytes,
                                 uint32_t digest, absl::AnyInvocable<void() &&> after) {
  ++asides_;
  engine->WhenFetchSlot([this, way, engine, from, bytes, digest,
                         after = std::move(after)](StorageRef slot) mutable {
    void* const into = slot->data();
    engine->Copy(
        Copier::Direction::kToHost, into, from, bytes, nullptr, nullptr,
        [this, way, bytes, digest, slot, after = std::move(after)](absl::Status copied) mutable {
          --asides_;
          std::move(after)();
          if (copied.ok() && Crc32c(0, slot->data(), bytes) != digest) {
            copied = absl::DataLossError("the probe read other bytes than are there");
          }
          EndProbe(way, std::move(copied));
        });
  });
}

void DeviceFetcher::EndProbe(Way* way, absl::Status status) {
  way->state = status.ok() ? Way::State::kProved : Way::State::kRefused;
  way->why = status.ok() ? "a probe read the right bytes" : std::string(status.message());
  way->refused_at_ns = poller_->now_ns();
  TRYST_LOG(Info) << "device tensors of " << way->worker << " are "
                  << (status.ok()   ? "read in place"
                      : way->direct ? "not brought by NICs alone"
                                    : "not read in place")
                  << (status.ok() && way->direct ? " by NICs: " : ": ") << way->why;
  // One that ends may take others with it.
  std::reverse(way->waiting.begin(), way->waiting.end());
  while (!way->waiting.empty()) way->waiting.back()->GoOn();
}

std::string DeviceFetcher::Explain() const {
  std::string out;
  for (const auto& [id, way] : ways_) {
    absl::StrAppend(&out, "device tensors of ", way.worker, " (process ", way.exporter.substr(0, 8),
                    "): ");
    switch (way.state) {
      case Way::State::kUnknown:
      case Way::State::kProbing:
        absl::StrAppend(&out, "the way is being proved\n");
        break;
      case Way::State::kProved:
        absl::StrAppend(&out, way.direct ? "rdma + GPUDirect, " : "cuda_ipc, ", way.why, "\n");
        break;
      case Way::State::kRefused:
        absl::StrAppend(&out, "not by ", way.direct ? "rdma + GPUDirect: " : "cuda_ipc: ", way.why,
                        "\n");
        break;
    }
  }
  absl::StrAppend(&out, "device fetches: ", counters_.ipc, " by cuda_ipc (", counters_.views,
                  " by reference), ", counters_.direct, " by rdma + GPUDirect, ", counters_.staged,
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

// ---- Views ----

void DeviceFetcher::RenewViews() {
  for (View* view : views_) {
    FetchAside(view->step, TransferKey(view->key, view->transfer, "alive"), Tensor(),
               [text = std::string(view->key.text())](absl::Status kept, const Tensor&) {
                 if (kept.ok()) return;
                 TRYST_LOG(Error) << "the producer no longer keeps what a view is of: " << text
                                  << ": " << kept;
               });
  }
  if (views_.empty()) return;
  poller_->SetTimer(&view_timer_, poller_->now_ns() + options_.view_renewal_ms * 1'000'000);
}

void DeviceFetcher::EndView(View* view) {
  views_.erase(view);
  FetchAside(view->step, TransferKey(view->key, view->transfer, "done"), Tensor(),
             [](absl::Status, const Tensor&) {});
  view->Close();
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
  if (!args.deadline.is_never()) owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
  owner_->lines_.Join(step, key, this);
}

void DeviceFetcher::Op::OnTurn(const DeviceManifest* met) {
  owner_->poller_->CancelTimer(&late_timer_);
  if (met != nullptr) {
    manifest = *met;
    return BringTransfer();
  }
  FetchPart(ManifestKey(key, owner_->options_.use_ipc ? owner_->host_ : 0, args.destination),
            Tensor(), false, [this](absl::Status status, Tensor answer, bool is_dead) {
              OnManifest(std::move(status), std::move(answer), is_dead);
            });
}

Args DeviceFetcher::Op::InnerArgs(Tensor destination, bool by_reference) {
  Args inner;
  inner.by_reference = by_reference;
  inner.destination = std::move(destination);
  inner.cancellation = &inner_;
  inner.deadline = args.deadline;
  return inner;
}

void DeviceFetcher::Op::FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination,
                                  bool by_reference,
                                  absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done) {
  if (!part.ok()) return Fail(part.status());
  ++pending_;
  owner_->fetcher_->Fetch(
      step, *part, InnerArgs(std::move(destination), by_reference),
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
  status = FitsLimit(manifest.bytes, owner_->options_.max_tensor_bytes);
  if (!status.ok()) return Fail(status);
  if (manifest.inside) {
    status = ChooseDestination();
    return status.ok() ? BringInside(answer) : Fail(status);
  }
  BringTransfer();
}

void DeviceFetcher::Op::BringTransfer() {
  // A view needs no destination, if it comes to that.
  is_view_ = args.by_reference && !args.destination.valid() && manifest.has_ipc;
  if (!is_view_) {
    const absl::Status status = ChooseDestination();
    if (!status.ok()) return Fail(status);
  }
  BringBestWay();
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
  Tensor bytes = answer;
  if (answer.space().kind == MemorySpace::Kind::kShared) {
    // It lies in a slot of the producer's, which must not wait for one of ours: ours may wait
    // for the producer.
    const char* const there = answer.data_as<char>() + DeviceManifest::kBytes;
    if (engine->ReadsPeer(there, manifest.bytes)) {
      ++owner_->counters_.read_in_peer;
      CopyIn(Copier::Direction::kToDevice, 0, there, manifest.bytes,
             [this, answer](const absl::Status& status) {
               if (!status.ok()) return Fail(status);
               EndIfDone();
             });
      return AllStarted();
    }
    auto copy = Tensor::Allocate(answer.dtype(), answer.shape());
    if (!copy.ok()) return Fail(copy.status());
    memcpy(copy->mutable_data(), answer.data(), answer.bytes());
    bytes = *std::move(copy);
  }
  ++pending_;
  engine->WhenFetchSlot([this, bytes = std::move(bytes)](StorageRef slot) {
    --pending_;
    void* const data = slot->data();
    memcpy(data, bytes.data_as<char>() + DeviceManifest::kBytes, manifest.bytes);
    CopyIn(Copier::Direction::kToDevice, 0, data, manifest.bytes,
           [this, slot = std::move(slot)](absl::Status status) {
             if (!status.ok()) return Fail(status);
             EndIfDone();
           });
    AllStarted();
  });
}

void DeviceFetcher::Op::BringBestWay() {
  if (!status_.ok()) return EndIfDone();
  if (manifest.has_ipc) {
    Way& way = *WayOf(false);
    if (owner_->InThisProcess(manifest) && way.state == Way::State::kUnknown) {
      way.state = Way::State::kProved;
      way.worker = std::string(key.src().worker);
      way.why = "it is this process";
    }
    const Way::State state = owner_->StateOf(&way, false, this);
    if (state == Way::State::kProbing) return;
    if (state == Way::State::kProved) return BringIpc();
  }
  if (manifest.on_device && owner_->options_.use_direct &&
      manifest.bytes >= owner_->options_.direct_bytes) {
    const Way::State state = owner_->StateOf(WayOf(true), true, this);
    if (state == Way::State::kProbing) return;
    if (state == Way::State::kProved) return BringDirect();
  }
  BringStaged();
}

void DeviceFetcher::Op::BringStaged() {
  if (!into_.valid()) {  // It was to be a view.
    is_view_ = false;
    const absl::Status status = ChooseDestination();
    if (!status.ok()) return Fail(status);
  }
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

// The probe has a patience of its own, which may be more than ours.
void DeviceFetcher::Op::WaitForProbe(Way* way) {
  ++pending_;
  probed_ = way;
  way->waiting.push_back(this);
  if (!args.deadline.is_never()) {
    owner_->poller_->SetTimer(&late_timer_, args.deadline.at_ns());
  }
}

void DeviceFetcher::Op::StopWaitingForProbe() {
  std::vector<Op*>* const waiting = &std::exchange(probed_, nullptr)->waiting;
  waiting->erase(std::find(waiting->begin(), waiting->end(), this));
  owner_->poller_->CancelTimer(&late_timer_);
  --pending_;
}

void DeviceFetcher::Op::LateTimer::OnTimer() {
  const std::string why =
      op->probed_ == nullptr
          ? "waits behind another fetch of its key"
          : absl::StrCat("waits for the proof of a way to the memory of ", op->key.src().worker);
  op->Fail(absl::DeadlineExceededError(
      absl::StrCat("not received in time: ", why, ": ", op->key.text())));
}

// ---- Out of the producer's memory ----

void DeviceFetcher::Op::BringIpc() {
  const void* from = reinterpret_cast<const void*>(manifest.address);
  auto direction = Copier::Direction::kOnDevice;
  if (!owner_->InThisProcess(manifest)) {
    auto mapping = engine->mappings()->Open(WayOf(false)->exporter, manifest.reference);
    if (!mapping.ok()) {
      // This allocation only: the next is tried again.
      Way& way = *WayOf(false);
      if (way.staged++ == 0) {
        TRYST_LOG(Warning) << "a device tensor of " << way.worker
                           << " is staged: " << mapping.status().message();
      }
      way.why = absl::StrCat(way.staged, " were staged, the last: ", mapping.status().message());
      return BringStaged();
    }
    mapping_ = *mapping;  // With peer access, where that is needed.
    from = reinterpret_cast<const void*>(mapping_->base() + manifest.reference.offset);
  }
  if (mapping_ == nullptr && !engine->has_peer(manifest.ordinal)) {
    direction = Copier::Direction::kFromPeer;
    if (is_view_) {  // No kernel could read it.
      is_view_ = false;
      const absl::Status status = ChooseDestination();
      if (!status.ok()) return Fail(status);
    }
  }
  ++owner_->counters_.ipc;
  if (is_view_) return BringView(from);
  const int64_t now_ns = owner_->poller_->clock().NowNs();
  auto done = [this, now_ns](absl::Status status) { OnIpcCopied(now_ns, std::move(status)); };
  if (direction == Copier::Direction::kOnDevice && IsSmallAndFar()) {
    started_ = CopyInSmall(from, std::move(done));  // No stream can wait for it.
    return started_ ? void() : AllStarted();
  }
  CopyIn(direction, 0, from, manifest.bytes, std::move(done));
  AllStarted();
}

// Another process of the same GPU gets its turn when ours has left it: nothing may linger.
bool DeviceFetcher::Op::IsSmallAndFar() const {
  const cuda::Uuid& ours = engine->gpu()->device().uuid;
  return manifest.bytes > 0 && manifest.bytes <= Standby::kMostBytes &&
         memcmp(manifest.uuid.bytes, ours.bytes, sizeof(ours.bytes)) != 0;
}

// True when the kernel that stands by does it.
bool DeviceFetcher::Op::CopyInSmall(const void* from, Copier::Done done) {
  ++pending_;
  return engine->CopySmall(into_.mutable_data(), from, manifest.bytes,
                           args.destination.valid() ? context->moment() : nullptr, LastUse(into_),
                           [this, done = std::move(done)](absl::Status status) mutable {
                             --pending_;
                             std::move(done)(std::move(status));
                           });
}

void DeviceFetcher::Op::BringView(const void* from) {
  ++owner_->counters_.views;
  auto* view = new View(owner_, engine, std::exchange(mapping_, nullptr), const_cast<void*>(from),
                        step, key, manifest);
  if (owner_->views_.empty()) {
    owner_->poller_->SetTimer(
        &owner_->view_timer_,
        owner_->poller_->now_ns() + owner_->options_.view_renewal_ms * 1'000'000);
  }
  owner_->views_.insert(view);
  auto tensor = Tensor::FromStorage(StorageRef::Own(view), 0, manifest.dtype, manifest.shape);
  if (!tensor.ok()) return Fail(tensor.status());
  into_ = *std::move(tensor);
  started_ = true;
  EndIfDone();
}

void DeviceFetcher::Op::OnIpcCopied(int64_t began_ns, absl::Status status) {
  if (mapping_ != nullptr) engine->mappings()->Close(std::exchange(mapping_, nullptr));
  const int64_t took_ms = (owner_->poller_->clock().NowNs() - began_ns) / 1'000'000;
  if (status.ok() && took_ms > owner_->options_.trust_ms) {
    ++pending_;
    owner_->FetchAside(step, TransferKey(key, manifest.transfer, "alive"), Tensor(),
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

// ---- By the NICs alone ----

// A NIC waits for no stream: the destination's users, of both kinds, must have ended.
void DeviceFetcher::Op::BringDirect() {
  ++pending_;
  const GpuEvent* const moment = args.destination.valid() ? context->moment() : nullptr;
  engine->copier()->WhenThere(moment, [this](const absl::Status& ended) {
    --pending_;
    if (!ended.ok()) return Fail(ended);
    ++pending_;
    engine->copier()->WhenThere(LastUse(into_), [this](const absl::Status& also) {
      --pending_;
      if (!also.ok()) return Fail(also);
      FetchDirect();
    });
  });
}

void DeviceFetcher::Op::FetchDirect() {
  if (!status_.ok()) return EndIfDone();
  auto into = Tensor::FromStorage(into_.storage(), into_.storage_offset(), DType::kUint8,
                                  {static_cast<int64_t>(manifest.bytes)});
  if (!into.ok()) return Fail(into.status());
  FetchPart(
      TransferKey(key, manifest.transfer, "whole"), *std::move(into), false,
      [this](const absl::Status& status, const Tensor& landed, bool) { OnDirect(status, landed); });
}

void DeviceFetcher::Op::OnDirect(const absl::Status& status, const Tensor& landed) {
  if (!status_.ok()) return EndIfDone();
  const bool refused = absl::IsUnimplemented(status) || absl::IsInvalidArgument(status) ||
                       absl::IsResourceExhausted(status);
  if (refused || (status.ok() && !landed.SharesBytesWith(into_))) {
    // Another channel than at the probe, or one that has no room for so much at once.
    Way& way = *WayOf(true);
    if (!absl::IsResourceExhausted(status)) {
      way.state = Way::State::kRefused;
      way.refused_at_ns = owner_->poller_->now_ns();
    }
    ++way.staged;
    way.why = status.ok() ? "it came into host memory" : std::string(status.message());
    return BringStaged();
  }
  if (!status.ok()) return Fail(status);
  ++owner_->counters_.direct;
  AllStarted();
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
      FetchPart(ChunkKey(key, manifest.transfer, chunk), *std::move(into), true,
                [this, chunk, bytes, slot = std::move(slot)](absl::Status status, Tensor landed,
                                                             bool) mutable {
                  OnChunk(chunk, bytes, std::move(slot), std::move(status), std::move(landed));
                });
    });
  }
  --pending_;
}

void DeviceFetcher::Op::OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot,
                                absl::Status status, Tensor landed) {
  if (!status_.ok()) return EndIfDone();
  if (!status.ok()) return Fail(status);
  if (landed.bytes() != bytes) {
    return Fail(absl::DataLossError("a chunk of a device tensor has the wrong size"));
  }
  // A view of the producer's memory is read where it is, if our GPU can.
  if (landed.storage().get() != slot.get()) {
    if (engine->ReadsPeer(landed.data(), bytes)) {
      ++owner_->counters_.read_in_peer;
      slot = landed.storage();
    } else {
      memcpy(slot->data(), landed.data(), bytes);
      landed = Tensor();
    }
  }
  const void* const data = landed.valid() ? landed.data() : slot->data();
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
  for (Copier::Direction direction :
       {Copier::Direction::kToDevice, Copier::Direction::kOnDevice, Copier::Direction::kFromPeer}) {
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
  if (probed_ != nullptr) StopWaitingForProbe();
  EndIfDone();
}

void DeviceFetcher::Op::EndIfDone() {
  if (pending_ > 0 || ended_ || (status_.ok() && !started_)) return;
  ended_ = true;
  if (status_.ok()) owner_->counters_.bytes += manifest.bytes;
  // The caller first: the producer can wait.
  Report(status_, status_.ok() ? std::move(into_) : Tensor(), false);
  if (manifest.transfer != 0 && status_.ok() && !is_view_) {
    owner_->FetchAside(step, TransferKey(key, manifest.transfer, "done"), Tensor(),
                       [](absl::Status, const Tensor&) {});
  }
  DeviceFetcher* const owner = owner_;
  const std::unique_ptr<Op> ended = std::move(*self);
  owner->ops_.erase(self);
  owner->poller_->CancelTimer(&late_timer_);
  const bool left = manifest.transfer != 0 && !status_.ok();
  owner->lines_.Leave(this, left ? &manifest : nullptr, !StaysWhole(status_));
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
