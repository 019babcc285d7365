#include "server/weights/weight_owner.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "rendezvous/answerer.h"
#include "server/weights/weight_calls.h"
#include "weights/asks.h"
#include "weights/boxes.h"
#include "weights/cast.h"
#include "weights/digests.h"
#include "weights/layout_wire.h"

namespace tryst {
namespace {

// Members and owners that wait for a version: one each, with room for those that ask again.
constexpr size_t kMaxParked = 2 * size_t{LayoutLimits::kMaxOwners};
constexpr size_t kMaxUnsealed = 2;  // Versions that are being published.
constexpr size_t kMaxLabelBytes = 1024;

void End(const RecvArgs& args, DoneFn done, absl::StatusOr<Tensor> answer) {
  Received received{answer.status()};
  if (answer.ok()) received.tensor = *std::move(answer);
  EndReceive(args.executor, std::move(received), std::move(done));
}

}  // namespace

class WeightOwner::State final : public Answerer, public std::enable_shared_from_this<State> {
 public:
  State(Server* server, WeightOwnerOptions options)
      : server_(server), options_(std::move(options)), calls_(server, options_.set) {}

  absl::Status Declare(std::vector<TensorLayout> layouts);
  absl::Status Publish(uint64_t number, absl::string_view tensor, const Box& box,
                       const Tensor& bytes, const Strides& lies);
  absl::StatusOr<SealedVersion> Seal(uint64_t number, const std::string& label,
                                     absl::Duration timeout);
  void Drop(uint64_t number, const absl::Status& why);
  void Close();
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override;

 private:
  struct OwnBox {
    uint32_t tensor;
    Box box;
  };
  struct Version {
    std::vector<Tensor> boxes;  // By place in the list; one that is published is valid.
    std::vector<bool> claimed;  // By a Publish().
    std::vector<Digest> digests;
    size_t published = 0;
    bool ready = false;  // All is published, and Seal() was called.
    bool sealed = false;
    SealedVersion as;  // If sealed.
  };
  struct Parked {
    WeightAsk ask;
    RecvArgs args;
    DoneFn done;
    Cancellation::Token token = Cancellation::kNoToken;
  };
  using Ended = std::pair<Parked, absl::StatusOr<Tensor>>;

