#ifndef TRYST_SERVER_REGIONS_REGION_FETCH_H_
#define TRYST_SERVER_REGIONS_REGION_FETCH_H_

#include <cstdint>

#include "rendezvous/rendezvous.h"
#include "rendezvous/selection.h"
#include "rendezvous/tensor_key.h"
#include "server/server.h"

namespace tryst {

// Fetches the bytes `wanted` of a region of key.src()'s worker into `landing` of args.destination,
// each in its order. The key's edge is RegionEdge(name), and it has the owner's incarnation. `done`
// as of a RecvAsync in `step`, on args.executor or else on the server's, with args.destination as
// the tensor, when nothing lands any more. They come in parts (region_asks.h), a few at a time, and
// are copied as they come: a fetch that fails may have filled a part of `landing`, and nothing
// else. kInvalidArgument: the selections do not fit or differ in bytes; `wanted` is kWhole; the
// region is smaller. kUnavailable: no such region is open there, or it was closed.
// kPermissionDenied: its owner does not let this worker read it. kAborted: the owner has restarted.
void FetchRegion(Server* server, int64_t step, const TensorKey& key, const Selection& wanted,
                 const RecvArgs& args, const Selection& landing, DoneFn done);

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_REGION_FETCH_H_
