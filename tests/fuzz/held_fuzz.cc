// What a stranger says that members have: it is refused, or it is within its bounds and is written
// and read again alike. The first byte says whether it names members, or what one of them has.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "tests/fuzz/require.h"
#include "weights/held.h"
#include "weights/holders.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto holders = tryst::DecodeHolders(bytes);
    if (!holders.ok()) return 0;
    Require(holders->size() <= tryst::kMaxHolders);
    Require(tryst::EncodeHolders(*holders) == bytes);
    return 0;
  }
  const auto held = tryst::DecodeHeld(bytes);
  if (!held.ok()) return 0;
  Require(held->parts.size() <= tryst::kMaxHeldParts);
  Require(tryst::EncodeHeld(*held) == bytes);
  const tryst::TensorShape shape = {1 << 20, 1 << 20};
  tryst::BoxCover cover(tryst::Box::Whole(shape));
  for (const auto& part : held->parts) {
    Require(part.box.rank() <= tryst::TensorShape::kMaxRank);
    if (tryst::Within(part.box, shape)) cover.Add(part.box, part.tensor, part.digest);
  }
  const auto may_be_asked = [](uint32_t holder) { return holder % 2 == 0; };
  cover.Choose(may_be_asked);
  cover.Choose({{1 << 10, 0}, {1 << 10, 1 << 19}}, may_be_asked);
  return 0;
}
