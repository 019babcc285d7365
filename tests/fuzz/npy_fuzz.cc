// NumPy files: each is refused, or parses to a tensor that is printed and parsed again unchanged.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "server/cli/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensor = tryst::ParseNpy(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!tensor.ok()) return 0;
  if (tensor->bytes() > size) abort();
  const auto printed = tryst::PrintNpy(*tensor);
  if (!printed.ok()) return 0;
  const auto again = tryst::ParseNpy(*printed);
  if (!again.ok() || again->shape() != tensor->shape() || again->bytes() != tensor->bytes())
    abort();
  if (tensor->bytes() > 0 && memcmp(again->data(), tensor->data(), tensor->bytes()) != 0) abort();
  return 0;
}
