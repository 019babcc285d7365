#include "server/regions/region_fetch.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/stream_copy.h"
#include "rendezvous/alarms.h"
#include "rendezvous/selected.h"
#include "rendezvous/span_digests.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_grants.h"

namespace tryst {
namespace {

// Asks that are out for one fetch: one is on its way while another is copied at each end.
constexpr size_t kAsksOut = 4;
// So much is copied until somebody looks whether it is still wanted: some 50 us.
constexpr uint64_t kBetweenLooks = 64 << 10;
// What is copied in the call that asks, under a grant.
constexpr uint64_t kMostGrantedBytes = 64 << 10;
constexpr uint64_t kMostMappedSpans = 1024;
// If it is not mapped. The kernel takes 0.4 us a span and 0.3 us of 4 KiB, and so an answer, which
// takes 30 us more, is sooner there with more. But 256 KiB as one span are there in 12 us: spans
// that lie near each other come with all that lies between, if that is less for each of them than
// what takes as long as a span.
constexpr uint64_t kMostGrantedSpans = 64;
constexpr uint64_t kBytesLikeASpan = 4096;
constexpr uint64_t kFewSpans = 8;
constexpr absl::Duration kGrantWait = absl::Seconds(10);

absl::Status Refused(const TensorKey& key, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("The fetch of ", key.edge(), ": ", why));
}

// One fetch. It ends once it has failed or was cancelled and nothing is copied, whatever is out: an
// answer that comes later holds memory of its own, and is dropped. What is out keeps this.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  Fetch(Server* server, std::shared_ptr<Rendezvous> step, int64_t step_id, const TensorKey& key,
        const Selection& wanted, const RecvArgs& args, const SelectedLanding& landing,
        uint64_t bytes, DoneFn done)
      : steps_(server->steps()),
        alarms_(server->steps()->alarms()),
        ends_on_(args.executor),
        callbacks_(server->executor()),
        step_(std::move(step)),
        step_id_(step_id),
        is_own_(key.src().worker == server->worker()),
        key_(key),
        wanted_(wanted),
        landing_(landing.selection),
        digests_(landing.digests),
        partial_(landing.partial),
        result_(landing.result),
        args_(args),
        into_(args.destination),
        bytes_(bytes),
        lists_(wanted_.view(), digests_ ? GranuleFor(landing.selection, bytes) : 0,
               TensorKey::kMaxBytes - key.text().size()),
        left_(bytes),
        done_(std::move(done)) {
    args_.destination = Tensor();
    args_.destinations = {};
    args_.by_reference = true;  // It is read once, in here.
    args_.recurring = false;
    args_.device_context = nullptr;
    args_.cancellation = &own_;
    // What comes later needs an executor that the server waits for, unlike the caller's.
    args_.executor = server->own_executor();
  }

  // Before Begin(): it is copied from there, and asked for only if that turns out to be closed.
  // REQUIRES: it is mapped.
  void SetMapped(GrantTable* grants, std::shared_ptr<const GrantedMemory> memory) {
    grants_ = grants;
    mapped_ = std::move(memory);
  }
  // REQUIRES: called once.
  void Begin(const CancellationRef& cancellation) {
    if (cancellation != nullptr) {
      cancellation_ = cancellation;
      of_caller_ = cancellation->Register([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Stop(Cancelled());
      });
      if (of_caller_ == Cancellation::kNoToken) Stop(Cancelled());
    }
    alarm_ = alarms_->Set(args_.deadline, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Stop(self->Late());
    });
    // The alarm comes a moment later, when all may be copied.
    if (args_.deadline.Passed(alarms_->clock().NowNs())) Stop(Late());
    bool copies = false;
    {
      MutexLock lock(&mu_);
      going_ = false;
      copies = mapped_ != nullptr && status_.ok();
    }
    if (copies) return PostCopy();
    Go(nullptr);
  }

 private:
  // What one ask wants.
  struct Part {
    std::string list;
    uint64_t begin = 0, bytes = 0;  // They count through all that is wanted.
    SelectionPlace place;           // Where they land.
    bool again = false;
  };

  // Nothing begins to land from here on, and no path writes into the destination.
  void Stop(absl::Status why) {
    bool any_out = false;
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      if (status_.ok() && (left_ > 0 || !asked_.empty())) status_ = std::move(why);
      stops_.store(true, std::memory_order_relaxed);
      any_out = !asked_.empty();
      ++inside_;  // The server lasts as long.
    }
    // Each path would wake its poller, which on a busy host takes this thread's processor.
    if (any_out) {
      args_.executor->RunWithoutWaiting([self = shared_from_this()] { self->own_.StartCancel(); });
    }
    Leave();
    EndIfOver(nullptr);
  }

  // Copies from mapped memory, one part after the other, so that others have their turn.
  void PostCopy() {
    args_.executor->RunWithoutWaiting([self = shared_from_this()] { self->CopyMapped(); });
  }
  void CopyMapped() {
    if (!Enter()) return;  // Stop() ends it.
    const Selection wanted = wanted_.view(), landing = landing_.view();
    uint64_t part = kMaxAskBytes;
    {
      MutexLock lock(&mu_);
      part = std::min(left_, part);
    }
    uint64_t copied = 0;
    while (copied < part && !stops_.load(std::memory_order_relaxed)) {
      const uint64_t bytes = std::min(part - copied, kBetweenLooks);
      mapped_->Copy(wanted, landing, into_.mutable_data(), bytes, bytes_ >= kStreamBytes,
                    &copied_from_, &copied_to_);
      copied += bytes;
    }
    const absl::Status open = mapped_->StillOpen();
    if (!open.ok()) grants_->Failed(key_, mapped_.get(), open);
    // A step that was aborted fails what it is asked for, with its own status.
    const bool counts = open.ok() && !step_->aborted();
    if (counts) {
      grants_->Count(copied);
    } else {
      mapped_.reset();
    }
    bool goes_on = false;
    {
      MutexLock lock(&mu_);
      --inside_;
      left_ = counts ? left_ - copied : bytes_;
      goes_on = counts && left_ > 0 && status_.ok();
    }
    if (goes_on) return PostCopy();
    Go(args_.executor);
  }

  // Asks for as much as may be out. One thread at a time is in here. `here` is the executor that
  // runs this, if any does.
  void Go(Executor* here) {
    for (;;) {
      Part part;
      {
        MutexLock lock(&mu_);
        if (going_) return;  // That thread looks again.
        if (left_ == 0 || !status_.ok() || asked_.size() == kAsksOut) break;
        going_ = true;
        part.begin = bytes_ - left_;
        part.list = lists_.Next(left_, &part.bytes);
        left_ -= part.bytes;
        asked_.push_back({part.begin, part.bytes});
        part.place = landed_;
        SkipBytes(landing_.view(), part.bytes, &landed_);
      }
      Ask(std::move(part));
      MutexLock lock(&mu_);
      going_ = false;
    }
    EndIfOver(here);
  }

  void Ask(Part part) {
    absl::StatusOr<TensorKey> key = key_.WithEdge(absl::StrCat(key_.edge(), part.list));
    if (!key.ok()) return OnEnd({key.status()}, std::move(part), nullptr);
    DoneFn ended = [self = shared_from_this(),
                    part = std::move(part)](Received&& received) mutable {
      self->OnEnd(std::move(received), std::move(part), self->args_.executor);
    };
    if (is_own_) return steps_->Take(step_id_, *key, args_, std::move(ended));
    step_->RecvAsync(*key, args_, std::move(ended));
  }

  // Whether it is what was asked for.
  absl::Status Check(const Received& received, const Part& part) const {
    if (!received.status.ok()) return received.status;
    const Tensor& tensor = received.tensor;
    const bool fits = !received.is_dead && tensor.dtype() != DType::kString && tensor.on_host() &&
                      (digests_ ? HasTrailer(tensor.data(), tensor.bytes(), part.bytes)
                                : tensor.bytes() == part.bytes);
    if (fits) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "the owner of ", key_.edge(),
        " answered with other bytes than it was asked for: run the same release on both"));
  }

  void OnEnd(Received&& received, Part part, Executor* here) {
    absl::Status status = Check(received, part);
    std::vector<ByteSpan> missing;
    if (!status.ok()) missing.push_back({0, part.bytes});
    if (status.ok() && digests_) {
      missing = FindWrong(received.tensor.data(), received.tensor.bytes(), part.bytes);
    }
    if (!Enter()) return;
    const bool wrong = status.ok() && !missing.empty();
    if (wrong && !part.again) {
      received.tensor.Reset();
      part.again = true;
      Ask(std::move(part));
      Leave();
      return Go(here);
    }
    std::vector<uint32_t> cut;
    if (status.ok() && !Land(received.tensor, part, &missing, &cut)) status = Cancelled();
    received.tensor.Reset();  // Before it is told that the ask is over.
    bool first_failure = false;
    {
      MutexLock lock(&mu_);
      --inside_;
      const auto asked = std::find_if(asked_.begin(), asked_.end(), [&part](const ByteSpan& each) {
        return each.offset == part.begin;
      });
      asked_.erase(asked);
      for (const ByteSpan& of_part : missing) {
        missing_.push_back({part.begin + of_part.offset, of_part.bytes});
      }
      cut_.insert(cut_.end(), cut.begin(), cut.end());
      const bool stays_wrong = status.ok() && wrong && !partial_;
      if (stays_wrong) status = absl::DataLossError("digests are wrong");
      first_failure = status_.ok() && !status.ok();
      if (first_failure) {
        status_ = std::move(status);
        wrong_digests_ = stays_wrong;
      }
    }
    if (first_failure) {
      stops_.store(true, std::memory_order_relaxed);
      own_.StartCancel();
    }
    Go(here);
  }

  // False: the fetch is over, or will be without the answer that has come. True: it is not before
  // Leave().
  bool Enter() {
    MutexLock lock(&mu_);
    if (!status_.ok()) return false;
    ++inside_;
    return true;
  }
  void Leave() {
    MutexLock lock(&mu_);
    --inside_;
  }

  static absl::Status Cancelled() {
    return absl::CancelledError("the fetch from the region was cancelled");
  }
  absl::Status Late() const {
    return absl::DeadlineExceededError(
        absl::StrCat("Timed out waiting for ", key_.edge(), " of ", key_.src().worker));
  }

  // Copies what is not missing. False: somebody has cancelled meanwhile, and the rest is missing.
  bool Land(const Tensor& tensor, const Part& part, std::vector<ByteSpan>* missing,
            std::vector<uint32_t>* cut) {
    const Selection landing = landing_.view();
    const char* const from = tensor.data_as<char>();
    bool whole = true;
    if (missing->empty()) {
      SelectionPlace place = part.place;
      for (uint64_t at = 0; at < part.bytes && whole; at += kBetweenLooks) {
        whole = !stops_.load(std::memory_order_relaxed);
        if (!whole) missing->push_back({at, part.bytes - at});
        const uint64_t bytes = whole ? std::min(part.bytes - at, kBetweenLooks) : 0;
        Scatter(landing, from + at, into_.mutable_data(), bytes, &place);
      }
    } else {
      ScatterExcept(landing, from, into_.mutable_data(), part.bytes, *missing, part.place);
    }
    if (!digests_ || result_ == nullptr) return whole;
    // Each part has spans of its own, but for those that are cut.
    DigestSpans(landing, into_.bytes(), part.place, from, tensor.bytes(), part.bytes,
                result_->digests.data(), cut);
    return whole;
  }

  void EndIfOver(Executor* here) {
    Received received;
    Tensor into;
    DoneFn done;
    {
      MutexLock lock(&mu_);
      if (ended_ || going_ || inside_ > 0) return;
      if (status_.ok() && (left_ > 0 || !asked_.empty())) return;
      ended_ = true;
      missing_.insert(missing_.end(), asked_.begin(), asked_.end());
      if (left_ > 0) missing_.push_back({bytes_ - left_, left_});
      // What stopped it came while the last bytes were copied.
      if (missing_.empty()) status_ = absl::OkStatus();
      received.status = status_;
      if (wrong_digests_ || result_ != nullptr) {
        const std::vector<uint32_t> failed = FailedSpans();
        if (wrong_digests_) received.status = WrongDigests(key_, failed);
        if (result_ != nullptr) WriteResult(failed);
      }
      into = std::move(into_);
      done = std::move(done_);
    }
    if (received.status.ok()) received.tensor = std::move(into);
    into.Reset();
    if (of_caller_ != Cancellation::kNoToken) cancellation_->TryDeregister(of_caller_);
    if (alarm_ != Alarms::kNoToken) alarms_->Cancel(alarm_);
    Executor* const ends_on = ends_on_ == nullptr && here == args_.executor ? callbacks_ : ends_on_;
    EndReceive(ends_on == here ? nullptr : ends_on, std::move(received), std::move(done));
  }

  std::vector<uint32_t> FailedSpans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::sort(missing_.begin(), missing_.end(),
              [](const ByteSpan& a, const ByteSpan& b) { return a.offset < b.offset; });
    return SpansIn(landing_.view(), into_.bytes(), missing_);
  }

  void WriteResult(const std::vector<uint32_t>& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    result_->failed = failed;
    if (!digests_) return;
    DigestCut(landing_.view(), into_.data(), into_.bytes(), std::move(cut_),
              result_->digests.data());
    for (const uint32_t number : failed) result_->digests[number] = 0;
  }

  StepRegistry* const steps_;
  Alarms* const alarms_;
  Executor* const ends_on_;    // Null: on whichever thread ends it, unless that is the server's,
  Executor* const callbacks_;  // which has this for callbacks.
  const std::shared_ptr<Rendezvous> step_;
  const int64_t step_id_;
  const bool is_own_;
  const TensorKey key_;
  const OwnSelection wanted_, landing_;
  const bool digests_, partial_;
  GatherResult* const result_;
  RecvArgs args_;  // Each ask has them.
  Tensor into_;    // Until the end.
  GrantTable* grants_ = nullptr;
  std::shared_ptr<const GrantedMemory> mapped_;
  SelectionPlace copied_from_, copied_to_;  // The next part of it begins there.
  const uint64_t bytes_;                    // That are wanted.
  Cancellation own_;                        // The asks have it.
  std::atomic<bool> stops_{false};          // Copies look at it.
  CancellationRef cancellation_;            // The caller's.
  Cancellation::Token of_caller_ = Cancellation::kNoToken;
  Alarms::Token alarm_ = Alarms::kNoToken;  // At its deadline.

  Mutex mu_;
  ListWriter lists_ ABSL_GUARDED_BY(mu_);
  SelectionPlace landed_ ABSL_GUARDED_BY(mu_);        // The next ask begins there.
  uint64_t left_ ABSL_GUARDED_BY(mu_);                // Bytes that were not asked for.
  std::vector<ByteSpan> asked_ ABSL_GUARDED_BY(mu_);  // Each is of a part that is out.
  int inside_ ABSL_GUARDED_BY(mu_) = 0;     // Threads that use the destination or the server.
  bool going_ ABSL_GUARDED_BY(mu_) = true;  // Begin() has it, then Go().
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);            // The first failure.
  bool wrong_digests_ ABSL_GUARDED_BY(mu_) = false;     // It is that.
  std::vector<ByteSpan> missing_ ABSL_GUARDED_BY(mu_);  // Parts that are not there.
  std::vector<uint32_t> cut_ ABSL_GUARDED_BY(mu_);      // Spans that came in several parts.
  DoneFn done_ ABSL_GUARDED_BY(mu_);
};

