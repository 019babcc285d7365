#include "server/weights/weight_relay.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/step_registry.h"

namespace tryst {

void WeightRelay::Open() {
  parts_ = std::make_shared<PartLine>(
      PartLine::Limits(), server_->executor(),
      [weak = weak_from_this()](const AskOfPeer& ask) -> absl::StatusOr<Tensor> {
        const auto self = weak.lock();
        if (self == nullptr) return absl::AbortedError("this member has left the set of weights");
        const auto source = self->SourceOf(ask.ask);
        if (!source.ok()) return source.status();
        if (!source->has_value()) return absl::AbortedError("the part is fetched anew");
        return MakePart(self->server_, **source, &self->bytes_sent_);
      });
  server_->steps()->SetAnswerer(WeightsPrefix(set_), shared_from_this());
}

void WeightRelay::Close() {
  server_->steps()->RemoveAnswerer(WeightsPrefix(set_), this);
  {
    MutexLock lock(&mu_);
    closed_ = true;
    shelf_.Allow({}, {});
  }
  Settle();
  parts_->Close(absl::AbortedError("this member has left the set of weights"));
}

void WeightRelay::Allow(const WeightVersion& active, const std::vector<WeightVersion>& open) {
  {
    MutexLock lock(&mu_);
    if (!closed_) shelf_.Allow(active, open);
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

void WeightRelay::Put(const PartName& part, const Tensor& bytes) {
  {
    MutexLock lock(&mu_);
    shelf_.Put(part, bytes);
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
  if (ask.base != 0) source.base = shelf_.BaseOf(part, ask.base);
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

void WeightRelay::Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  auto parsed = ParseEdge(set_, key.edge());
  AskOfPeer ask;
  ask.peer = std::string(key.dst().worker);
  ask.args = args;
  ask.done = std::move(done);
  if (!parsed.ok()) return EndAsk(std::move(ask), parsed.status());
  ask.ask = *std::move(parsed);
  if (ask.ask.kind == WeightAsk::Kind::kPart) return Go(std::move(ask));
  EndAsk(std::move(ask), absl::FailedPreconditionError(
                             "a member of a set of weights answers for parts alone: ask an owner"));
}

}  // namespace tryst
