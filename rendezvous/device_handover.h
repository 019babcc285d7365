#ifndef TRYST_RENDEZVOUS_DEVICE_HANDOVER_H_
#define TRYST_RENDEZVOUS_DEVICE_HANDOVER_H_

#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// True when a tensor of `key`, produced and received on this worker, may have to be
// copied: one of its ends is a device and not told to keep it on the host.
bool MayNeedCopy(const TensorKey& key, const RecvArgs& recv_args);

// Puts `done` behind the copy that brings the tensor to where the receiver wants it, into
// args.destination or into new memory of the receiver's device context; shares it where
// it already lies right. Either way the sender's work that fills it has come first. The result runs
// on the receiver's executor.
DoneFn CopyToReceiver(const TensorKey& key, const RecvArgs& recv_args, DoneFn done);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DEVICE_HANDOVER_H_
