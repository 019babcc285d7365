// A key of a peer's or a user's: parsed or refused, and what was parsed says the same when
// it is put together again.

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
  // What is accepted is canonical, and stays as it is.
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