// From the first to the last byte of the spans. REQUIRES: they were checked; there is one.
ByteSpan RangeOf(const Selection& wanted) {
  uint64_t begin = UINT64_MAX, end = 0;
  for (SpanCursor at(wanted, INT64_MAX); !at.AtEnd(); at.Next()) {
    const ByteSpan span = at.span();
    if (span.bytes == 0) continue;
    begin = std::min(begin, span.offset);
    end = std::max(end, span.offset + span.bytes);
  }
  return {begin, end - begin};
}

// What may be copied in the call that asks, and how.
struct Little {
  Little(const Selection& wanted, uint64_t bytes) : wanted(wanted) {
    if (bytes == 0 || bytes > kMostGrantedBytes) return;
    spans = SpanCount(wanted);
    mapped = spans <= kMostMappedSpans;
    each = spans <= kMostGrantedSpans;
  }
  // With all that lies between, which is `range` then. The first call goes through the spans.
  bool InRange() {
    if (!mapped || spans <= kFewSpans) return false;
    if (range.bytes == 0) range = RangeOf(wanted);
    const uint64_t most = each ? spans * kBytesLikeASpan : GrantTable::Room::kBytes;
    return range.bytes <= std::min(most, GrantTable::Room::kBytes);
  }
  const Selection& wanted;
  uint64_t spans = 0;
  bool mapped = false;  // Out of a segment.
  bool each = false;    // Span by span.
  ByteSpan range;
};

