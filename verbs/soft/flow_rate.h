#ifndef TRYST_VERBS_SOFT_FLOW_RATE_H_
#define TRYST_VERBS_SOFT_FLOW_RATE_H_

#include <cstdint>

namespace tryst {

// How fast the network has lately taken what a TCP socket had for it, in bytes a second: what the
// system measures when the peer's acknowledges. 0: it knows nothing, or the socket is another.
uint64_t FlowRate(int fd);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_FLOW_RATE_H_
