// What a stranger asks an owner of weights: it is refused, or it is within its bounds and is
// written and read again alike.

#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/fuzz/require.h"
#include "weights/asks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto ask = tryst::ParseEdge("s", absl::StrCat("|weights|s|", rest));
  if (!ask.ok()) return 0;
  Require(ask->box.rank() <= tryst::TensorShape::kMaxRank);
  for (int i = 0; i < ask->box.rank(); ++i) {
    Require(ask->box.begin[i] >= 0 && ask->box.extent[i] >= 0);
  }
  const auto again = tryst::ParseEdge("s", tryst::EdgeOf("s", *ask));
  if (!again.ok()) abort();
  Require(again->kind == ask->kind && again->number == ask->number && again->birth == ask->birth &&
          again->digest == ask->digest && again->tensor == ask->tensor && again->box == ask->box &&
          again->question == ask->question && again->incarnation == ask->incarnation &&
          again->owner == ask->owner);
  return 0;
}
