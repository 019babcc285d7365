#include "server/weights/weight_owner.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "rendezvous/answerer.h"
#include "server/etcd/etcd_client.h"
#include "server/weights/borrowed.h"
#include "server/weights/device_boxes.h"
#include "server/weights/etcd_decider.h"
#include "server/weights/owner_group.h"
#include "server/weights/parked_asks.h"
#include "server/weights/part_source.h"
#include "server/weights/weight_calls.h"
#include "weights/asks.h"
#include "weights/boxes.h"
#include "weights/cast.h"
#include "weights/chain.h"
#include "weights/digests.h"
#include "weights/layout_wire.h"

namespace tryst {
namespace {

// Members and owners that wait for a version or for news: twice as many as there may be, for those
// that ask again.
constexpr size_t kMaxParked = 2 * (size_t{LayoutLimits::kMaxOwners} + kMaxGroup);
// A worker has one link, and some threads that wait for the next version.
constexpr size_t kMaxParkedOfOne = 32;
constexpr size_t kMaxUnsealed = 2;  // Versions that are being published.
constexpr size_t kMaxLabelBytes = 1024;

// The highest number would be the set's last one.
absl::Status CheckNumber(uint64_t number) {
  if (number != 0 && number != UINT64_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a version's number is ", number, ", and must be from 1 to ", UINT64_MAX - 1));
}

}  // namespace

class WeightOwner::State final : public Answerer,
                                 public Covers,
                                 public std::enable_shared_from_this<State> {
 public:
  State(Server* server, WeightOwnerOptions options)
      : server_(server),
        options_(std::move(options)),
        calls_(server, options_.set),
        parked_(std::make_shared<ParkedAsks>(kMaxParked, kMaxParkedOfOne)) {}
  void Begin();

  absl::Status Declare(std::vector<TensorLayout> layouts);
  absl::Status Publish(uint64_t number, absl::string_view tensor, const Box& box,
                       const Tensor& bytes, const Strides& lies,
                       const std::shared_ptr<GpuContext>& context, bool borrow);
  absl::Status Release(uint64_t number, ReleaseHow how, const Patience& patience);
  absl::StatusOr<SealedVersion> Seal(uint64_t number, const std::string& label,
                                     const Patience& patience);
  void Drop(uint64_t number, const absl::Status& why);
  OwnerGroup* group() const { return group_.get(); }
  WeightView View() const;
  void Close();
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override;

 private:
  struct OwnBox {
    uint32_t tensor;
    Box box;
  };
  struct Version {
    uint64_t attempt = 0;       // Another one after the number was dropped.
    std::vector<Tensor> boxes;  // By place in the list; one that is published is valid.
    std::vector<bool> claimed;  // By a Publish().
    std::set<size_t> borrowed;  // The boxes that lie in memory of the caller's.
    std::vector<Digest> digests;
    Tensor list;  // The digests as bytes, the same for all who ask, once somebody has.
    size_t published = 0;
    bool ready = false;   // All is published, and Seal() was called.
    bool agreed = false;  // The first owner has put it together, of what was published here.
    bool left = false;    // Agreed, and Seal() has stopped waiting: another may wait in its place.
    SealedVersion as;     // If agreed.
    bool sealed = false;  // By the log.
  };
  using Ended = std::pair<AskOfPeer, absl::StatusOr<Tensor>>;

  absl::StatusOr<Tensor> BytesTensor(absl::string_view bytes) const {
    return tryst::BytesTensor(server_, bytes);
  }
  absl::StatusOr<size_t> PlaceOf(absl::string_view tensor, const Box& box) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A place for one box of a version, which nobody else publishes meanwhile.
  struct Claim {
    uint64_t number = 0;
    size_t place = 0;
    uint64_t attempt = 0;
    DType dtype = DType::kInvalid;
  };
  absl::StatusOr<Claim> ClaimPlace(uint64_t number, absl::string_view tensor, const Box& box);
  absl::StatusOr<Tensor> BytesOf(const Claim& claim, absl::string_view tensor, const Box& box,
                                 const Tensor& bytes, const Strides& lies,
                                 const std::shared_ptr<GpuContext>& context, bool borrow);
  absl::StatusOr<Tensor> KeepBorrowed(const Claim& claim, const Tensor& bytes, int64_t offset,
                                      const TensorShape& shape);
  absl::Status CopyBorrowed(uint64_t number);
  absl::Status LetGo(uint64_t number);
  // The version, if that is still the one that was begun then. Null: it was dropped.
  Version* FindAttempt(uint64_t number, uint64_t attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Version& Begin(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Unset: the answer is not there yet.
  bool AnswerNow(const WeightAsk& ask, absl::StatusOr<Tensor>* answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Version*> Find(const WeightAsk& ask) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends it, or the asker to somebody else.
  void EnterPart(AskOfPeer ask);
  absl::StatusOr<Tensor> AnswerPart(const AskOfPeer& ask);
  absl::StatusOr<Tensor> ReferralTensor(const Referral& referral) const;
  absl::StatusOr<PartSource> CheckPart(const WeightAsk& ask);
  void AnswerQuestion(AskOfPeer ask);
  void Tell(std::vector<tryst::Answer> news);
  // Takes out those that can be answered now.
  std::vector<Ended> TakeAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void EndAll(std::vector<Ended> ended);
  // The first owner asks the others for their digests, until an owner is lost.
  std::vector<absl::StatusOr<Tensor>> AskIfReady(uint64_t number, const Patience& patience);
  absl::StatusOr<SealedVersion> PutTogether(uint64_t number, const std::string& label,
                                            uint64_t attempt, const Patience& patience);
  absl::StatusOr<SealedVersion> AskForSealed(uint64_t number, const Patience& patience);
  absl::Status Agree(const SealedVersion& sealed, uint64_t attempt);
  void DropAttempt(uint64_t number, uint64_t attempt, const absl::Status& why);
  // Whoever asks for it from now on is told why. REQUIRES: there is such a version.
  Version TakeOut(uint64_t number, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteDropped(uint64_t number, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkSealed(const WeightVersion& name);
  void MarkActive(uint64_t number);
  absl::StatusOr<Covers::Sealed> Judge(uint64_t term, uint64_t number,
                                       const std::vector<WeightRoot>& digests) override;

  Server* const server_;
  const WeightOwnerOptions options_;
  WeightCalls calls_;
  const std::shared_ptr<ParkedAsks> parked_;
  // Set by Begin().
  std::shared_ptr<PartLine> parts_;
  std::unique_ptr<OwnerGroup> group_;  // Its locks are taken before mu_, never after it.

  mutable Mutex mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  std::vector<TensorLayout> layouts_ ABSL_GUARDED_BY(mu_);  // Empty: none are declared yet.
  Tensor encoded_layouts_ ABSL_GUARDED_BY(mu_);             // All who ask get this one.
  Digest layouts_digest_ ABSL_GUARDED_BY(mu_);
  std::vector<OwnBox> own_ ABSL_GUARDED_BY(mu_);      // By place in this owner's list.
  std::vector<size_t> offsets_ ABSL_GUARDED_BY(mu_);  // Its ListOffsets().
  absl::flat_hash_map<absl::string_view, uint32_t> tensors_ ABSL_GUARDED_BY(mu_);  // By name.
  std::map<uint64_t, Version> versions_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, absl::Status> dropped_ ABSL_GUARDED_BY(mu_);  // The last ones, and why.
  uint64_t attempts_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t highest_sealed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t active_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t active_ns_ ABSL_GUARDED_BY(mu_) = 0;  // Since when, by BootClock.
  PartChain chain_ ABSL_GUARDED_BY(mu_);        // Who has which parts.
  std::atomic<uint64_t> bytes_sent_{0};
  Borrowed borrowed_;
  std::set<uint64_t> missed_ ABSL_GUARDED_BY(mu_);  // There was something to tell to them.
};

void WeightOwner::State::Begin() {
  parts_ = std::make_shared<PartLine>(
      options_.answers, server_->own_executor(),
      [weak = weak_from_this()](const AskOfPeer& ask) -> absl::StatusOr<Tensor> {
        const auto self = weak.lock();
        if (self == nullptr) return absl::AbortedError("this owner has left the set of weights");
        return self->AnswerPart(ask);
      });
  OwnerGroup::Parts parts;
  parts.server = server_;
  parts.set = options_.set;
  parts.owners = options_.owners;
  parts.rank = options_.rank;
  parts.leads.times = options_.times;
  parts.leads.min_members = options_.min_members;
  parts.covers = this;
  if (options_.log_in_etcd) {
    EtcdDecider::Options etcd;
    etcd.access = *server_->etcd();
    etcd.cluster = server_->config().cluster;
    etcd.set = options_.set;
    parts.leads.times.lease_ns = etcd.lease_ns;
    parts.leads.times.retry_ns = EtcdDecider::kRetryNs;
    parts.make_decider = [etcd](Leading::HearFn hear) {
      return std::make_unique<EtcdDecider>(etcd, std::move(hear));
    };
  }
  parts.on_sealed = [this](const WeightVersion& version) { MarkSealed(version); };
  parts.on_active = [this](uint64_t number) { MarkActive(number); };
  parts.tell = [this](std::vector<tryst::Answer> news) { Tell(std::move(news)); };
  group_ = std::make_unique<OwnerGroup>(std::move(parts));
}

absl::StatusOr<Covers::Sealed> WeightOwner::State::Judge(uint64_t, uint64_t number,
                                                         const std::vector<WeightRoot>& digests) {
  MutexLock lock(&mu_);
  const auto found = versions_.find(number);
  if (found == versions_.end()) {
    return absl::NotFoundError(absl::StrCat("the first owner has no version ", number));
  }
  const SealedVersion& as = found->second.as;
  if (!found->second.agreed)
    return absl::UnavailableError("the first owner has not put the version together yet");
  for (size_t owner = 0; owner < digests.size(); ++owner) {
    if (owner >= as.lists.size() || RootOf(as.lists[owner]) != digests[owner]) {
      return absl::DataLossError(
          absl::StrCat("owner ", owner, " is ready with other bytes than the version has"));
    }
  }
  return Covers::Sealed{as.name.birth, RootOf(as.root)};
}

// Brings what the leader has to tell to those that listen.
void WeightOwner::State::Tell(std::vector<tryst::Answer> news) {
  std::map<uint64_t, std::string> told;
  for (const tryst::Answer& answer : news) told[answer.incarnation] = EncodeAnswer(answer);
  std::vector<AskOfPeer> listeners;
  {
    MutexLock lock(&mu_);
    std::set<uint64_t> heard;
    listeners = parked_->TakeIf([&](const AskOfPeer& ask) {
      const uint64_t incarnation = ask.ask.incarnation;
      const bool wanted = ask.ask.kind == WeightAsk::Kind::kNews && told.count(incarnation) != 0;
      if (wanted) heard.insert(incarnation);
      return wanted;
    });
    // Workers that have gone never ask again, so their entries would stay.
    if (missed_.size() > kMaxParked) missed_.clear();
    for (const auto& one : told) {
      if (heard.count(one.first) == 0) missed_.insert(one.first);
    }
  }
  for (AskOfPeer& listener : listeners) {
    auto bytes = BytesTensor(told[listener.ask.incarnation]);
    EndAsk(std::move(listener), std::move(bytes));
  }
}

void WeightOwner::State::AnswerQuestion(AskOfPeer ask) {
  const auto question = DecodeQuestion(ask.ask.question);
  const auto answer = question.ok() ? group_->OnQuestion(*question, ask.peer)
                                    : absl::StatusOr<tryst::Answer>(question.status());
  auto bytes =
      answer.ok() ? BytesTensor(EncodeAnswer(*answer)) : absl::StatusOr<Tensor>(answer.status());
  EndAsk(std::move(ask), std::move(bytes));
}

absl::Status WeightOwner::State::Declare(std::vector<TensorLayout> layouts) {
  auto encoded = EncodeLayouts(layouts, options_.owners.size());
  if (!encoded.ok()) return encoded.status();
  const auto bytes = BytesTensor(*encoded);
  if (!bytes.ok()) return bytes.status();
  const Digest digest = DigestOf(*encoded);
  {
    MutexLock lock(&mu_);
    if (!layouts_.empty())
      return absl::AlreadyExistsError(
          "the layouts of this set of weights were declared already: declare them once");
    for (uint32_t tensor = 0; tensor < layouts.size(); ++tensor) {
      for (Box& box : BoxesOf(layouts[tensor], options_.rank)) {
        own_.push_back({tensor, std::move(box)});
      }
    }
    layouts_ = std::move(layouts);
    offsets_ = ListOffsets(layouts_, options_.rank);
    for (uint32_t tensor = 0; tensor < layouts_.size(); ++tensor) {
      tensors_[layouts_[tensor].name] = tensor;
    }
    encoded_layouts_ = *bytes;
    layouts_digest_ = digest;
  }
  group_->Declare(RootOf(digest));
  return absl::OkStatus();
}

WeightOwner::State::Version& WeightOwner::State::Begin(uint64_t number) {
  Version& version = versions_[number];
  if (version.attempt == 0) {
    version.attempt = ++attempts_;
    version.boxes.resize(own_.size());
    version.digests.resize(own_.size());
    version.claimed.resize(own_.size());
  }
  return version;
}

WeightOwner::State::Version* WeightOwner::State::FindAttempt(uint64_t number, uint64_t attempt) {
  const auto found = versions_.find(number);
  return found == versions_.end() || found->second.attempt != attempt ? nullptr : &found->second;
}

absl::StatusOr<size_t> WeightOwner::State::PlaceOf(absl::string_view tensor, const Box& box) const {
  const auto found = tensors_.find(tensor);
  if (found != tensors_.end()) {
    for (size_t place = offsets_[found->second]; place < offsets_[found->second + 1]; ++place) {
      if (own_[place].box == box) return place;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("owner ", options_.rank, " has no box ",
                                                 box.ToString(), " of tensor \"", Printable(tensor),
                                                 "\""));
}

absl::StatusOr<WeightOwner::State::Claim> WeightOwner::State::ClaimPlace(uint64_t number,
                                                                         absl::string_view tensor,
                                                                         const Box& box) {
  if (absl::Status numbered = CheckNumber(number); !numbered.ok()) return numbered;
  MutexLock lock(&mu_);
  if (!closed_.ok()) return closed_;
  const auto place = PlaceOf(tensor, box);
  if (!place.ok()) return place.status();
  if (number <= highest_sealed_) {
    return absl::AlreadyExistsError(absl::StrCat("version ", number, " is too low: version ",
                                                 highest_sealed_,
                                                 " is sealed already, so take a higher number"));
  }
  if (dropped_.count(number) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("version ", number,
                     " was dropped, and its number cannot be used again: take a higher one"));
  }
  const size_t unsealed = std::count_if(versions_.begin(), versions_.end(),
                                        [](const auto& version) { return !version.second.sealed; });
  if (versions_.count(number) == 0 && unsealed >= kMaxUnsealed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        unsealed,
        " versions have been published and not sealed, and no more may be: seal or drop one"));
  }
  Version& version = Begin(number);
  if (version.claimed[*place]) {
    return absl::InvalidArgumentError(absl::StrCat("box ", box.ToString(), " of tensor \"",
                                                   Printable(tensor), "\" of version ", number,
                                                   " was published already"));
  }
  version.claimed[*place] = true;
  return Claim{number, *place, version.attempt, layouts_[own_[*place].tensor].dtype};
}

// A copy of the box; or the box where it lies.
absl::StatusOr<Tensor> WeightOwner::State::BytesOf(const Claim& claim, absl::string_view tensor,
                                                   const Box& box, const Tensor& bytes,
                                                   const Strides& lies,
                                                   const std::shared_ptr<GpuContext>& context,
                                                   bool borrow) {
  const DType dtype = claim.dtype;
  if (!bytes.valid() || (bytes.dtype() != dtype && !CanCast(bytes.dtype(), dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", Printable(tensor), "\" is of type ", DTypeName(dtype),
                     ", which Tryst cannot make of ", DTypeName(bytes.dtype())));
  }
  const absl::Status view = CheckView(box.extent, lies, bytes.shape().elements(), ViewUse::kSource);
  if (!view.ok()) return view;
  const auto shape = TensorShape::Make(box.extent);
  if (!shape.ok()) return shape.status();
  const absl::Status follows = CheckContext(context, bytes);
  if (!follows.ok()) return follows;
  if (borrow) {
    if (bytes.on_host() && bytes.dtype() == dtype && LiesDense(box.extent, lies)) {
      return KeepBorrowed(claim, bytes, lies.offset, *shape);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("box ", box.ToString(), " of tensor \"", Printable(tensor),
                     "\" is not dense in the host's memory, or not of type ", DTypeName(dtype),
                     ", so it cannot be borrowed where it lies: publish a copy"));
  }
  auto snapshot = AllocateShared(server_, dtype, *shape);
  if (!snapshot.ok()) return snapshot;
  if (!bytes.on_host()) {
    absl::Status copied = AwaitMoment(*context, absl::InfiniteDuration());
    if (copied.ok()) copied = CopyBoxFromGpu(*context, bytes, lies, box.extent, *snapshot);
    if (!copied.ok()) return copied;
    return snapshot;
  }
  Tensor dense = *snapshot;
  if (bytes.dtype() != dtype) {
    auto uncast = Tensor::Allocate(bytes.dtype(), *shape);
    if (!uncast.ok()) return uncast;
    dense = *uncast;
  }
  RunCopy(PlanCopy(box.extent, DTypeBytes(bytes.dtype()), lies, Dense(box.extent)), bytes.data(),
          dense.mutable_data());
  if (bytes.dtype() != dtype) {
    Cast(bytes.dtype(), dense.data(), dtype, snapshot->mutable_data(), shape->elements());
  }
  return snapshot;
}

// Whoever releases the version finds the box as soon as it counts as borrowed.
absl::StatusOr<Tensor> WeightOwner::State::KeepBorrowed(const Claim& claim, const Tensor& bytes,
                                                        int64_t offset, const TensorShape& shape) {
  MutexLock lock(&mu_);
  Version* const version = FindAttempt(claim.number, claim.attempt);
  if (version == nullptr) {
    return absl::AbortedError(absl::StrCat("version ", claim.number, " was dropped"));
  }
  auto box = borrowed_.Borrow(claim.number, bytes, offset, shape);
  if (!box.ok()) return box;
  version->boxes[claim.place] = *box;
  version->borrowed.insert(claim.place);
  return box;
}

absl::Status WeightOwner::State::Publish(uint64_t number, absl::string_view tensor, const Box& box,
                                         const Tensor& bytes, const Strides& lies,
                                         const std::shared_ptr<GpuContext>& context, bool borrow) {
  const auto claim = ClaimPlace(number, tensor, box);
  if (!claim.ok()) return claim.status();
  auto published = BytesOf(*claim, tensor, box, bytes, lies, context, borrow);
  Digest digest;
  if (published.ok()) {
    digest = BoxDigest(published->bytes(), BlockDigests(published->data(), published->bytes()));
  }
  MutexLock lock(&mu_);
  Version* const version = FindAttempt(number, claim->attempt);
  if (!published.ok()) {
    if (version != nullptr) version->claimed[claim->place] = false;
    return published.status();
  }
  if (version == nullptr) {
    return absl::AbortedError(absl::StrCat("version ", number, " was dropped"));
  }
  if (!borrow) version->boxes[claim->place] = *std::move(published);
  version->digests[claim->place] = digest;
  ++version->published;
  return absl::OkStatus();
}

absl::Status WeightOwner::State::Release(uint64_t number, ReleaseHow how,
                                         const Patience& patience) {
  for (;;) {
    const uint64_t lent = borrowed_.lent();
    absl::Status released;
    if (how == ReleaseHow::kCopy) released = CopyBorrowed(number);
    if (how == ReleaseHow::kDrop) released = LetGo(number);
    if (!released.ok()) return released;
    released = borrowed_.AwaitReturned(number, patience, lent);
    // What was borrowed meanwhile may be of this version.
    if (!absl::IsUnavailable(released)) return released;
  }
}

absl::Status WeightOwner::State::CopyBorrowed(uint64_t number) {
  for (;;) {
    size_t place = 0;
    uint64_t attempt = 0;
    Tensor box;
    {
      MutexLock lock(&mu_);
      const auto found = versions_.find(number);
      if (found == versions_.end() || found->second.borrowed.empty()) return absl::OkStatus();
      place = *found->second.borrowed.begin();
      attempt = found->second.attempt;
      box = found->second.boxes[place];
    }
    auto copy = AllocateShared(server_, box.dtype(), box.shape());
    if (!copy.ok()) return copy.status();
    if (box.bytes() > 0) memcpy(copy->mutable_data(), box.data(), box.bytes());
    MutexLock lock(&mu_);
    Version* const version = FindAttempt(number, attempt);
    if (version == nullptr || version->borrowed.erase(place) == 0) continue;
    version->boxes[place] = *std::move(copy);  // `box` is the last to go, without the lock.
  }
}

absl::Status WeightOwner::State::LetGo(uint64_t number) {
  const absl::Status why =
      absl::AbortedError(absl::StrCat("owner ", options_.rank, " has released version ", number));
  std::vector<Ended> ended;
  Version gone;  // Its memory goes back without the lock.
  {
    MutexLock lock(&mu_);
    if (versions_.count(number) == 0) return absl::OkStatus();
    if (number == active_) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", number,
                       " is active, and members that come later need it: release it by a copy, or "
                       "activate a later one"));
    }
    gone = TakeOut(number, why);
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  return absl::OkStatus();
}

absl::StatusOr<SealedVersion> WeightOwner::State::Seal(uint64_t number, const std::string& label,
                                                       const Patience& patience) {
  if (label.size() > kMaxLabelBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the label has ", label.size(), " bytes, and may have at most ", kMaxLabelBytes));
  }
  if (absl::Status numbered = CheckNumber(number); !numbered.ok()) return numbered;
  absl::StatusOr<SealedVersion> sealed = absl::UnknownError("");
  std::vector<Ended> ended;
  uint64_t attempt = 0;
  bool again = false;
  {
    MutexLock lock(&mu_);
    if (layouts_.empty())
      return absl::FailedPreconditionError(
          "this set of weights has no layouts yet: declare them first");
    // It has nothing to publish.
    if (own_.empty() && number > highest_sealed_ && dropped_.count(number) == 0) Begin(number);
    const auto found = versions_.find(number);
    if (found == versions_.end() || found->second.published < own_.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "of version ", number, " this owner has published ",
          found == versions_.end() ? 0 : found->second.published, " of ", own_.size(), " boxes"));
    }
    again = std::exchange(found->second.left, false);
    if (again) sealed = found->second.as;
    if (again && found->second.sealed) return sealed;
    if (number <= highest_sealed_) {
      return absl::AlreadyExistsError(absl::StrCat("version ", number, " is too low: version ",
                                                   highest_sealed_,
                                                   " is sealed already, so take a higher number"));
    }
    if (found->second.ready && !again) {
      return absl::AlreadyExistsError(absl::StrCat("version ", number, " is being sealed already"));
    }
    found->second.ready = true;
    attempt = found->second.attempt;
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  if (!again) {
    sealed = options_.rank == 0 ? PutTogether(number, label, attempt, patience)
                                : AskForSealed(number, patience);
  }
  absl::Status status = sealed.ok() ? Agree(*sealed, attempt) : sealed.status();
  const bool agreed = status.ok();
  if (status.ok()) status = group_->Seal(number, RootOf(sealed->lists[options_.rank]), patience);
  if (status.ok()) return sealed;
  if (agreed && (absl::IsDeadlineExceeded(status) || absl::IsCancelled(status))) {
    // Who decides may have heard that this owner is ready, so its bytes stay until a later version.
    MutexLock lock(&mu_);
    if (Version* const version = FindAttempt(number, attempt)) version->left = true;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "; it may still become sealed"));
  }
  DropAttempt(number, attempt, status);
  return status;
}