// Copies it all, in here. Else it is to be asked for: what was copied is not known.
bool Copied(const GrantedMemory& memory, GrantTable* grants, const TensorKey& key, Little* little,
            const RecvArgs& args, const SelectedLanding& landing, uint64_t bytes) {
  if (args.cancellation != nullptr && args.cancellation->cancelled()) return false;
  if (!args.deadline.is_never() && args.deadline.Passed(SteadyClock().NowNs())) return false;
  const Selection& wanted = little->wanted;
  SelectionPlace from, to;
  void* const into = args.destination.mutable_data();
  if (memory.mapped()) {
    memory.Copy(wanted, landing.selection, into, bytes, /*streams=*/false, &from, &to);
    const absl::Status open = memory.StillOpen();
    if (!open.ok()) grants->Failed(key, &memory, open);
    return open.ok();
  }
  if (little->InRange()) {
    const GrantTable::Room room(grants);
    if (room.data() != nullptr) {
      const absl::Status status =
          memory.ReadRange(wanted, landing.selection, into, bytes, little->range, room.data());
      if (status.ok()) return true;
      // What lies between may be no memory at all.
      if (!little->each || !absl::IsDataLoss(status)) {
        grants->Failed(key, &memory, status);
        return false;
      }
    }
  }
  if (!little->each) return false;
  GrantedPart part;
  for (uint64_t left = bytes; left > 0; left -= part.bytes) {
    if (!memory.Plan(wanted, landing.selection, into, left, &from, &to, &part)) return false;
    const absl::Status status = memory.Read(&part);
    if (!status.ok()) {
      grants->Failed(key, &memory, status);
      return false;
    }
  }
  return true;
}

