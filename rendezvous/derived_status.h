#ifndef TRYST_RENDEZVOUS_DERIVED_STATUS_H_
#define TRYST_RENDEZVOUS_DERIVED_STATUS_H_

#include "absl/status/status.h"

namespace tryst {

// A derived status is the consequence of another failure (a receive that ended because
// its step was aborted): where statuses of many workers meet, one that is not derived
// names the cause. Carried as a payload, so it crosses the wire with the status.
inline constexpr char kDerivedStatusUrl[] = "tryst.derived";

// `status` with the mark; an OK status stays as it is.
absl::Status MarkDerived(absl::Status status);
bool IsDerived(const absl::Status& status);

// Keeps the first cause: `*kept` becomes `status` when it is OK, or when it is derived
// and `status` is not.
void KeepCause(absl::Status* kept, const absl::Status& status);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DERIVED_STATUS_H_
