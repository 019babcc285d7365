// What a producer says of a device tensor: refused, or within its bounds.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "channel/device/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> in(data, data + size);
  const auto manifest = tryst::DecodeManifest(in.data(), in.size());
  if (!manifest.ok()) return 0;
  if (size < tryst::DeviceManifest::kBytes) abort();
  std::vector<uint8_t> out(tryst::DeviceManifest::kBytes);
  tryst::EncodeManifest(*manifest, out.data());
  out.resize(size);  // What is inside follows, as it did.
  for (size_t i = tryst::DeviceManifest::kBytes; i < size; ++i) out[i] = in[i];
  const auto again = tryst::DecodeManifest(out.data(), out.size());
  if (!again.ok() || again->bytes != manifest->bytes || again->shape != manifest->shape ||
      again->transfer != manifest->transfer || again->chunk_bytes != manifest->chunk_bytes) {
    abort();
  }
  return 0;
}
