#ifndef TRYST_TESTS_PROCESS_SHM_LINK_FAULT_H_
#define TRYST_TESTS_PROCESS_SHM_LINK_FAULT_H_

namespace tryst {

enum class LinkSide { kConsumer, kProducer };

// Sends a packet without meaning from `side` of every shared-memory link of this process. The other
// side then ends the link, and its process lives on. Returns how many were sent. Call it on the
// poller thread of that side, which opens and closes the sockets.
int SayNonsense(LinkSide side);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_SHM_LINK_FAULT_H_
