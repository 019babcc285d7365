#include "weights/digests.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/little_endian.h"
#include "base/log.h"
#include "base/printable.h"
#include "weights/boxes.h"
#include "weights/wide_digest.h"

namespace tryst {
namespace {

void Append(uint64_t number, std::string* text) {
  uint8_t bytes[sizeof(number)];
  StoreLittle(bytes, number);
  text->append(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

void Append(const Digest& digest, std::string* text) {
  Append(digest.low, text);
  Append(digest.high, text);
}

// A digest of numbers and digests. The kind comes first, so that none of one kind is one of
// another.
std::string TextOf(absl::string_view kind, const VersionName& version) {
  std::string text(kind);
  Append(version.layouts, &text);
  Append(version.number, &text);
  Append(version.birth, &text);
  return text;
}

Digest Finish(std::string text, absl::Span<const Digest> digests) {
  Append(digests.size(), &text);
  for (const Digest& digest : digests) Append(digest, &text);
  return DigestOf(text);
}

}  // namespace

std::string Digest::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

Digest DigestOf(const void* bytes, size_t size) {
  static const WideDigestFn wide = WideDigest();
  if (wide == nullptr) return DigestPortable(bytes, size);
  Digest digest;
  wide(bytes, size, &digest.low, &digest.high);
  return digest;
}

Digest DigestPortable(const void* bytes, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {hash.low64, hash.high64};
}

std::vector<Digest> BlockDigests(const void* bytes, uint64_t size) {
  std::vector<Digest> blocks;
  blocks.reserve((size + kDigestBlockBytes - 1) / kDigestBlockBytes);
  const char* const begin = static_cast<const char*>(bytes);
  for (uint64_t at = 0; at < size; at += kDigestBlockBytes) {
    blocks.push_back(DigestOf(begin + at, std::min(kDigestBlockBytes, size - at)));
  }
  return blocks;
}

Digest BoxDigest(uint64_t size, absl::Span<const Digest> blocks) {
  std::string text = "box     ";
  Append(size, &text);
  return Finish(std::move(text), blocks);
}

std::vector<size_t> ListOffsets(absl::Span<const TensorLayout> layouts, uint32_t owner) {
  std::vector<size_t> offsets = {0};
  offsets.reserve(layouts.size() + 1);
  for (const TensorLayout& layout : layouts) {
    offsets.push_back(offsets.back() + BoxesOf(layout, owner).size());
  }
  return offsets;
}

Digest ListDigest(const VersionName& version, uint32_t owner, absl::Span<const Digest> boxes) {
  std::string text = TextOf("list    ", version);
  Append(uint64_t{owner}, &text);
  return Finish(std::move(text), boxes);
}

Digest RootDigest(const VersionName& version, absl::Span<const Digest> lists) {
  return Finish(TextOf("root    ", version), lists);
}

absl::Status CheckReplicas(absl::Span<const TensorLayout> layouts,
                           absl::Span<const std::vector<Digest>> lists) {
  const uint32_t owners = lists.size();
  std::vector<size_t> at(owners);  // How far each list was read.
  for (const TensorLayout& layout : layouts) {
    std::map<Box, std::pair<uint32_t, Digest>> first;
    for (uint32_t owner = 0; owner < owners; ++owner) {
      for (Box& box : BoxesOf(layout, owner)) {
        TRYST_CHECK(at[owner] < lists[owner].size());
        const Digest& digest = lists[owner][at[owner]++];
        const auto [found, added] = first.emplace(std::move(box), std::make_pair(owner, digest));
        if (added || found->second.second == digest) continue;
        return absl::DataLossError(absl::StrCat(
            "owners ", found->second.first, " and ", owner, " have published different bytes for ",
            found->first.ToString(), " of tensor \"", Printable(layout.name), "\""));
      }
    }
  }
  return absl::OkStatus();
}

std::string EncodeDigests(absl::Span<const Digest> digests) {
  std::string text;
  text.reserve(digests.size() * Digest::kBytes);
  for (const Digest& digest : digests) Append(digest, &text);
  return text;
}

absl::StatusOr<std::vector<Digest>> DecodeDigests(absl::string_view bytes, size_t count) {
  if (bytes.size() % Digest::kBytes != 0 || bytes.size() / Digest::kBytes != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer sent ", bytes.size(), " bytes, which are not the ", count,
                     " digests of ", Digest::kBytes, " bytes each that were asked for"));
  }
  std::vector<Digest> digests(count);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(bytes.data());
  for (Digest& digest : digests) {
    digest.low = LoadLittle<uint64_t>(at);
    digest.high = LoadLittle<uint64_t>(at + sizeof(uint64_t));
    at += Digest::kBytes;
  }
  return digests;
}

}  // namespace tryst
