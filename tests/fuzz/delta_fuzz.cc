// A delta that anybody may have sent: it is refused and nothing is written, or it is decoded within
// its bounds; and what the bytes were made into is coded and comes back.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/require.h"
#include "weights/delta.h"

// The first byte says the size of the elements, the next three how many of them there are.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 4;
  if (size < kHead) return 0;
  const uint32_t element_bytes = 1u << data[0] % 5;
  const uint64_t elements = (data[1] | data[2] << 8 | data[3] << 16) % (200000 / element_bytes);
  const uint64_t bytes = elements * element_bytes;
  const absl::string_view coded(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  const std::vector<uint8_t> base(bytes, 0xa5);
  std::vector<uint8_t> now = base;
  const bool decoded = tryst::DecodeDelta(coded, now.data(), bytes, element_bytes, now.data()).ok();
  Require(decoded == tryst::CheckDelta(coded, bytes, element_bytes).ok());
  if (!decoded) {
    Require(now == base);
    return 0;
  }
  std::vector<uint8_t> beside(bytes);
  Require(tryst::DecodeDelta(coded, base.data(), bytes, element_bytes, beside.data()).ok());
  Require(beside == now);
  std::string again;
  tryst::EncodeDelta(base.data(), now.data(), bytes, element_bytes, &again);
  Require(again.size() <= tryst::MaxDeltaBytes(bytes));
  std::vector<uint8_t> twice(bytes);
  Require(tryst::DecodeDelta(again, base.data(), bytes, element_bytes, twice.data()).ok());
  Require(twice == now);
  return 0;
}
