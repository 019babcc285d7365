// What a hostile peer writes into our ring, its immediates and its channel parameters. They are
// decoded without a crash, a read past the end, or a value out of bounds.

#include <cstdint>
#include <vector>

#include "base/crc32c.h"
#include "channel/ops/limits.h"
#include "channel/rdma/wire.h"
#include "channel/string_codec.h"
#include "tests/fuzz/require.h"

namespace {

void Read(const std::vector<uint8_t>& slot) {
  auto reader = tryst::wire::MessageReader::Open(slot.data(), slot.size());
  if (!reader.ok()) return;
  tryst::wire::Record record;
  for (;;) {
    auto more = reader->Next(&record);
    if (!more.ok() || !*more) return;
    const uint8_t* body = reinterpret_cast<const uint8_t*>(record.body.data());
    Require(body >= slot.data() && body + record.body.size() <= slot.data() + slot.size());
    auto request = tryst::wire::DecodeRequest(record);
    if (request.ok()) Require(request->rank <= tryst::wire::kMaxRank);
    absl::string_view payload;
    auto meta = tryst::wire::DecodeMeta(record, &payload);
    if (!meta.ok()) continue;
    Require(meta->rank <= tryst::wire::kMaxRank);
    auto shape = tryst::TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
    if (shape.ok()) {
      auto strings = tryst::DecodeStrings(payload, *shape);
      if (strings.ok()) Require(strings->shape() == *shape);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> slot(data, data + size);
  Read(slot);
  if (size >= tryst::wire::kHeaderBytes) {
    // Also with a correct length and checksum, because hardly any random input would get past those
    // checks.
    const uint32_t bytes = static_cast<uint32_t>(size / 8 * 8);
    for (size_t i = 0; i < 4; ++i) slot[4 + i] = static_cast<uint8_t>(bytes >> (8 * i));
    const uint32_t crc = tryst::Crc32c(0, slot.data() + 4, bytes - 4);
    for (size_t i = 0; i < 4; ++i) slot[i] = static_cast<uint8_t>(crc >> (8 * i));
    Read(slot);
  }
  if (size >= 4) {
    const uint32_t immediate = uint32_t{data[0]} | uint32_t{data[1]} << 8 |
                               uint32_t{data[2]} << 16 | uint32_t{data[3]} << 24;
    auto decoded = tryst::wire::DecodeImmediate(immediate);
    if (decoded.ok()) Require(decoded->slot < tryst::limits::kMaxSlots);
  }
  auto parameters =
      tryst::wire::DecodeParameters(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (parameters.ok()) Require(parameters->slots <= tryst::limits::kMaxSlots);
  return 0;
}
