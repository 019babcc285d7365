#include "server/weights/sealed_version.h"

#include <algorithm>

#include "proto/weights.pb.h"
#include "weights/layout.h"

namespace tryst {

WeightRoot RootOf(const Digest& digest) {
  const std::string bytes = EncodeDigests({digest});
  WeightRoot root;
  std::copy(bytes.begin(), bytes.end(), root.begin());
  return root;
}

std::string EncodeSealed(const SealedVersion& version) {
  rpc::SealedWeights message;
  message.set_number(version.name.number);
  message.set_birth(version.name.birth);
  message.set_label(version.label);
  message.set_layouts(EncodeDigests({version.name.layouts}));
  message.set_lists(EncodeDigests(version.lists));
  message.set_root(EncodeDigests({version.root}));
  return message.SerializeAsString();
}

absl::StatusOr<SealedVersion> DecodeSealed(absl::string_view bytes) {
  const absl::Status wrong = absl::DataLossError(
      "the owner answered with bytes that are no sealed version of weights: run the same release "
      "on both");
  // A label is the only part without a bound of its own.
  constexpr size_t kMostBytes = (LayoutLimits::kMaxOwners + 64) * Digest::kBytes + (64 << 10);
  rpc::SealedWeights message;
  if (bytes.size() > kMostBytes ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return wrong;
  }
  const auto layouts = DecodeDigests(message.layouts(), 1), root = DecodeDigests(message.root(), 1);
  const auto lists = DecodeDigests(message.lists(), message.lists().size() / Digest::kBytes);
  if (!layouts.ok() || !root.ok() || !lists.ok()) return wrong;
  SealedVersion version;
  version.name = {layouts->front(), message.number(), message.birth()};
  version.label = message.label();
  version.lists = *lists;
  version.root = root->front();
  if (version.root != RootDigest(version.name, version.lists)) {
    return absl::DataLossError(
        "the owner sent a sealed version of weights whose root digest does not fit its lists");
  }
  return version;
}

}  // namespace tryst
