#include "server/weights/weight_relay.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/step_registry.h"
#include "weights/boxes.h"

namespace tryst {

void WeightRelay::Open() {
  parts_ = std::make_shared<PartLine>(
      PartLine::Limits(), server_->own_executor(),
      [weak = weak_from_this()](const AskOfPeer& ask) -> absl::StatusOr<Tensor> {
        const auto self = weak.lock();
        if (self == nullptr) return absl::AbortedError("this member has left the set of weights");
        return self->Make(ask.ask);
      });
  server_->steps()->SetAnswerer(WeightsPrefix(set_), shared_from_this());
}

void WeightRelay::Close() {
  server_->steps()->RemoveAnswerer(WeightsPrefix(set_), this);
  {
    MutexLock lock(&mu_);
    closed_ = true;
    shelf_.Clear();
    proofs_.clear();
  }
  Settle();
  parts_->Close(absl::AbortedError("this member has left the set of weights"));
}

void WeightRelay::Allow(const WeightVersion& active, const std::vector<WeightVersion>& open) {
  {
    MutexLock lock(&mu_);
    if (!closed_) shelf_.Allow(active, open);
    for (auto proof = proofs_.begin(); proof != proofs_.end();) {
      const WeightVersion version{proof->first, proof->second.sealed.name.birth};
      proof = shelf_.Allows(version) ? std::next(proof) : proofs_.erase(proof);
    }
  }
  Settle();
}

bool WeightRelay::Expect(const PartName& part, uint64_t bytes) {
  bool expected = false;
  {
    MutexLock lock(&mu_);
    expected = shelf_.Expect(part, bytes);
  }
  Settle();  // Another version may have gone for it.
  return expected;
}

void WeightRelay::Put(const PartName& part, const Tensor& bytes,
                      const std::optional<Digest>& digest) {
  {
    MutexLock lock(&mu_);
    shelf_.Put(part, bytes, digest);
  }
  Settle();
}

void WeightRelay::GiveUp(const PartName& part) {
  {
    MutexLock lock(&mu_);
    shelf_.GiveUp(part);
  }
  Settle();
}

Tensor WeightRelay::Find(const PartName& part) const {
  Tensor bytes;
  MutexLock lock(&mu_);
  shelf_.Find(part, &bytes);
  return bytes;
}

std::vector<WeightVersion> WeightRelay::Held() const {
  MutexLock lock(&mu_);
  return shelf_.Held();
}

std::vector<HeldPart> WeightRelay::PartsOf(const WeightVersion& version) const {
  MutexLock lock(&mu_);
  return shelf_.PartsOf(version, kMaxHeldParts * kMaxHeldAnswers,
                        [](uint32_t, const Box&) { return true; });
}

void WeightRelay::Prove(const SealedVersion& version,
                        std::shared_ptr<const DeclaredLayouts> layouts) {
  MutexLock lock(&mu_);
  if (!shelf_.Allows({version.name.number, version.name.birth})) return;
  Proof& proof = proofs_[version.name.number];
  if (proof.sealed.root == version.root && proof.layouts != nullptr) return;
  proof = {version, std::move(layouts), {}};
}

void WeightRelay::ProveList(const WeightVersion& version, uint32_t owner,
                            std::vector<Digest> list) {
  MutexLock lock(&mu_);
  const auto proof = proofs_.find(version.number);
  if (proof == proofs_.end() || proof->second.sealed.name.birth != version.birth) return;
  proof->second.lists.try_emplace(owner, std::move(list));
}

std::optional<SealedVersion> WeightRelay::FindSealed(const WeightVersion& version) const {
  MutexLock lock(&mu_);
  const auto proof = proofs_.find(version.number);
  if (proof == proofs_.end() || proof->second.sealed.name.birth != version.birth) {
    return std::nullopt;
  }
  return proof->second.sealed;
}

std::shared_ptr<const DeclaredLayouts> WeightRelay::FindLayouts(const Digest& digest) const {
  MutexLock lock(&mu_);
  for (const auto& [number, proof] : proofs_) {
    if (proof.sealed.name.layouts == digest) return proof.layouts;
  }
  return nullptr;
}

std::vector<Digest> WeightRelay::FindList(const WeightVersion& version, uint32_t owner) const {
  MutexLock lock(&mu_);
  const auto proof = proofs_.find(version.number);
  if (proof == proofs_.end() || proof->second.sealed.name.birth != version.birth) return {};
  const auto list = proof->second.lists.find(owner);
  return list == proof->second.lists.end() ? std::vector<Digest>() : list->second;
}

const WeightRelay::Proof* WeightRelay::FindProof(const WeightAsk& ask) const {
  for (const auto& [number, proof] : proofs_) {
    const VersionName& name = proof.sealed.name;
    if (ask.kind == WeightAsk::Kind::kLayouts ? name.layouts.ToString() == ask.digest
        : ask.kind == WeightAsk::Kind::kHeld  ? number == ask.number && name.birth == ask.birth
                                              : number == ask.number) {
      return &proof;
    }
  }
  return nullptr;
}

uint64_t WeightRelay::BytesOfProof(const WeightAsk& ask) const {
  constexpr uint64_t kBytesOfPart =
      8 + Digest::kBytes + sizeof(uint64_t) * 2 * TensorShape::kMaxRank;
  if (ask.kind == WeightAsk::Kind::kLayouts) return kMaxLayoutBytes;
  MutexLock lock(&mu_);
  const Proof* const proof = FindProof(ask);
  if (proof == nullptr) return 0;
  if (ask.kind == WeightAsk::Kind::kVersion) return EncodeSealed(proof->sealed).size();
  const auto list = proof->lists.find(ask.owner);
  return (list == proof->lists.end() ? 0 : list->second.size() * Digest::kBytes) +
         kMaxHeldParts * kBytesOfPart;
}

absl::StatusOr<Tensor> WeightRelay::MakeProof(const WeightAsk& ask) const {
  HeldParts held;
  std::shared_ptr<const DeclaredLayouts> layouts;
  const WeightVersion version{ask.number, ask.birth};
  {
    MutexLock lock(&mu_);
    const Proof* const proof = FindProof(ask);
    if (proof == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("this member has nothing of version ", ask.number, " for others"));
    }
    if (ask.kind == WeightAsk::Kind::kVersion) {
      return BytesTensor(server_, EncodeSealed(proof->sealed));
    }
    layouts = proof->layouts;
    const auto list = proof->lists.find(ask.owner);
    if (list != proof->lists.end() && !ask.goes_on) held.list = list->second;
  }
  if (ask.kind == WeightAsk::Kind::kLayouts) {
    const auto encoded = EncodeLayouts(layouts->tensors, layouts->owners);
    if (!encoded.ok()) return encoded.status();
    return BytesTensor(server_, *encoded);
  }
  std::map<uint32_t, std::vector<Box>> boxes;  // The owner's, by tensor.
  const auto of_owner = [&](uint32_t tensor, const Box& part) {
    if (tensor >= layouts->tensors.size()) return false;
    const auto found = boxes.try_emplace(tensor);
    if (found.second) found.first->second = BoxesOf(layouts->tensors[tensor], ask.owner);
    return std::any_of(found.first->second.begin(), found.first->second.end(),
                       [&](const Box& box) { return Contains(box, part); });
  };
  const std::pair<uint32_t, Box> after(ask.tensor, ask.box);
  {
    MutexLock lock(&mu_);
    held.parts = shelf_.PartsOf(version, kMaxHeldParts, of_owner, ask.goes_on ? &after : nullptr);
  }
  return BytesTensor(server_, EncodeHeld(held));
}