  absl::StatusOr<Tensor> BytesTensor(absl::string_view bytes, uint64_t more = 0) const;
  absl::StatusOr<size_t> PlaceOf(absl::string_view tensor, const Box& box) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Unset: the answer is not there yet.
  bool AnswerNow(const WeightAsk& ask, absl::StatusOr<Tensor>* answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Version*> Find(const WeightAsk& ask) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerPart(const WeightAsk& ask, const RecvArgs& args, DoneFn done);
  absl::Status CheckPart(const WeightAsk& ask, Tensor* box, StridedCopy* copy);
  void Park(const WeightAsk& ask, const RecvArgs& args, DoneFn done);
  // Takes out those that can be answered now.
  std::vector<Ended> TakeAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void EndAll(std::vector<Ended> ended);
  absl::StatusOr<SealedVersion> SealAsFirst(uint64_t number, const std::string& label,
                                            absl::Duration timeout);
  absl::StatusOr<SealedVersion> SealAsOther(uint64_t number, absl::Duration timeout);
  absl::Status Keep(const SealedVersion& sealed);

  Server* const server_;
  const WeightOwnerOptions options_;
  WeightCalls calls_;
  mutable Mutex mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  std::vector<TensorLayout> layouts_ ABSL_GUARDED_BY(mu_);  // Empty: none are declared yet.
  std::string encoded_layouts_ ABSL_GUARDED_BY(mu_);
  Digest layouts_digest_ ABSL_GUARDED_BY(mu_);
  std::vector<OwnBox> own_ ABSL_GUARDED_BY(mu_);      // By place in this owner's list.
  std::vector<size_t> offsets_ ABSL_GUARDED_BY(mu_);  // Its ListOffsets().
  absl::flat_hash_map<absl::string_view, uint32_t> tensors_ ABSL_GUARDED_BY(mu_);  // By name.
  std::map<uint64_t, Version> versions_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, absl::Status> dropped_ ABSL_GUARDED_BY(mu_);  // The last ones, and why.
  uint64_t highest_sealed_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Parked> parked_ ABSL_GUARDED_BY(mu_);
  uint64_t last_parked_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::Status WeightOwner::State::Declare(std::vector<TensorLayout> layouts) {
  auto encoded = EncodeLayouts(layouts, options_.owners.size());
  if (!encoded.ok()) return encoded.status();
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
  encoded_layouts_ = *std::move(encoded);
  layouts_digest_ = DigestOf(encoded_layouts_);
  return absl::OkStatus();
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

absl::Status WeightOwner::State::Publish(uint64_t number, absl::string_view tensor, const Box& box,
                                         const Tensor& bytes, const Strides& lies) {
  size_t place = 0;
  DType dtype = DType::kInvalid;
  {
    MutexLock lock(&mu_);
    if (!closed_.ok()) return closed_;
    const auto found = PlaceOf(tensor, box);
    if (!found.ok()) return found.status();
    place = *found;
    dtype = layouts_[own_[place].tensor].dtype;
    if (number <= highest_sealed_) {
      return absl::AlreadyExistsError(absl::StrCat(
          "version ", number, " is too low: the highest sealed one is ", highest_sealed_));
    }
    const size_t unsealed =
        std::count_if(versions_.begin(), versions_.end(),
                      [](const auto& version) { return !version.second.sealed; });
    if (versions_.count(number) == 0 && unsealed >= kMaxUnsealed) {
      return absl::ResourceExhaustedError(
          absl::StrCat(unsealed, " versions are published and not sealed: seal or drop one"));
    }
    Version& version = versions_[number];
    version.boxes.resize(own_.size());
    version.digests.resize(own_.size());
    version.claimed.resize(own_.size());
    if (version.claimed[place]) {
      return absl::InvalidArgumentError(absl::StrCat("box ", box.ToString(), " of tensor \"",
                                                     Printable(tensor), "\" of version ", number,
                                                     " was published already"));
    }
    version.claimed[place] = true;
  }
  const auto unclaim = [&](absl::Status why) {
    MutexLock lock(&mu_);
    const auto version = versions_.find(number);
    if (version != versions_.end()) version->second.claimed[place] = false;
    return why;
  };
  if (!bytes.valid() || !bytes.on_host() ||
      (bytes.dtype() != dtype && !CanCast(bytes.dtype(), dtype))) {
    return unclaim(absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", Printable(tensor), "\" is of type ", DTypeName(dtype),
        ", which Tryst cannot make of ", DTypeName(bytes.dtype()), " in host memory")));
  }
  const absl::Status view = CheckView(box.extent, lies, bytes.shape().elements(), ViewUse::kSource);
  if (!view.ok()) return unclaim(view);
  const auto shape = TensorShape::Make(box.extent);
  if (!shape.ok()) return unclaim(shape.status());
  auto snapshot = server_->allocator() != nullptr
                      ? server_->allocator()->AllocateTensor(dtype, *shape)
                      : Tensor::Allocate(dtype, *shape);
  if (!snapshot.ok()) return unclaim(snapshot.status());
  Tensor dense = *snapshot;
  if (bytes.dtype() != dtype) {
    auto uncast = Tensor::Allocate(bytes.dtype(), *shape);
    if (!uncast.ok()) return unclaim(uncast.status());
    dense = *uncast;
  }
  RunCopy(PlanCopy(box.extent, DTypeBytes(bytes.dtype()), lies, Dense(box.extent)), bytes.data(),
          dense.mutable_data());
  if (bytes.dtype() != dtype) {
    Cast(bytes.dtype(), dense.data(), dtype, snapshot->mutable_data(), shape->elements());
  }
  const Digest digest =
      BoxDigest(snapshot->bytes(), BlockDigests(snapshot->data(), snapshot->bytes()));
  MutexLock lock(&mu_);
  const auto version = versions_.find(number);
  if (version == versions_.end()) {
    return absl::AbortedError(absl::StrCat("version ", number, " was dropped"));
  }
  version->second.boxes[place] = *std::move(snapshot);
  version->second.digests[place] = digest;
  ++version->second.published;
  return absl::OkStatus();
}

absl::StatusOr<SealedVersion> WeightOwner::State::Seal(uint64_t number, const std::string& label,
                                                       absl::Duration timeout) {
  if (label.size() > kMaxLabelBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the label has ", label.size(), " bytes, and may have at most ", kMaxLabelBytes));
  }
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    if (layouts_.empty())
      return absl::FailedPreconditionError(
          "this set of weights has no layouts yet: declare them first");
    if (own_.empty() && number > highest_sealed_) versions_[number];  // It has nothing to publish.
    const auto found = versions_.find(number);
    if (found == versions_.end() || found->second.published < own_.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this owner has published ", found == versions_.end() ? 0 : found->second.published,
          " of its ", own_.size(), " boxes of version ", number,
          ": publish all of them, then seal"));
    }
    if (number <= highest_sealed_) {
      return absl::AlreadyExistsError(absl::StrCat(
          "version ", number, " is too low: the highest sealed one is ", highest_sealed_));
    }
    if (found->second.ready) {
      return absl::AlreadyExistsError(absl::StrCat("version ", number, " is being sealed already"));
    }
    found->second.ready = true;
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  auto sealed =
      options_.rank == 0 ? SealAsFirst(number, label, timeout) : SealAsOther(number, timeout);
  if (!sealed.ok()) Drop(number, sealed.status());
  return sealed;
}

