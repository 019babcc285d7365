// A producer's description of a device tensor: it is refused, or within its bounds.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "channel/device/manifest.h"

namespace {

// Its memory is that of `bytes`, whose end a sanitizer knows.
tryst::Tensor TensorOf(std::vector<uint8_t>* bytes) {
  const int64_t count = static_cast<int64_t>(bytes->size());
  if (count == 0) return *tryst::Tensor::Allocate(tryst::DType::kUint8, {0});
  return *tryst::Tensor::Adopt(bytes->data(), tryst::DType::kUint8, {count}, tryst::MemorySpace(),
                               nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> in(data, data + size);
  const auto manifest = tryst::DecodeManifest(TensorOf(&in));
  if (!manifest.ok()) return 0;
  if (size < tryst::DeviceManifest::kBytes) abort();
  const auto bytes = tryst::TensorBytes(manifest->dtype, manifest->shape);
  if (!bytes.ok() || *bytes != manifest->bytes) abort();
  // A consumer that maps the allocation reads up to here.
  const tryst::IpcReference& lies = manifest->reference;
  if (manifest->in_reach() && (lies.offset > lies.allocation_bytes ||
                               manifest->bytes > lies.allocation_bytes - lies.offset)) {
    abort();
  }
  std::vector<uint8_t> out(tryst::DeviceManifest::kBytes);
  tryst::EncodeManifest(*manifest, out.data());
  out.resize(size);  // The rest follows unchanged.
  for (size_t i = tryst::DeviceManifest::kBytes; i < size; ++i) out[i] = in[i];
  const auto again = tryst::DecodeManifest(TensorOf(&out));
  if (!again.ok() || again->bytes != manifest->bytes || again->shape != manifest->shape ||
      again->transfer != manifest->transfer || again->chunk_bytes != manifest->chunk_bytes) {
    abort();
  }
  return 0;
}
