// What an owner declares, as anybody may send it: it is refused, or it is within its bounds, says
// the same when it is encoded again, and its boxes make up each tensor.

#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/require.h"
#include "weights/boxes.h"
#include "weights/fetch_plan.h"
#include "weights/layout_wire.h"

namespace {

void Check(const tryst::TensorLayout& layout, uint32_t owners) {
  __extension__ using Wide = __int128;
  Wide elements = 0;
  for (const tryst::SharedBox& shared : tryst::SharedBoxes(layout, owners)) {
    Require(tryst::Within(shared.box, layout.shape) && !shared.box.empty());
    elements += shared.box.elements();
  }
  Require(elements == layout.shape.elements());
  const auto sources = tryst::SourcesOf(layout, owners, tryst::Box::Whole(layout.shape));
  if (sources.ok()) Require(sources->empty() == (elements == 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto declared = tryst::DecodeLayouts({reinterpret_cast<const char*>(data), size});
  if (!declared.ok()) return 0;
  for (const tryst::TensorLayout& layout : declared->tensors) Check(layout, declared->owners);
  const auto again = tryst::EncodeLayouts(declared->tensors, declared->owners);
  if (!again.ok()) abort();
  const auto twice = tryst::DecodeLayouts(*again);
  Require(twice.ok() && twice->owners == declared->owners && twice->tensors == declared->tensors);
  return 0;
}