std::vector<absl::StatusOr<Tensor>> WeightOwner::State::AskIfReady(uint64_t number,
                                                                   const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kReady;
  ask.number = number;
  std::vector<absl::StatusOr<Tensor>> answers(options_.owners.size() - 1,
                                              absl::UnavailableError("it was not asked"));
  const uint64_t term = group_->term();
  for (;;) {
    std::vector<WeightCalls::Call> calls;
    std::vector<size_t> places;
    for (size_t i = 0; i < answers.size(); ++i) {
      const absl::Status& status = answers[i].status();
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) continue;
      calls.push_back({options_.owners[1 + i], ask});
      places.push_back(i);
    }
    if (calls.empty()) return answers;
    auto came = calls_.AskUntilThere(
        calls, Patience(std::min(patience.left(), absl::Nanoseconds(options_.times.silent_ns)),
                        patience.cancellation));
    for (size_t i = 0; i < came.size(); ++i) answers[places[i]] = std::move(came[i]);
    if (patience.cancelled() || patience.left() == absl::ZeroDuration()) return answers;
    if (term != 0 && group_->term() != term) {
      // Who took an owner's place knows nothing of this version, so it would be waited for in vain.
      for (auto& answer : answers) {
        if (!answer.ok()) answer = absl::AbortedError("the owners have changed meanwhile");
      }
      return answers;
    }
    // One that has answered before it was lost drops the version, too: the log says so.
    const uint32_t lost = group_->LostOwner().value_or(0);
    if (lost == 0 || answers[lost - 1].ok()) continue;
    answers[lost - 1] = absl::UnavailableError("nothing is heard of it: see whether it still runs");
    return answers;
  }
}

