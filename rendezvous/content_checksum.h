#ifndef TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_
#define TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_

#include <cstdint>

#include "rendezvous/tensor.h"

namespace tryst {

// A checksum of a tensor's bytes, by which debug builds see that they were changed. It is neither
// cryptographic nor for the wire. 0 if the host cannot read the memory.
uint64_t ContentChecksum(const Tensor& tensor);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_CONTENT_CHECKSUM_H_
