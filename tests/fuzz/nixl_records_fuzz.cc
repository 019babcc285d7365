// What a stranger says to an agent of NIXL's: it is refused, or written and read again alike.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "plugins/nixl/records.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace nixl = tryst::nixl;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto put = nixl::ReadPut(text); put.ok()) {
    Require(text == nixl::WritePut(put->id, put->agent, put->has_note ? &put->note : nullptr,
                                   nixl::WritePutParts(put->parts)));
  }
  if (const auto notes = nixl::ReadNotes(text); notes.ok()) {
    Require(nixl::WriteNotes(*notes) == text);
  }
  if (const auto question = nixl::ReadQuestion(text); question.ok()) {
    Require(question->record.empty() || question->record_bytes == 0);
    Require(question->record.size() <= nixl::kMaxShortRecord &&
            question->record_bytes <= nixl::kMaxRecord);
    const auto again = nixl::ReadQuestion(nixl::WriteQuestion(*question));
    Require(again.ok() && again->verb == question->verb && again->record == question->record &&
            again->record_id == question->record_id);
  }
  if (const auto name = nixl::ReadPeerName(text); name.ok()) {
    const auto again = nixl::ReadPeerName(nixl::WritePeerName(*name));
    Require(again.ok() && again->worker == name->worker && again->address == name->address);
  }
  if (const auto id = nixl::ReadRegionId(text); id.ok()) {
    Require(*nixl::ReadRegionId(nixl::WriteRegionId(*id)) == *id);
  }
  return 0;
}