absl::StatusOr<SealedVersion> WeightOwner::State::PutTogether(uint64_t number,
                                                              const std::string& label,
                                                              uint64_t attempt,
                                                              const Patience& patience) {
  const uint32_t owners = options_.owners.size();
  const auto answers = AskIfReady(number, patience);
  std::vector<TensorLayout> layouts;
  std::vector<std::vector<Digest>> lists(owners);
  SealedVersion sealed;
  {
    MutexLock lock(&mu_);
    layouts = layouts_;
    sealed.name.layouts = layouts_digest_;
    const Version* const version = FindAttempt(number, attempt);
    if (version == nullptr) {
      return absl::AbortedError(absl::StrCat("version ", number, " was dropped"));
    }
    lists[0] = version->digests;
  }
  for (uint32_t owner = 1; owner < owners; ++owner) {
    const auto& answer = answers[owner - 1];
    if (absl::IsAlreadyExists(answer.status())) return answer.status();
    if (!answer.ok()) {
      return absl::AbortedError(absl::StrCat("version ", number, " is dropped: owner ", owner, ", ",
                                             options_.owners[owner],
                                             ", is not ready: ", answer.status().ToString()));
    }
    const size_t boxes = ListOffsets(layouts, owner).back();
    auto digests = DecodeDigests({answer->data_as<char>(), answer->bytes()}, 1 + boxes);
    if (!digests.ok() || digests->front() != sealed.name.layouts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "version ", number, " is dropped: owner ", owner, ", ", options_.owners[owner],
          ", has declared other layouts than ", options_.owners[0]));
    }
    lists[owner].assign(digests->begin() + 1, digests->end());
  }
  const absl::Status replicas = CheckReplicas(layouts, lists);
  if (!replicas.ok()) return replicas;
  sealed.name.number = number;
  sealed.name.birth = absl::Uniform<uint64_t>(absl::BitGen()) | 1;
  sealed.label = label;
  for (uint32_t owner = 0; owner < owners; ++owner) {
    sealed.lists.push_back(ListDigest(sealed.name, owner, lists[owner]));
  }
  sealed.root = RootDigest(sealed.name, sealed.lists);
  return sealed;
}

