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

bool HasTensor(const Received& received) { return received.status.ok() && !received.is_dead; }

}  // namespace

// A receive with a selection, and what is done with what has come for it.
struct RoutingRendezvous::SelectedReceive {
  std::shared_ptr<RoutingRendezvous> step;
  TensorKey key;
  SelectedDestination destination;
  Executor* executor;  // Where it is reported; null: in place.
  DoneFn done;

  // To whoever receives next.
  void GiveBack(Received&& received) const {
    if (step->ProducedHere(key)) return step->table_->GiveBack(key, std::move(received));
    step->Kept()->Keep({step->step_id_, key}, {Apart(std::move(received.tensor))});
  }
  void Report(Received&& received) { EndReceive(executor, std::move(received), std::move(done)); }
  static void OnCome(SelectedReceive self, Received&& received) {
    if (HasTensor(received)) {
      absl::Status fits = self.destination.Check(received.tensor);
      if (fits.ok()) return Fill(std::move(self), std::move(received));
      self.GiveBack(std::exchange(received, Received()));
      received.status = std::move(fits);
    }
    self.Report(std::move(received));
  }
  // REQUIRES: destination.Check() was OK.
  static void Fill(SelectedReceive self, Received&& received) {
    if (!self.destination.on_device()) {
      self.destination.Fill(&received);
      return self.Report(std::move(received));
    }
    const auto lasting = std::make_shared<SelectedReceive>(std::move(self));
    Tensor tensor = std::exchange(received.tensor, Tensor());
    lasting->destination.StartFill(
        std::move(tensor),
        [lasting, received = std::move(received)](absl::Status copied, Tensor tensor) mutable {
          received.tensor = std::move(tensor);
          if (!copied.ok()) {
            lasting->GiveBack(std::exchange(received, Received()));
            received.status = std::move(copied);
          }
          lasting->Report(std::move(received));
        });
  }
};

absl::Status RoutingRendezvous::SendSelected(const TensorKey& key, const SendArgs& args,
                                             const Tensor& tensor, const Selection& selection) {
  if (selection.kind == Selection::Kind::kWhole && !args.digests)
    return Send(key, args, tensor, false);
  const absl::Status fit = CheckSend(key);
  if (!fit.ok()) return fit;
  SendArgs own;
  own.alloc_attrs = args.alloc_attrs;
  if (!tensor.on_host()) {
    auto gathered = GatherOnDevice(key, tensor, selection, args.digests, args.device_context.get());
    if (!gathered.ok()) return gathered.status();
    own.device_context = std::move(gathered->context);
    return Send(key, own, std::move(gathered->tensor), false);
  }
  absl::StatusOr<Tensor> gathered =
      GatherTensor(key, tensor, selection, args.digests, gathers_into_);
  if (!gathered.ok()) return gathered.status();
  return Send(key, own, *std::move(gathered), false);
}

void RoutingRendezvous::RecvSelectedAsync(const TensorKey& key, const RecvArgs& args,
                                          const SelectedLanding& landing, DoneFn done) {
  if (!done) done = [](Received&&) {};
  absl::Status fit = CheckReceive(key);
  if (!fit.ok()) return FailReceive(std::move(fit), args.executor, std::move(done));
  auto made = SelectedDestination::Make(key, args.destination, landing, args.device_context);
  if (!made.ok()) return FailReceive(made.status(), args.executor, std::move(done));
  RecvArgs own = args;
  own.destination = Tensor();
  own.on_device = made->on_device();
  own.alloc_attrs.on_host = !own.on_device;
  // It is read once, in here. But what comes into a device's memory may be kept, as it is.
  own.by_reference = !own.on_device;
  own.leaves_at_once = true;                  // No path writes the caller's memory.
  if (own.on_device) own.executor = nullptr;  // What it runs is short: it starts the copy.
  // Into the host's memory it is copied, and reported, where RecvAsync() ends.
  SelectedReceive receive{shared_from_this(), key, *std::move(made),
                          own.on_device ? args.executor : nullptr, std::move(done)};
  if (ProducedHere(key)) {
    return RecvAsync(key, own, [receive = std::move(receive)](Received&& received) mutable {
      SelectedReceive::OnCome(std::move(receive), std::move(received));
    });
  }
  const KeptTensors::Place place(step_id_, key);
  KeptTensor kept = IsOver(args) ? KeptTensor() : Kept()->TakeFirst(place);
  if (kept.is_dead) {
    return EndReceive(args.executor, {absl::OkStatus(), Tensor(), true}, std::move(receive.done));
  }
  if (kept.valid()) {
    absl::Status fits = receive.destination.Check(kept.tensor);
    if (!fits.ok()) {
      Kept()->Keep(place, std::move(kept));
      return FailReceive(std::move(fits), args.executor, std::move(receive.done));
    }
    return EndReceive(own.executor, {absl::OkStatus(), std::move(kept.tensor)},
                      [receive = std::move(receive)](Received&& received) mutable {
                        SelectedReceive::Fill(std::move(receive), std::move(received));
                      });
  }
  absl::Status room = Kept()->Admit(place);
  if (!room.ok()) return FailReceive(std::move(room), args.executor, std::move(receive.done));
  Fetch(key, own, [receive = std::move(receive)](Received&& received) mutable {
    receive.step->FirstOfKept(receive.key, &received);
    SelectedReceive::OnCome(std::move(receive), std::move(received));
  });
}

}  // namespace tryst