// Asks for a grant, for later fetches. `executor` maps what it is of, which may take long.
void AskForGrant(GrantTable* grants, const std::shared_ptr<Rendezvous>& step,
                 const TensorKey& region, Executor* executor) {
  const absl::StatusOr<TensorKey> key = region.WithEdge(absl::StrCat(region.edge(), kGrantList));
  if (!key.ok()) return grants->Set(region, key.status());
  RecvArgs args;
  args.deadline = Deadline::After(SteadyClock(), kGrantWait);
  args.executor = executor;
  step->RecvAsync(*key, args, [grants, region](Received&& received) {
    if (!received.status.ok()) return grants->Set(region, received.status);
    const Tensor& text = received.tensor;
    const bool is_text = !received.is_dead && text.dtype() == DType::kUint8 && text.on_host();
    grants->Set(region, GrantedMemory::Open(
                            is_text ? absl::string_view(text.data_as<char>(), text.bytes())
                                    : absl::string_view(),
                            region.src().worker, region.src_incarnation(), grants->segments()));
  });
}

absl::StatusOr<uint64_t> CheckFetch(const TensorKey& key, const Selection& wanted,
                                    const RecvArgs& args, const Selection& landing) {
  if (key.empty() || RegionNameOf(key.edge()).empty() ||
      RegionEdge(RegionNameOf(key.edge())) != key.edge()) {
    return absl::InvalidArgumentError(
        "the key of a fetch from a region has the edge |region|NAME|, with nothing behind it");
  }
  if (key.text().size() + kMinListText > TensorKey::kMaxBytes) {
    return Refused(key, "the names of its devices leave no room for what is wanted");
  }
  if (wanted.kind == Selection::Kind::kWhole) {
    return Refused(key, "say which bytes of the region are wanted");
  }
  const Tensor& into = args.destination;
  if (!into.valid() || into.dtype() == DType::kString || !into.on_host() || into.read_only()) {
    return Refused(key, "it needs a destination in memory of the host that may be written");
  }
  const auto lands = CheckSelection(landing, into.bytes(), SelectionUse::kWrite);
  if (!lands.ok()) return Refused(key, lands.status().message());
  // How large the region is, its owner knows.
  const auto comes = CheckSelection(wanted, INT64_MAX, SelectionUse::kRead);
  if (!comes.ok()) return Refused(key, comes.status().message());
  if (*comes != *lands) {
    return Refused(key,
                   absl::StrCat("of the region ", *comes, " bytes are wanted, and the ",
                                "destination's selection has ", *lands, ": they must be as many"));
  }
  return *comes;
}

}  // namespace