absl::StatusOr<SealedVersion> WeightOwner::State::AskForSealed(uint64_t number,
                                                               const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kSealed;
  ask.number = number;
  const WeightCalls::Call call{options_.owners[0], ask};
  const auto answer = std::move(calls_.AskUntilThere({call}, patience)[0]);
  if (!answer.ok()) return answer.status();
  return DecodeSealed({answer->data_as<char>(), answer->bytes()});
}

absl::Status WeightOwner::State::Agree(const SealedVersion& sealed, uint64_t attempt) {
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    Version* const version = FindAttempt(sealed.name.number, attempt);
    if (version == nullptr) {
      return absl::AbortedError(absl::StrCat("version ", sealed.name.number, " was dropped"));
    }
    if (sealed.name.layouts != layouts_digest_ || sealed.lists.size() != options_.owners.size() ||
        sealed.lists[options_.rank] != ListDigest(sealed.name, options_.rank, version->digests)) {
      return absl::DataLossError(absl::StrCat("the first owner has sealed another version ",
                                              sealed.name.number, " than this owner published"));
    }
    version->agreed = true;
    version->as = sealed;
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  return absl::OkStatus();
}

// The log says so. Of what is sealed the newest ones are kept, and the active one.
void WeightOwner::State::MarkSealed(const WeightVersion& name) {
  std::vector<Ended> ended;
  std::vector<Version> over;  // Its memory goes back without the lock.
  {
    MutexLock lock(&mu_);
    const auto found = versions_.find(name.number);
    if (found == versions_.end() || !found->second.agreed ||
        found->second.as.name.birth != name.birth) {
      return;
    }
    found->second.sealed = true;
    highest_sealed_ = std::max(highest_sealed_, name.number);
    size_t kept = 0;
    for (auto version = versions_.end(); version != versions_.begin();) {
      --version;
      const bool is_over = version->second.sealed
                               ? version->first != active_ && ++kept > options_.keep
                               : version->first != active_ && version->first < name.number;
      if (!is_over) continue;
      if (!version->second.sealed) {
        NoteDropped(version->first, absl::AbortedError(absl::StrCat(
                                        "version ", name.number, " was sealed, which is newer")));
      }
      chain_.Forget({version->first, version->second.as.name.birth});
      over.push_back(std::move(version->second));
      version = versions_.erase(version);
    }
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
}

void WeightOwner::State::MarkActive(uint64_t number) {
  MutexLock lock(&mu_);
  if (number != active_) active_ns_ = BootClock().NowNs();
  active_ = number;
}

WeightView WeightOwner::State::View() const {
  WeightView view;
  group_->View(&view);
  MutexLock lock(&mu_);
  view.newest = highest_sealed_;
  view.active = active_;
  if (active_ != 0) view.active_s = static_cast<double>(BootClock().NowNs() - active_ns_) / 1e9;
  view.bytes = bytes_sent_.load(std::memory_order_relaxed);
  for (const auto& [number, version] : versions_) {
    if (version.sealed) view.holds.push_back(number);
    for (const Tensor& box : version.boxes) view.held_bytes += box.valid() ? box.bytes() : 0;
  }
  return view;
}

WeightOwner::State::Version WeightOwner::State::TakeOut(uint64_t number, const absl::Status& why) {
  const auto found = versions_.find(number);
  Version gone = std::move(found->second);
  versions_.erase(found);
  chain_.Forget({number, gone.as.name.birth});
  NoteDropped(number, why);
  return gone;
}

void WeightOwner::State::NoteDropped(uint64_t number, absl::Status why) {
  constexpr size_t kRemembered = 64;
  dropped_[number] = std::move(why);
  if (dropped_.size() > kRemembered) dropped_.erase(dropped_.begin());
}

void WeightOwner::State::Drop(uint64_t number, const absl::Status& why) {
  uint64_t attempt = 0;
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    const auto found = versions_.find(number);
    if (found != versions_.end()) {
      attempt = found->second.attempt;
    } else if (number > highest_sealed_ && dropped_.count(number) == 0) {
      // Nothing is published yet, and other owners may wait for it.
      NoteDropped(number, why);
      ended = TakeAnswered();
    }
  }
  EndAll(std::move(ended));
  DropAttempt(number, attempt, why);
}

