#include "rendezvous/derived_status.h"

#include "absl/strings/cord.h"

namespace tryst {

absl::Status MarkDerived(absl::Status status) {
  if (!status.ok()) status.SetPayload(kDerivedStatusUrl, absl::Cord());
  return status;
}

bool IsDerived(const absl::Status& status) {
  return status.GetPayload(kDerivedStatusUrl).has_value();
}

void KeepCause(absl::Status* kept, const absl::Status& status) {
  if (status.ok()) return;
  if (kept->ok() || (IsDerived(*kept) && !IsDerived(status))) *kept = status;
}

}  // namespace tryst
