#ifndef TRYST_PROTO_ONLY_FIELDS_H_
#define TRYST_PROTO_ONLY_FIELDS_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace tryst {

// Looks at a message's fields before it is parsed, because a parser makes a message of a hundred
// bytes of each empty one that a stranger sends, and keeps fields that nobody knows. False: it has
// a field above `last`, or a group, or field `counted` more than `most` times, or `nested` refuses
// the bytes of one of those.
bool HasOnlyFields(absl::string_view bytes, int last, int counted, size_t most,
                   absl::FunctionRef<bool(absl::string_view)> nested);
// Makes the same check, without a field that is counted.
bool HasOnlyFields(absl::string_view bytes, int last);

}  // namespace tryst

#endif  // TRYST_PROTO_ONLY_FIELDS_H_
