#ifndef TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_
#define TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_

#include <cstdint>

#include "rendezvous/tensor.h"

namespace tryst {

// Of what a tensor holds, to find out whether it has been changed: not cryptographic, not
// for the wire. 0 where the host cannot read it.
uint64_t ContentChecksum(const Tensor& tensor);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_
