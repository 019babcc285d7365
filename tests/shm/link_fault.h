#ifndef TRYST_TESTS_SHM_LINK_FAULT_H_
#define TRYST_TESTS_SHM_LINK_FAULT_H_

namespace tryst {

enum class LinkSide { kConsumer, kProducer };

// Sends a packet that makes no sense from `side` of every link of shared memory that this
// process has: the other side ends the link, and its process lives on. How many were sent.
// Call on the poller thread of that side, which opens and closes its sockets.
int SayNonsense(LinkSide side);

}  // namespace tryst

#endif  // TRYST_TESTS_SHM_LINK_FAULT_H_
