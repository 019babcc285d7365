#include "proto/only_fields.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstdint>

namespace tryst {

using google::protobuf::internal::WireFormatLite;

bool HasOnlyFields(absl::string_view bytes, int last, int counted, size_t most,
                   absl::FunctionRef<bool(absl::string_view)> nested) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
  google::protobuf::io::CodedInputStream input(begin, static_cast<int>(bytes.size()));
  size_t count = 0;
  while (const uint32_t tag = input.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const WireFormatLite::WireType type = WireFormatLite::GetTagWireType(tag);
    if (field > last || type == WireFormatLite::WIRETYPE_START_GROUP ||
        type == WireFormatLite::WIRETYPE_END_GROUP) {
      return false;
    }
    if (field != counted) {
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      continue;
    }
    uint32_t size = 0;
    if (++count > most || type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
        !input.ReadVarint32(&size)) {
      return false;
    }
    const int at = input.CurrentPosition();
    if (size > bytes.size() - static_cast<size_t>(at) || !nested(bytes.substr(at, size)) ||
        !input.Skip(static_cast<int>(size))) {
      return false;
    }
  }
  return input.ConsumedEntireMessage();
}

bool HasOnlyFields(absl::string_view bytes, int last) {
  return HasOnlyFields(bytes, last, 0, 0, [](absl::string_view) { return false; });
}

}  // namespace tryst
