#ifndef TRYST_RENDEZVOUS_COLLIDING_KEYS_H_
#define TRYST_RENDEZVOUS_COLLIDING_KEYS_H_

#include <vector>

#include "rendezvous/tensor_key.h"

namespace tryst {

// `count` keys that have one hash where FixKeyHashes() was called: an attacker who knows how keys
// are hashed, but not the secret, would send them. The first key has frame 0, iteration 0.
std::vector<TensorKey> CollidingKeys(int count);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_COLLIDING_KEYS_H_