absl::StatusOr<SealedVersion> WeightOwner::State::SealAsFirst(uint64_t number,
                                                              const std::string& label,
                                                              absl::Duration timeout) {
  const uint32_t owners = options_.owners.size();
  std::vector<WeightCalls::Call> calls;
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kReady;
  ask.number = number;
  for (uint32_t owner = 1; owner < owners; ++owner) {
    calls.push_back({options_.owners[owner], ask});
  }
  const auto answers = calls_.Ask(calls, timeout);
  std::vector<TensorLayout> layouts;
  std::vector<std::vector<Digest>> lists(owners);
  SealedVersion sealed;
  {
    MutexLock lock(&mu_);
    layouts = layouts_;
    sealed.name.layouts = layouts_digest_;
    const auto found = versions_.find(number);
    if (found == versions_.end()) {
      return absl::AbortedError(absl::StrCat("version ", number, " was dropped"));
    }
    lists[0] = found->second.digests;
  }
  for (uint32_t owner = 1; owner < owners; ++owner) {
    const auto& answer = answers[owner - 1];
    if (!answer.ok()) {
      return absl::AbortedError(absl::StrCat(
          "version ", number, " was dropped: owner ", owner, ", ", options_.owners[owner],
          ", was not ready to seal it: ", answer.status().ToString()));
    }
    const size_t boxes = ListOffsets(layouts, owner).back();
    auto digests = DecodeDigests({answer->data_as<char>(), answer->bytes()}, 1 + boxes);
    if (!digests.ok() || digests->front() != sealed.name.layouts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "version ", number, " was dropped: owner ", owner, ", ", options_.owners[owner],
          ", has declared other layouts than ", options_.owners[0]));
    }
    lists[owner].assign(digests->begin() + 1, digests->end());
  }
  const absl::Status replicas = CheckReplicas(layouts, lists);
  if (!replicas.ok()) return replicas;
  sealed.name.number = number;
  sealed.name.birth = absl::Uniform<uint64_t>(absl::BitGen());
  sealed.label = label;
  for (uint32_t owner = 0; owner < owners; ++owner) {
    sealed.lists.push_back(ListDigest(sealed.name, owner, lists[owner]));
  }
  sealed.root = RootDigest(sealed.name, sealed.lists);
  const absl::Status kept = Keep(sealed);
  if (!kept.ok()) return kept;
  return sealed;
}

absl::StatusOr<SealedVersion> WeightOwner::State::SealAsOther(uint64_t number,
                                                              absl::Duration timeout) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kSealed;
  ask.number = number;
  const WeightCalls::Call call{options_.owners[0], ask};
  const auto answer = std::move(calls_.Ask({call}, timeout)[0]);
  if (!answer.ok()) return answer.status();
  auto sealed = DecodeSealed({answer->data_as<char>(), answer->bytes()});
  if (!sealed.ok()) return sealed;
  const absl::Status kept = Keep(*sealed);
  if (!kept.ok()) return kept;
  return sealed;
}