void WeightOwner::State::DropAttempt(uint64_t number, uint64_t attempt, const absl::Status& why) {
  std::vector<Ended> ended;
  Version gone;  // Its memory goes back without the lock.
  {
    MutexLock lock(&mu_);
    Version* const version = FindAttempt(number, attempt);
    if (version == nullptr || version->sealed) return;
    gone = TakeOut(number, why);
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
}

void WeightOwner::State::Close() {
  server_->steps()->RemoveAnswerer(WeightsPrefix(options_.set), this);
  group_->Close();
  std::vector<Ended> ended;
  std::map<uint64_t, Version> versions;
  {
    MutexLock lock(&mu_);
    closed_ = absl::AbortedError(
        absl::StrCat("owner ", options_.rank, " has left the set of weights ", options_.set));
    versions.swap(versions_);
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  parts_->Close(absl::AbortedError("this owner has left the set of weights"));
}

absl::StatusOr<const WeightOwner::State::Version*> WeightOwner::State::Find(
    const WeightAsk& ask) const {
  const auto found = versions_.find(ask.number);
  // Others may have heard of the seal before this owner has.
  if (found != versions_.end() && found->second.agreed &&
      found->second.as.name.birth == ask.birth) {
    return &found->second;
  }
  if (const auto dropped = dropped_.find(ask.number); dropped != dropped_.end()) {
    return absl::AbortedError(dropped->second.message());
  }
  std::string there;
  for (const auto& [number, version] : versions_) {
    if (version.sealed) absl::StrAppend(&there, there.empty() ? "" : ", ", number);
  }
  return absl::NotFoundError(absl::StrCat("version ", ask.number,
                                          " that was asked for is not at owner ", options_.rank,
                                          ", which holds these versions: ", there));
}

bool WeightOwner::State::AnswerNow(const WeightAsk& ask, absl::StatusOr<Tensor>* answer) {
  if (!closed_.ok()) {
    *answer = closed_;
    return true;
  }
  const auto found = versions_.find(ask.number);
  switch (ask.kind) {
    case WeightAsk::Kind::kReady:
    case WeightAsk::Kind::kSealed:
    case WeightAsk::Kind::kVersion: {
      const auto dropped = dropped_.find(ask.number);
      if (found != versions_.end()) {
        const Version& version = found->second;
        if (ask.kind != WeightAsk::Kind::kReady) {
          // Until it is sealed other owners may not know its birth.
          const bool is_there =
              ask.kind == WeightAsk::Kind::kVersion ? version.sealed : version.agreed;
          if (is_there) *answer = BytesTensor(EncodeSealed(version.as));
          return is_there;
        }
        if (version.sealed) {
          *answer = absl::AlreadyExistsError(absl::StrCat(
              "version ", ask.number, " is sealed: take a number above ", highest_sealed_));
          return true;
        }
        if (!version.ready) return false;
        std::vector<Digest> digests = {layouts_digest_};
        digests.insert(digests.end(), version.digests.begin(), version.digests.end());
        *answer = BytesTensor(EncodeDigests(digests));
        return true;
      }
      if (dropped != dropped_.end()) {
        *answer = absl::AbortedError(dropped->second.message());
        return true;
      }
      if (ask.number > highest_sealed_) return false;
      *answer = absl::NotFoundError(absl::StrCat("owner ", options_.rank, " no longer has version ",
                                                 ask.number, ": a later one has replaced it"));
      return true;
    }
    case WeightAsk::Kind::kNewer: {
      // The newest may have been released.
      const auto newest = std::find_if(versions_.rbegin(), versions_.rend(),
                                       [](const auto& version) { return version.second.sealed; });
      if (newest == versions_.rend() || newest->first <= ask.number) return false;
      *answer = BytesTensor(EncodeSealed(newest->second.as));
      return true;
    }
    case WeightAsk::Kind::kLayouts:
      *answer = !layouts_.empty() && ask.digest == layouts_digest_.ToString()
                    ? absl::StatusOr<Tensor>(encoded_layouts_)
                    : absl::NotFoundError(
                          "this owner has declared other layouts than those asked for, or has "
                          "declared none yet");
      return true;
    case WeightAsk::Kind::kList: {
      if (const auto version = Find(ask); !version.ok()) {
        *answer = version.status();
        return true;
      }
      Tensor& list = found->second.list;
      *answer = list.valid() ? list : BytesTensor(EncodeDigests(found->second.digests));
      if (answer->ok()) list = **answer;
      return true;
    }
    case WeightAsk::Kind::kNews:
      if (missed_.erase(ask.incarnation) == 0) return false;
      *answer = BytesTensor("");
      return true;
    case WeightAsk::Kind::kPart:
    case WeightAsk::Kind::kQuestion:
    case WeightAsk::Kind::kHolders:
      break;  // Answer().
    case WeightAsk::Kind::kHeld:
      *answer = absl::FailedPreconditionError(
          "an owner of weights has all of its boxes: ask it for parts");
      return true;
  }
  *answer =
      absl::InternalError("this kind of request is not answered here: this is a bug of Tryst's");
  return true;
}

void WeightOwner::State::Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  auto parsed = ParseEdge(options_.set, key.edge());
  AskOfPeer ask;
  ask.peer = std::string(key.dst().worker);
  ask.args = args;
  ask.done = std::move(done);
  if (!parsed.ok()) return EndAsk(std::move(ask), parsed.status());
  ask.ask = *std::move(parsed);
  if (ask.ask.kind == WeightAsk::Kind::kPart) return EnterPart(std::move(ask));
  if (ask.ask.kind == WeightAsk::Kind::kHolders) {
    ask.bytes = kMaxHolders * kMaxWorkerBytes;
    return parts_->Enter(std::move(ask));
  }
  if (ask.ask.kind == WeightAsk::Kind::kQuestion) {
    // What it brings about does not belong on a poller's thread, and must not wait for what an
    // embedder's executor has to do: the leader's permits are short.
    server_->own_executor()->RunWithoutWaiting(
        [self = shared_from_this(), ask = std::move(ask)]() mutable {
          self->AnswerQuestion(std::move(ask));
        });
    return;
  }
  absl::StatusOr<Tensor> answer = absl::UnknownError("");
  bool now = false;
  {
    MutexLock lock(&mu_);
    now = AnswerNow(ask.ask, &answer);
  }
  if (now) return EndAsk(std::move(ask), std::move(answer));
  parked_->Park(std::move(ask));
  // What it waits for may have come meanwhile.
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
}

void WeightOwner::State::EnterPart(AskOfPeer ask) {
  const auto source = CheckPart(ask.ask);
  if (!source.ok()) return EndAsk(std::move(ask), source.status());
  ask.bytes = source->making_bytes();
  std::optional<Digest> digest;
  {
    MutexLock lock(&mu_);
    const PartName part = NameOf(ask.ask);
    // Only of what is still there: what is forgotten is not heard of again.
    if (Find(ask.ask).ok())
      ask.sent_to = chain_.Next(part, {ask.peer, ask.ask.holder}, ask.ask.may_be_sent_on);
    digest = chain_.FindDigest(part);
  }
  if (!ask.sent_to.has_value() || !(source->whole || digest.has_value())) {
    return parts_->Enter(std::move(ask));
  }
  auto answer = ReferralTensor({*ask.sent_to, digest});
  EndAsk(std::move(ask), std::move(answer));
}

absl::StatusOr<PartSource> WeightOwner::State::CheckPart(const WeightAsk& ask) {
  MutexLock lock(&mu_);
  if (!closed_.ok()) return closed_;
  const auto version = Find(ask);
  if (!version.ok()) return version.status();
  if (ask.tensor < layouts_.size() && Within(ask.box, layouts_[ask.tensor].shape)) {
    const uint32_t element_bytes = DTypeBytes(layouts_[ask.tensor].dtype);
    for (size_t place = offsets_[ask.tensor]; place < offsets_[ask.tensor + 1]; ++place) {
      const OwnBox& own = own_[place];
      if (!Contains(own.box, ask.box)) continue;
      PartSource source;
      source.copy =
          PlanCopy(ask.box.extent, element_bytes, PartOf(own.box, Dense(own.box.extent), ask.box),
                   Dense(ask.box.extent));
      if (source.copy.bytes() > kMaxPartBytes) break;
      source.element_bytes = element_bytes;
      source.whole = own.box == ask.box;
      source.box = (*version)->boxes[place];
      const auto base = versions_.find(ask.base);
      if (base != versions_.end() && base->second.sealed) source.base = base->second.boxes[place];
      return source;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "owner ", options_.rank, " has no box that contains ", ask.box.ToString(), " of tensor ",
      ask.tensor, ", or that part is larger than ", kMaxPartBytes, " bytes"));
}

absl::StatusOr<Tensor> WeightOwner::State::AnswerPart(const AskOfPeer& ask) {
  if (ask.ask.kind == WeightAsk::Kind::kHolders) {
    const WeightVersion version{ask.ask.number, ask.ask.birth};
    if (ask.ask.incarnation == 0) {
      MutexLock lock(&mu_);
      return BytesTensor(EncodeHolders(chain_.HoldersOf(version)));
    }
    const auto holders = group_->HoldersOf(version, ask.ask.incarnation);
    if (!holders.ok()) return holders.status();
    return BytesTensor(EncodeHolders(*holders));
  }
  const auto source = CheckPart(ask.ask);
  if (!source.ok()) return source.status();
  if (!ask.sent_to.has_value()) return MakePart(server_, *source, &bytes_sent_);
  const PartName part = NameOf(ask.ask);
  Referral referral{*ask.sent_to, std::nullopt};
  {
    MutexLock lock(&mu_);
    referral.digest = chain_.FindDigest(part);
  }
  if (referral.digest.has_value()) return ReferralTensor(referral);
  const auto digest = DigestOfPart(*source);
  if (!digest.ok()) return digest.status();
  referral.digest = *digest;
  {
    MutexLock lock(&mu_);
    chain_.KeepDigest(part, *digest);
  }
  return ReferralTensor(referral);
}

absl::StatusOr<Tensor> WeightOwner::State::ReferralTensor(const Referral& referral) const {
  auto bytes = BytesTensor(EncodeReferral(referral));
  if (!bytes.ok()) return bytes;
  return Tensor::FromStorage(bytes->storage(), bytes->storage_offset(), DType::kInt8,
                             bytes->shape());
}

std::vector<WeightOwner::State::Ended> WeightOwner::State::TakeAnswered() {
  std::vector<absl::StatusOr<Tensor>> answers;
  std::vector<AskOfPeer> asks =
      parked_->TakeIf([&](const AskOfPeer& ask) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        absl::StatusOr<Tensor> answer = absl::UnknownError("");
        if (!AnswerNow(ask.ask, &answer)) return false;
        answers.push_back(std::move(answer));
        return true;
      });
  std::vector<Ended> ended;
  for (size_t i = 0; i < asks.size(); ++i) {
    ended.emplace_back(std::move(asks[i]), std::move(answers[i]));
  }
  return ended;
}

