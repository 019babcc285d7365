#include <memory>
#include <utility>

#include "rendezvous/kept_tensors.h"
#include "rendezvous/match_core.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/selected.h"

// Sends and receives with a selection, above the table and the fetcher: no path knows of them
// (docs/decisions/0078-selections-above-the-paths.md).
namespace tryst {
namespace {

// Copies what has come, and reports it. REQUIRES: destination.Check() was OK.
void FillAndEnd(const SelectedDestination& destination, Received&& received, DoneFn done) {
  destination.Fill(&received);
  std::move(done)(std::move(received));
}

bool HasTensor(const Received& received) { return received.status.ok() && !received.is_dead; }

}  // namespace

absl::Status RoutingRendezvous::SendSelected(const TensorKey& key, const SendArgs& args,
                                             const Tensor& tensor, const Selection& selection) {
  if (selection.kind == Selection::Kind::kWhole) return Send(key, args, tensor, false);
  const absl::Status fit = CheckSend(key);
  if (!fit.ok()) return fit;
  absl::StatusOr<Tensor> gathered = GatherTensor(key, tensor, selection, gathers_into_);
  if (!gathered.ok()) return gathered.status();
  SendArgs own;
  own.alloc_attrs = args.alloc_attrs;
  return Send(key, own, *std::move(gathered), false);
}

void RoutingRendezvous::RecvSelectedAsync(const TensorKey& key, const RecvArgs& args,
                                          const Selection& landing, DoneFn done) {
  if (!done) done = [](Received&&) {};
  absl::Status fit = CheckReceive(key);
  if (!fit.ok()) return FailReceive(std::move(fit), args.executor, std::move(done));
  auto made = SelectedDestination::Make(key, args.destination, landing);
  if (!made.ok()) return FailReceive(made.status(), args.executor, std::move(done));
  RecvArgs own = args;
  own.destination = Tensor();
  own.by_reference = true;  // It is read once, in here.
  own.alloc_attrs.on_host = true;
  if (ProducedHere(key)) {
    RecvAsync(key, own,
              [self = shared_from_this(), key, destination = *std::move(made),
               done = std::move(done)](Received&& received) mutable {
                if (!HasTensor(received)) return std::move(done)(std::move(received));
                absl::Status fits = destination.Check(received.tensor);
                if (fits.ok()) return FillAndEnd(destination, std::move(received), std::move(done));
                self->table_->GiveBack(key, std::move(received));
                std::move(done)({std::move(fits)});
              });
    return;
  }
  const KeptTensors::Place place(step_id_, key);
  const bool over =
      table_->aborted() || (args.cancellation != nullptr && args.cancellation->cancelled());
  Tensor kept = over ? Tensor() : Kept()->TakeFirst(place);
  if (kept.valid()) {
    absl::Status fits = made->Check(kept);
    if (!fits.ok()) {
      Kept()->Keep(place, std::move(kept));
      return FailReceive(std::move(fits), args.executor, std::move(done));
    }
    return EndReceive(
        args.executor, {absl::OkStatus(), std::move(kept)},
        [destination = *std::move(made), done = std::move(done)](Received&& received) mutable {
          FillAndEnd(destination, std::move(received), std::move(done));
        });
  }
  RecvAsync(key, own,
            [self = shared_from_this(), place, destination = *std::move(made),
             done = std::move(done)](Received&& received) mutable {
              if (!HasTensor(received)) return std::move(done)(std::move(received));
              KeptTensors* const kept = self->Kept();
              received.tensor = kept->FirstBefore(place, std::move(received.tensor));
              absl::Status fits = destination.Check(received.tensor);
              if (fits.ok()) return FillAndEnd(destination, std::move(received), std::move(done));
              kept->Keep(place, std::move(received.tensor));
              std::move(done)({std::move(fits)});
            });
}

KeptTensors* RoutingRendezvous::Kept() {
  MutexLock lock(&mu_);
  if (kept_ == nullptr) kept_ = std::make_unique<KeptTensors>();
  return kept_.get();
}

}  // namespace tryst