void FetchRegion(Server* server, int64_t step, const TensorKey& key, const Selection& wanted,
                 const RecvArgs& args, const SelectedLanding& landing, DoneFn done) {
  if (!done) done = [](Received&&) {};
  if (server->steps() == nullptr) {
    return FailReceive(absl::FailedPreconditionError("the server has not started: start it first"),
                       args.executor, std::move(done));
  }
  const auto bytes = CheckFetch(key, wanted, args, landing.selection);
  if (!bytes.ok()) return FailReceive(bytes.status(), args.executor, std::move(done));
  NoneIsThere(landing);
  auto begun = server->steps()->StartStep(step);
  if (!begun.ok()) return FailReceive(begun.status(), args.executor, std::move(done));
  GrantTable* const grants = &server->grants()->taken;
  GrantTable::Found grant;
  // Digests are made where the bytes are known to be right: at the owner.
  Little little(wanted, *bytes);
  const bool has_arena = server->allocator() != nullptr;
  if (*bytes > 0 && !landing.digests && !(*begun)->aborted() &&
      key.src().worker != server->worker() && (has_arena || little.each || little.InRange())) {
    // What lies in the arena is mapped in the end, and so is asked for again.
    grant = grants->Find(key, /*at_first=*/little.each || (!has_arena && little.InRange()));
  }
  const bool inside = grant.memory != nullptr &&
                      CheckSelection(wanted, grant.memory->bytes(), SelectionUse::kRead).ok();
  if (grant.memory != nullptr && !inside) {
    // The owner refuses it, unless it has opened a larger one.
    const absl::Status open = grant.memory->StillOpen();
    if (!open.ok()) grants->Failed(key, grant.memory.get(), open);
  }
  // The fetch's `done` may destroy the server, so this comes first.
  if (grant.asks) AskForGrant(grants, *begun, key, server->own_executor());
  const bool mapped = inside && grant.memory->mapped();
  const bool here = mapped ? little.mapped : inside && (little.each || little.InRange());
  if (here && Copied(*grant.memory, grants, key, &little, args, landing, *bytes)) {
    grants->Count(*bytes);
    if (landing.result != nullptr) landing.result->failed.clear();
    return EndReceive(args.executor, {absl::OkStatus(), args.destination}, std::move(done));
  }
  const auto fetch = std::make_shared<Fetch>(server, *begun, step, key, wanted, args, landing,
                                             *bytes, std::move(done));
  if (mapped && !here) fetch->SetMapped(grants, std::move(grant.memory));
  fetch->Begin(args.cancellation);
}

}  // namespace tryst
