#ifndef TRYST_RENDEZVOUS_TENSOR_SOURCE_H_
#define TRYST_RENDEZVOUS_TENSOR_SOURCE_H_

#include <cstdint>
#include <memory>

#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

class RoutingRendezvous;

// The port through which channels take local tensors: the callback runs when the tensor exists.
// Thread-safe. StepRegistry implements it.
//
// Order of one key. Takes meet sends in the order in which Take was called. Received::turn numbers
// what they get: a later send has a higher turn, and keeps it when its tensor is given back and
// taken again. Only the `done`s of takes that sends on several threads meet may run in another
// order. A taker that gives tensors back keeps the order of rendezvous.h if it is the only taker of
// the key and follows two rules (docs/decisions/0026-order-with-cancels.md):
//   1. After it cancels a take, it waits for the outcome before it goes on. When StartCancel has
//      returned, either `done` has run, or a send that met the take is about to run it on its
//      thread without waiting for anything. So the wait is brief, unless a device copies what the
//      take has met (HostSource).
//   2. It has one take of a key under way at a time. It gives back what that take brought, if it
//      is not wanted, before it takes the key again.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Takes the next tensor of `key`, as one RecvAsync of the step does: in order with
  // every other take and receive of the key, and no other gets the same tensor. `done` as
  // in rendezvous.h, perhaps inside this call.
  //
  // One take is cancelled through args.cancellation (kCancelled; nothing is consumed),
  // which may live in the caller's operation: it is free again when `done` runs.
  //
  // A step that has not started is waited for, up to the registry's bounds
  // (kResourceExhausted, kDeadlineExceeded). A step that was cleaned up answers at once
  // with kAborted, or with what it failed with. kInvalidArgument: not produced by this
  // worker, or no such device. kAborted: the key names another incarnation of the device.
  //
  // The caller removes repetitions of a request: a second take would wait for the next tensor.
  virtual void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) = 0;

  // A Take without a callback, for callers that take the same keys in every step. It takes a tensor
  // that is already here. Returns false, and changes nothing, when Take() is needed. Sets `*key` to
  // the sender's copy of the same text, which is found sooner next time. REQUIRES: MayTake(*key)
  // was true once.
  struct Place {  // Where the caller's last step was found. Used by one thread.
    int64_t step_id = 0;
    std::shared_ptr<RoutingRendezvous> step;
  };
  virtual bool TakeHere(int64_t /*step_id*/, TensorKey* /*key*/, Place* /*place*/,
                        Received* /*taken*/) {
    return false;
  }
  // Whether Take() accepts `key`. The answer true never changes.
  virtual bool MayTake(const TensorKey& /*key*/) const { return false; }

  // Gives back a tensor that a Take got and its caller could not deliver. The longest waiting take
  // or receive of the key gets it; otherwise it waits in its old place, before what was sent later.
  // It is as if the take had not happened, and is never refused. Dropped when the step is over. May
  // run the `done` of a receive.
  virtual void GiveBack(int64_t step_id, const TensorKey& key, Received taken) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_SOURCE_H_