absl::Status WeightOwner::State::Keep(const SealedVersion& sealed) {
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    const auto found = versions_.find(sealed.name.number);
    if (found == versions_.end()) {
      return absl::AbortedError(absl::StrCat("version ", sealed.name.number, " was dropped"));
    }
    if (sealed.name.layouts != layouts_digest_ || sealed.lists.size() != options_.owners.size() ||
        sealed.lists[options_.rank] !=
            ListDigest(sealed.name, options_.rank, found->second.digests)) {
      return absl::DataLossError(
          absl::StrCat("the first owner has sealed other layouts or boxes of version ",
                       sealed.name.number, " than this owner published"));
    }
    found->second.sealed = true;
    found->second.as = sealed;
    highest_sealed_ = std::max(highest_sealed_, sealed.name.number);
    size_t sealed_count = 0;
    for (auto version = versions_.end(); version != versions_.begin();) {
      --version;
      if (version->second.sealed && ++sealed_count > options_.keep) {
        version = versions_.erase(version);
      }
    }
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
  return absl::OkStatus();
}

void WeightOwner::State::Drop(uint64_t number, const absl::Status& why) {
  constexpr size_t kRemembered = 64;
  std::vector<Ended> ended;
  Version gone;  // Its memory goes back without the lock.
  {
    MutexLock lock(&mu_);
    const auto found = versions_.find(number);
    if (found == versions_.end() || found->second.sealed) return;
    gone = std::move(found->second);
    versions_.erase(found);
    dropped_[number] = why;
    if (dropped_.size() > kRemembered) dropped_.erase(dropped_.begin());
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
}

void WeightOwner::State::Close() {
  server_->steps()->SetAnswerer(WeightsPrefix(options_.set), nullptr);
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
}

absl::StatusOr<Tensor> WeightOwner::State::BytesTensor(absl::string_view bytes,
                                                       uint64_t more) const {
  const TensorShape shape = {static_cast<int64_t>(bytes.size() + more)};
  auto tensor = server_->allocator() != nullptr
                    ? server_->allocator()->AllocateTensor(DType::kUint8, shape)
                    : Tensor::Allocate(DType::kUint8, shape);
  if (tensor.ok() && !bytes.empty()) memcpy(tensor->mutable_data(), bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<const WeightOwner::State::Version*> WeightOwner::State::Find(
    const WeightAsk& ask) const {
  const auto found = versions_.find(ask.number);
  if (found != versions_.end() && found->second.sealed &&
      found->second.as.name.birth == ask.birth) {
    return &found->second;
  }
  std::string there;
  for (const auto& [number, version] : versions_) {
    if (version.sealed) absl::StrAppend(&there, there.empty() ? "" : ", ", number);
  }
  return absl::NotFoundError(
      absl::StrCat("owner ", options_.rank, " does not hold version ", ask.number,
                   " as this member knows it; it holds: ", there.empty() ? "none" : there));
}

bool WeightOwner::State::AnswerNow(const WeightAsk& ask, absl::StatusOr<Tensor>* answer) {
  if (!closed_.ok()) {
    *answer = closed_;
    return true;
  }
  const auto found = versions_.find(ask.number);
  switch (ask.kind) {
    case WeightAsk::Kind::kReady:
    case WeightAsk::Kind::kSealed: {
      const auto dropped = dropped_.find(ask.number);
      if (found != versions_.end()) {
        const Version& version = found->second;
        if (version.sealed) {
          *answer = BytesTensor(EncodeSealed(version.as));
          if (ask.kind == WeightAsk::Kind::kSealed) return true;
        }
        if (ask.kind == WeightAsk::Kind::kSealed || !version.ready) return false;
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
      *answer = absl::NotFoundError(
          absl::StrCat("version ", ask.number, " is older than those that this owner keeps"));
      return true;
    }
    case WeightAsk::Kind::kNewer:
      if (highest_sealed_ <= ask.number) return false;
      *answer = BytesTensor(EncodeSealed(versions_.at(highest_sealed_).as));
      return true;
    case WeightAsk::Kind::kLayouts:
      *answer = !layouts_.empty() && ask.digest == layouts_digest_.ToString()
                    ? BytesTensor(encoded_layouts_)
                    : absl::NotFoundError("this owner has declared other layouts, or none yet");
      return true;
    case WeightAsk::Kind::kList: {
      const auto version = Find(ask);
      *answer = version.ok() ? BytesTensor(EncodeDigests((*version)->digests)) : version.status();
      return true;
    }
    case WeightAsk::Kind::kPart:
      break;  // AnswerPart().
  }
  *answer = absl::InternalError(
      "a request for a part of weights came the wrong way: this is a bug of Tryst");
  return true;
}

void WeightOwner::State::Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  const auto ask = ParseEdge(options_.set, key.edge());
  if (!ask.ok()) return End(args, std::move(done), ask.status());
  if (ask->kind == WeightAsk::Kind::kPart) {
    // Copying does not belong on a poller's thread.
    server_->executor()->RunWithoutWaiting(
        [self = shared_from_this(), ask = *ask, args, done = std::move(done)]() mutable {
          self->AnswerPart(ask, args, std::move(done));
        });
    return;
  }
  absl::StatusOr<Tensor> answer =
      absl::UnknownError("the request was not answered: this is a bug of Tryst");
  bool now = false;
  {
    MutexLock lock(&mu_);
    now = AnswerNow(*ask, &answer);
    if (!now && parked_.size() >= kMaxParked) {
      answer = absl::ResourceExhaustedError(
          "too many members wait for versions of this set of weights: try again later");
      now = true;
    }
  }
  if (now) return End(args, std::move(done), std::move(answer));
  Park(*ask, args, std::move(done));
}

absl::Status WeightOwner::State::CheckPart(const WeightAsk& ask, Tensor* box, StridedCopy* copy) {
  MutexLock lock(&mu_);
  if (!closed_.ok()) return closed_;
  const auto version = Find(ask);
  if (!version.ok()) return version.status();
  if (ask.tensor < layouts_.size() && Within(ask.box, layouts_[ask.tensor].shape)) {
    const uint32_t element_bytes = DTypeBytes(layouts_[ask.tensor].dtype);
    for (size_t place = offsets_[ask.tensor]; place < offsets_[ask.tensor + 1]; ++place) {
      const OwnBox& own = own_[place];
      if (!Contains(own.box, ask.box)) continue;
      *copy = PlanCopy(ask.box.extent, element_bytes,
                       PartOf(own.box, Dense(own.box.extent), ask.box), Dense(ask.box.extent));
      if (copy->bytes() > kMaxPartBytes) break;
      *box = (*version)->boxes[place];  // Keeps its memory, whatever becomes of the version.
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "owner ", options_.rank, " has no box that contains ", ask.box.ToString(), " of tensor ",
      ask.tensor, ", or the part has more than ", kMaxPartBytes, " bytes"));
}

void WeightOwner::State::AnswerPart(const WeightAsk& ask, const RecvArgs& args, DoneFn done) {
  if (args.cancellation != nullptr && args.cancellation->cancelled()) {
    return End(args, std::move(done),
               absl::CancelledError("the member cancelled its request to this owner of weights"));
  }
  Tensor box;
  StridedCopy copy;
  const absl::Status checked = CheckPart(ask, &box, &copy);
  if (!checked.ok()) return End(args, std::move(done), checked);
  auto answer = BytesTensor("", copy.bytes() + Digest::kBytes);
  if (answer.ok()) {
    char* const to = static_cast<char*>(answer->mutable_data());
    RunCopy(copy, box.data(), to);
    const std::string digest = EncodeDigests({DigestOf(to, copy.bytes())});
    memcpy(to + copy.bytes(), digest.data(), digest.size());
  }
  End(args, std::move(done), std::move(answer));
}

void WeightOwner::State::Park(const WeightAsk& ask, const RecvArgs& args, DoneFn done) {
  uint64_t id = 0;
  {
    MutexLock lock(&mu_);
    id = ++last_parked_;
    parked_.emplace(id, Parked{ask, args, std::move(done), Cancellation::kNoToken});
  }
  if (args.cancellation != nullptr) {
    const Cancellation::Token token =
        args.cancellation->Register([weak = weak_from_this(), id]() mutable {
          const auto self = weak.lock();
          if (self == nullptr) return;
          std::vector<Ended> ended;
          {
            MutexLock lock(&self->mu_);
            const auto found = self->parked_.find(id);
            if (found == self->parked_.end()) return;
            ended.emplace_back(
                std::move(found->second),
                absl::CancelledError("the member cancelled its request to this owner of weights"));
            self->parked_.erase(found);
          }
          ended.front().first.token = Cancellation::kNoToken;  // It runs now.
          EndAll(std::move(ended));
        });
    std::vector<Ended> ended;
    bool answered = false;
    {
      MutexLock lock(&mu_);
      const auto found = parked_.find(id);
      answered = found == parked_.end();
      if (!answered && token == Cancellation::kNoToken) {
        ended.emplace_back(
            std::move(found->second),
            absl::CancelledError("the member cancelled its request to this owner of weights"));
        parked_.erase(found);
      } else if (!answered) {
        found->second.token = token;
      }
    }
    if (answered && token != Cancellation::kNoToken) args.cancellation->TryDeregister(token);
    EndAll(std::move(ended));
  }
  // What it waits for may have come meanwhile.
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    ended = TakeAnswered();
  }
  EndAll(std::move(ended));
}

std::vector<WeightOwner::State::Ended> WeightOwner::State::TakeAnswered() {
  std::vector<Ended> ended;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    absl::StatusOr<Tensor> answer =
        absl::UnknownError("the request was not answered: this is a bug of Tryst");
    if (!AnswerNow(parked->second.ask, &answer)) {
      ++parked;
      continue;
    }
    ended.emplace_back(std::move(parked->second), std::move(answer));
    parked = parked_.erase(parked);
  }
  return ended;
}

void WeightOwner::State::EndAll(std::vector<Ended> ended) {
  for (auto& [parked, answer] : ended) {
    if (parked.token != Cancellation::kNoToken) {
      parked.args.cancellation->TryDeregister(parked.token);
    }
    End(parked.args, std::move(parked.done), std::move(answer));
  }
}

absl::StatusOr<std::unique_ptr<WeightOwner>> WeightOwner::Open(Server* server,
                                                               const WeightOwnerOptions& options) {
  const absl::Status named = CheckSetName(options.set);
  if (!named.ok()) return named;
  if (server->steps() == nullptr) {
    return absl::FailedPreconditionError("start the server before it opens a set of weights");
  }
  if (options.owners.empty() || options.owners.size() > LayoutLimits::kMaxOwners ||
      options.rank >= options.owners.size() || options.keep < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the set of weights has ", options.owners.size(), " owners, rank ", options.rank,
        " and keep ", options.keep, ": there may be 1 to ", LayoutLimits::kMaxOwners,
        " owners, the rank must be below their number, and keep at least 1"));
  }
  if (options.owners[options.rank] != server->worker()) {
    return absl::InvalidArgumentError(
        absl::StrCat("owner ", options.rank, " should be ", options.owners[options.rank],
                     ", and this worker is ", server->worker(), ": give each owner its own rank"));
  }
  auto state = std::make_shared<State>(server, options);
  server->steps()->SetAnswerer(WeightsPrefix(options.set), state);
  return std::unique_ptr<WeightOwner>(new WeightOwner(std::move(state)));
}

WeightOwner::~WeightOwner() { state_->Close(); }

absl::Status WeightOwner::Declare(std::vector<TensorLayout> layouts) {
  return state_->Declare(std::move(layouts));
}

absl::Status WeightOwner::Publish(uint64_t number, absl::string_view tensor, const Box& box,
                                  const Tensor& bytes, const Strides& lies) {
  return state_->Publish(number, tensor, box, bytes, lies);
}

absl::StatusOr<SealedVersion> WeightOwner::Seal(uint64_t number, const std::string& label,
                                                absl::Duration timeout) {
  return state_->Seal(number, label, timeout);
}

void WeightOwner::Drop(uint64_t number) {
  state_->Drop(number, absl::AbortedError(absl::StrCat("version ", number, " was dropped")));
}

}  // namespace tryst
