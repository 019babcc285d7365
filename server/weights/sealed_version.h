#ifndef TRYST_SERVER_WEIGHTS_SEALED_VERSION_H_
#define TRYST_SERVER_WEIGHTS_SEALED_VERSION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/digests.h"
#include "weights/log.h"

namespace tryst {

// A version as its root names it.
struct SealedVersion {
  VersionName name;
  std::string label;
  std::vector<Digest> lists;  // By owner.
  Digest root;
};

// A digest as the log has it.
WeightRoot RootOf(const Digest& digest);

std::string EncodeSealed(const SealedVersion& version);
// kDataLoss: this is no version, or its root is not that of its lists.
absl::StatusOr<SealedVersion> DecodeSealed(absl::string_view bytes);

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_SEALED_VERSION_H_
