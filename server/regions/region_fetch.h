#ifndef TRYST_SERVER_REGIONS_REGION_FETCH_H_
#define TRYST_SERVER_REGIONS_REGION_FETCH_H_

#include <cstdint>

#include "rendezvous/rendezvous.h"
#include "rendezvous/selected_landing.h"
#include "rendezvous/selection.h"
#include "rendezvous/tensor_key.h"
#include "server/server.h"

namespace tryst {

// Fetches the bytes `wanted` of a region of key.src()'s worker into `landing` of args.destination,
// each in its order. The key's edge is RegionEdge(name), and it has the owner's incarnation. `done`
// as of a RecvAsync in `step`, with args.destination as the tensor, when nothing lands any more. No
// peer has to agree to that: a cancel or the deadline ends it at once (without args.executor a
// cancel runs `done` in its own call), or else where the copy that is under way ends, 64 KiB
// later. They come in parts (region_asks.h), a few at a time, and are copied on an executor of
// the server's as they come; without args.executor `done` runs on Server::executor(). A fetch that
// fails may have filled a part of `landing`, which its result says, and nothing else. Under a grant
// (grant_book.h), if an earlier fetch has brought one, they are copied by this worker itself, and
// little of that in here; `done` then runs in here, unless args.executor runs it. Such a copy is
// there before it turns out that the region was closed: it counts as failed. The owner makes
// digests where `landing` asks for them; a part in which one is wrong is asked for once more.
// kInvalidArgument: the selections do not fit or differ in bytes; `wanted` is kWhole; the region is
// smaller. kUnavailable: no such region is open there, or it was closed. kPermissionDenied: its
// owner does not let this worker read it. kAborted: the owner has restarted.
void FetchRegion(Server* server, int64_t step, const TensorKey& key, const Selection& wanted,
                 const RecvArgs& args, const SelectedLanding& landing, DoneFn done);

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_REGION_FETCH_H_
