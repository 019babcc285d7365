// A key from a peer or a user: it is refused, or it parses and its components make the same text
// again.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "rendezvous/tensor_key.h"

namespace {

void Check(bool holds) {
  if (!holds) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<tryst::TensorKey> key = tryst::TensorKey::Parse(text);
  if (!key.ok()) {
    Check(absl::IsInvalidArgument(key.status()));
    Check(key.status().message().size() < 2048);
    return 0;
  }
  // An accepted key is canonical: parsing it again changes nothing.
  absl::StatusOr<tryst::TensorKey> canonical = tryst::TensorKey::Parse(key->text());
  Check(canonical.ok() && canonical->text() == key->text());
  Check(key->text() == text || key->text().size() == text.size() + 7 ||
        key->text().size() == text.size() + 14);
  const std::string again =
      absl::StrCat(key->src_device(), ";", absl::Hex(key->src_incarnation(), absl::kZeroPad16), ";",
                   key->dst_device(), ";", key->edge(), ";", key->frame(), ":", key->iter());
  Check(again == key->text());
  absl::StatusOr<tryst::TensorKeyPrefix> prefix = tryst::TensorKeyPrefix::Make(
      key->src_device(), key->src_incarnation(), key->dst_device(), key->edge());
  Check(prefix.ok());
  Check(prefix->At(key->frame(), key->iter()) == *key);
  Check(key->dst().worker.size() < key->dst_device().size());
  return 0;
}
