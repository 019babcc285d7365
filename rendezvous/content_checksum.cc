#include "rendezvous/content_checksum.h"

#include <cstring>

namespace tryst {
namespace {

uint64_t Mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9e3779b97f4a7c15;
  return sum ^ sum >> 32;
}

uint64_t OfBytes(uint64_t sum, const char* data, uint64_t bytes) {
  sum = Mixed(sum, bytes);
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    sum = Mixed(sum, word);
  }
  uint64_t rest = 0;
  if (bytes != 0) memcpy(&rest, data, bytes);
  return Mixed(sum, rest);
}

}  // namespace

uint64_t ContentChecksum(const Tensor& tensor) {
  if (!tensor.valid() || !tensor.space().host_readable()) return 0;
  uint64_t sum = 1;
  if (tensor.dtype() == DType::kString) {
    for (const std::string& element : tensor.strings()) {
      sum = OfBytes(sum, element.data(), element.size());
    }
    return sum;
  }
  if (tensor.bytes() == 0) return 0;  // The address of an empty tensor is not valid to read.
  return OfBytes(sum, static_cast<const char*>(tensor.data()), tensor.bytes());
}

}  // namespace tryst
