#ifndef TRYST_TESTS_CONTRACT_TOY_TOY_TRANSPORT_H_
#define TRYST_TESTS_CONTRACT_TOY_TOY_TRANSPORT_H_

#include "channel/transport.h"

namespace tryst {

// Carries tensors within one process, between the workers that get the same factory; the factory is
// all that is registered. It shows how much a transport has to write, and that it need not be named
// elsewhere. A worker that others fetch from must not be restarted.
TransportFactory ToyFactory();

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_TOY_TOY_TRANSPORT_H_
