// A run of keys: its name, as a hostile consumer may tell it, and its answer, as a hostile producer
// may send it. Each is refused, or is read to its end within its bounds.

#include <cstdint>
#include <cstdlib>

#include "channel/ops/run_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto numbers = tryst::DecodeRun(text);
  if (numbers.ok() && tryst::EncodeRun(*numbers) != text) abort();
  tryst::RunReader reader(text);
  uint64_t read = 0;
  while (!reader.at_end()) {
    tryst::RunItemKind kind;
    tryst::TensorInside inside;
    if (!reader.Next(&kind, &inside).ok()) return 0;
    read += kind == tryst::RunItemKind::kTensor
                ? tryst::RunItemBytes(inside.dims.size(), inside.payload.size())
                : tryst::kRunItemBytes;
    if (inside.payload.size() > tryst::kRunTensorBytes) abort();
    for (char one : inside.payload) read += one == 0 ? 0 : 0;
  }
  if (read != size) abort();
  return 0;
}
