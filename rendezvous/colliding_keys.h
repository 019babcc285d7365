#ifndef TRYST_RENDEZVOUS_COLLIDING_KEYS_H_
#define TRYST_RENDEZVOUS_COLLIDING_KEYS_H_

#include <vector>

#include "rendezvous/tensor_key.h"

namespace tryst {

// What somebody sends who knows how keys are hashed, but not with which secret: so many keys that
// have one hash where FixKeyHashes() was called. The first one is frame 0, iteration 0.
std::vector<TensorKey> CollidingKeys(int count);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_COLLIDING_KEYS_H_