absl::StatusOr<Tensor> WeightRelay::Make(const WeightAsk& ask) {
  if (ask.kind == WeightAsk::Kind::kHolders) {
    return BytesTensor(server_, EncodeHolders(notes_->Of({ask.number, ask.birth})));
  }
  if (ask.kind != WeightAsk::Kind::kPart) return MakeProof(ask);
  const auto source = SourceOf(ask);
  if (!source.ok()) return source.status();
  if (!source->has_value()) return absl::AbortedError("the part is fetched anew");
  return MakePart(server_, **source, &bytes_sent_);
}

uint64_t WeightRelay::bytes_held() const {
  MutexLock lock(&mu_);
  return shelf_.bytes();
}

absl::StatusOr<std::optional<PartSource>> WeightRelay::SourceOf(const WeightAsk& ask) const {
  PartSource source;
  source.whole = true;
  const PartName part = NameOf(ask);
  MutexLock lock(&mu_);
  switch (shelf_.Find(part, &source.box)) {
    case PartShelf::State::kGone:
      return absl::NotFoundError(
          absl::StrCat("this member has no such part of version ", ask.number));
    case PartShelf::State::kComing:
      return std::optional<PartSource>();
    case PartShelf::State::kHeld:
      break;
  }
  if (ask.base != 0) source.base = shelf_.BaseOf(part, source.box, ask.base);
  source.element_bytes = DTypeBytes(source.box.dtype());
  source.copy =
      PlanCopy(ask.box.extent, source.element_bytes, Dense(ask.box.extent), Dense(ask.box.extent));
  return std::optional<PartSource>(std::move(source));
}

