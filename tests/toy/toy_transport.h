#ifndef TRYST_TESTS_TOY_TOY_TRANSPORT_H_
#define TRYST_TESTS_TOY_TOY_TRANSPORT_H_

#include "channel/transport.h"

namespace tryst {

// Carries tensors within one process: between the workers that are given one and the same factory,
// which is the line of registration. It is the measure of how much a transport has to write, and
// of where else it has to be named: nowhere. A worker that others fetch from is not started anew.
TransportFactory ToyFactory();

}  // namespace tryst

#endif  // TRYST_TESTS_TOY_TOY_TRANSPORT_H_