void WeightOwner::State::EndAll(std::vector<Ended> ended) {
  for (auto& [ask, answer] : ended) EndAsk(std::move(ask), std::move(answer));
}

absl::StatusOr<std::unique_ptr<WeightOwner>> WeightOwner::Open(Server* server,
                                                               const WeightOwnerOptions& options) {
  const absl::Status named = CheckSetName(options.set);
  if (!named.ok()) return named;
  if (server->steps() == nullptr) {
    return absl::FailedPreconditionError("start the server before it opens a set of weights");
  }
  if (options.log_in_etcd && server->etcd() == nullptr) {
    return absl::FailedPreconditionError(
        "the log of a set of weights can be kept in etcd where the members come from etcd alone: "
        "set resolver=etcd:HOST:PORT, or leave out decider=etcd");
  }
  if (options.owners.empty() || options.owners.size() > LayoutLimits::kMaxOwners ||
      options.rank >= options.owners.size() || options.keep < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, ", the number of owners is ", options.owners.size(),
                     " and keep is ", options.keep, ": the owners should be 1 to ",
                     LayoutLimits::kMaxOwners, ", rank below their number, and keep at least 1"));
  }
  if (options.owners[options.rank] != server->worker()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the list of owners names ", options.owners[options.rank], " at rank ", options.rank,
        ", and this worker is ", server->worker(), ": correct the rank or the list"));
  }
  auto state = std::make_shared<State>(server, options);
  state->Begin();
  server->steps()->SetAnswerer(WeightsPrefix(options.set), state);
  return std::unique_ptr<WeightOwner>(new WeightOwner(server, std::move(state)));
}

