// What a stranger wants of a region: it is refused, or lies inside, is within its bounds, and is
// written and read again alike. So is a grant that an owner answers with.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/regions/grant_book.h"
#include "server/regions/region_asks.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view list(reinterpret_cast<const char*>(data), size);
  if (const auto grant = tryst::ReadGrant(list); grant.ok()) {
    const auto again = tryst::ReadGrant(tryst::WriteGrant(*grant));
    Require(again.ok() && again->pid == grant->pid && again->fd == grant->fd &&
            again->slot == grant->slot && again->mark == grant->mark);
  }
  for (const uint64_t region_bytes : {uint64_t{100}, uint64_t{1} << 30, UINT64_MAX}) {
    const auto wanted = tryst::ParseList(list, region_bytes);
    if (!wanted.ok()) continue;
    const tryst::Selection spans = tryst::Selection::Spans(wanted->spans);
    const auto checked = tryst::CheckSelection(spans, region_bytes, tryst::SelectionUse::kRead);
    Require(checked.ok() && *checked == wanted->bytes && wanted->bytes <= tryst::kMaxAskBytes);
    tryst::ListWriter writer(spans, wanted->granule, tryst::kMaxListText);
    for (uint64_t left = wanted->bytes; left > 0;) {
      uint64_t bytes = 0;
      const auto again = tryst::ParseList(writer.Next(left, &bytes), region_bytes);
      Require(bytes > 0 && again.ok() && again->bytes == bytes &&
              again->granule == wanted->granule);
      left -= bytes;
    }
  }
  return 0;
}