void WeightRelay::Go(AskOfPeer ask) {
  const auto source = SourceOf(ask.ask);
  if (!source.ok()) return EndAsk(std::move(ask), source.status());
  if (!source->has_value()) {
    waiting_->Park(std::move(ask));
    return Settle();  // What it waits for may have come meanwhile.
  }
  ask.bytes = (*source)->making_bytes();
  parts_->Enter(std::move(ask));
}

// Whoever waits for what has come goes on, or for what does not come any more.
void WeightRelay::Settle() {
  std::vector<AskOfPeer> settled;
  {
    MutexLock lock(&mu_);
    if (waiting_->size() == 0) return;
    settled = waiting_->TakeIf([&](const AskOfPeer& ask) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      Tensor bytes;
      return shelf_.Find(NameOf(ask.ask), &bytes) != PartShelf::State::kComing;
    });
  }
  for (AskOfPeer& ask : settled) Go(std::move(ask));
}

// Whoever asks for a part of what is allowed may have it for others soon.
void WeightRelay::NoteAsker(const AskOfPeer& ask) {
  const WeightVersion version{ask.ask.number, ask.ask.birth};
  {
    MutexLock lock(&mu_);
    if (!shelf_.Allows(version)) return;
  }
  notes_->Add(version, {ask.peer, ask.ask.holder}, /*of_itself=*/true);
}

void WeightRelay::Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  auto parsed = ParseEdge(set_, key.edge());
  AskOfPeer ask;
  ask.peer = std::string(key.dst().worker);
  ask.args = args;
  ask.done = std::move(done);
  if (!parsed.ok()) return EndAsk(std::move(ask), parsed.status());
  ask.ask = *std::move(parsed);
  switch (ask.ask.kind) {
    case WeightAsk::Kind::kPart:
      NoteAsker(ask);
      return Go(std::move(ask));
    case WeightAsk::Kind::kHolders:
      ask.bytes = kMaxHolders * kMaxWorkerBytes;
      return parts_->Enter(std::move(ask));
    case WeightAsk::Kind::kVersion:
    case WeightAsk::Kind::kLayouts:
    case WeightAsk::Kind::kHeld:
      ask.bytes = BytesOfProof(ask.ask);
      return parts_->Enter(std::move(ask));
    default:
      return EndAsk(
          std::move(ask),
          absl::FailedPreconditionError(
              "a member of a set of weights answers for what it has alone: ask an owner"));
  }
}

}  // namespace tryst
