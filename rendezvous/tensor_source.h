#ifndef TRYST_RENDEZVOUS_TENSOR_SOURCE_H_
#define TRYST_RENDEZVOUS_TENSOR_SOURCE_H_

#include <cstdint>
#include <memory>

#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

class RoutingRendezvous;

// The port that rendezvous/ offers: call me when this local tensor exists. The serving
// side of a channel uses it. Safe from any thread. Implemented by StepRegistry.
//
// Order of one key. Takes meet sends in the order in which Take was called, and Args::turn numbers
// what they get: what was sent later has a higher turn, and keeps it when it is given back and
// taken again. Only the `done`s of takes that several threads' sends meet may come in another
// order. A taker that may give tensors back keeps the order of rendezvous.h if it is the only taker
// of the key and follows two rules (docs/decisions/0026-order-with-cancels.md):
//  1. When it cancels a take it knows the outcome before it goes on: when StartCancel has
//     returned, `done` has run, or a send that met the take is about to run it on its thread,
//     without waiting for anybody. Waiting for that is brief.
//  2. It has one take of the key under way at a time. It gives back what a take brought and nobody
//     wants any more before it takes the key again.
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
  // `request_id` is unique among all requests of all peers, as a random number is: a take
  // whose id was seen lately is refused with kAborted, because a repeated request for a
  // consumed tensor would wait for ever. 0: the caller removes repetitions itself.
  virtual void Take(int64_t step_id, const TensorKey& key, uint64_t request_id, const Args& args,
                    DoneFn done) = 0;

  // A Take without a callback, for callers that take the same keys in step after step: it takes a
  // tensor that is here already. Returns false, and changes nothing, when Take() is needed. Sets
  // `*key` to the sender's copy of the same text, which the next look-up finds sooner. REQUIRES:
  // MayTake(*key), once.
  struct Place {  // Where the caller's last step was found. Of one thread.
    int64_t step_id = 0;
    std::shared_ptr<RoutingRendezvous> step;
  };
  virtual bool TakeHere(int64_t /*step_id*/, TensorKey* /*key*/, Place* /*place*/,
                        Taken* /*taken*/) {
    return false;
  }
  // Whether Take() accepts `key` for what it says. Once it does, it always does.
  virtual bool MayTake(const TensorKey& /*key*/) const { return false; }

  // Gives back what a Take got and its caller could not deliver: the take or receive of the
  // key that waits longest gets it, or the next one, in its old place, before what was sent
  // later and is here. Never refused: it is as if
  // the take had not been. Dropped when the step is over. May run the `done` of a receive.
  virtual void GiveBack(int64_t step_id, const TensorKey& key, Taken taken) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_SOURCE_H_