WeightOwner::WeightOwner(Server* server, std::shared_ptr<State> state)
    : state_(std::move(state)),
      shown_(server->weight_views()->Show([state = state_.get()] { return state->View(); })) {}

WeightOwner::~WeightOwner() {
  shown_.reset();
  state_->Close();
}

absl::Status WeightOwner::Declare(std::vector<TensorLayout> layouts) {
  return state_->Declare(std::move(layouts));
}

absl::Status WeightOwner::Publish(uint64_t number, absl::string_view tensor, const Box& box,
                                  const Tensor& bytes, const Strides& lies,
                                  std::shared_ptr<GpuContext> context) {
  return state_->Publish(number, tensor, box, bytes, lies, context, /*borrow=*/false);
}

absl::Status WeightOwner::Borrow(uint64_t number, absl::string_view tensor, const Box& box,
                                 const Tensor& bytes, const Strides& lies) {
  return state_->Publish(number, tensor, box, bytes, lies, nullptr, /*borrow=*/true);
}

absl::Status WeightOwner::Release(uint64_t number, ReleaseHow how, const Patience& patience) {
  return state_->Release(number, how, patience);
}

absl::StatusOr<SealedVersion> WeightOwner::Seal(uint64_t number, const std::string& label,
                                                const Patience& patience) {
  return state_->Seal(number, label, patience);
}

void WeightOwner::Drop(uint64_t number) {
  state_->Drop(number, absl::AbortedError(absl::StrCat("version ", number, " was dropped")));
}

absl::Status WeightOwner::Activate(uint64_t number, ActivateMode mode, const Patience& patience) {
  return state_->group()->Activate(number, mode, patience);
}

size_t WeightOwner::members() const { return state_->group()->members(); }

std::string WeightOwner::Explain() const { return state_->group()->Explain(); }

}  // namespace tryst
