#include "rendezvous/local_rendezvous.h"

#include <utility>

#include "rendezvous/match_core.h"

namespace tryst {

LocalRendezvous::LocalRendezvous(const Options& options, Alarms* alarms,
                                 std::shared_ptr<HeldBytes> process)
    : core_(new MatchCore(options, alarms, std::move(process))) {}

LocalRendezvous::~LocalRendezvous() { core_->Leave(); }

absl::Status LocalRendezvous::Send(const TensorKey& key, const SendArgs& args, Tensor tensor,
                                   bool is_dead) {
  return core_->Send(key, args, &tensor, is_dead);
}

absl::Status LocalRendezvous::SendMany(absl::Span<SendItem> items, const SendArgs& args) {
  return core_->SendMany(items, args);
}

void LocalRendezvous::RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  core_->RecvAsync(key, args, std::move(done));
}

void LocalRendezvous::RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                                    ManyDoneFn done) {
  core_->RecvManyAsync(keys, args, std::move(done));
}

bool LocalRendezvous::TakeHere(TensorKey* key, Received* taken) {
  return core_->TakeHere(key, taken);
}

void LocalRendezvous::GiveBack(const TensorKey& key, Received taken) {
  core_->GiveBack(key, std::move(taken));
}

void LocalRendezvous::StartAbort(const absl::Status& status) { core_->StartAbort(status); }

void LocalRendezvous::WhenRoom(int64_t bytes, absl::AnyInvocable<void(absl::Status) &&> ready) {
  core_->WhenRoom(bytes, std::move(ready));
}

absl::Status LocalRendezvous::abort_cause() const { return core_->abort_cause(); }

RendezvousCounters LocalRendezvous::counters() const { return core_->counters(); }

void LocalRendezvous::ListWaiting(int64_t step_id, WaitingItems* items) const {
  core_->ListWaiting(step_id, items);
}

const Clock& LocalRendezvous::clock() const { return core_->clock(); }

}  // namespace tryst
