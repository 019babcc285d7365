#include "channel/device/manifest.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "channel/signing/caller.h"

namespace tryst {
namespace {

constexpr absl::string_view kMark = "|device|";
constexpr uint32_t kManifestMagic = 0x31564454;  // "TDV1"

// Where each field is.
constexpr size_t kFlags = 4;
constexpr size_t kDtype = 5;
constexpr size_t kRank = 6;
constexpr size_t kBytesAt = 8;
constexpr size_t kTransfer = 16;
constexpr size_t kChunk = 24;
constexpr size_t kDims = 32;
constexpr size_t kProcess = 96;
constexpr size_t kAddress = 112;
constexpr size_t kOrdinal = 120;
constexpr size_t kDigest = 124;
constexpr size_t kAllocation = 128;
constexpr size_t kOffset = 136;
constexpr size_t kAllocationBytes = 144;
constexpr size_t kHandle = 152;
constexpr size_t kUuid = 216;
constexpr size_t kForgotten = 232;  // Earlier releases write 0 and never count.
constexpr size_t kProof = 240;
static_assert(kProof + sizeof(DeviceManifest::proof) == DeviceManifest::kBytes);
constexpr uint8_t kInside = 1;
constexpr uint8_t kHasIpc = 2;
constexpr uint8_t kOnDevice = 4;
constexpr uint8_t kHasChunks = 8;  // Then the handle is their number, and zeroes.

void Put(uint8_t* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint64_t Get(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{at[i]} << (8 * i);
  return value;
}

uint64_t Hash(const std::string& text) {
  return uint64_t{Crc32c(0, text.data(), text.size())} << 32 |
         Crc32c(~0u, text.data(), text.size());
}

bool ParseShape(absl::string_view dtype, absl::string_view dims, DeviceAsk* ask) {
  int type = 0;
  if (!absl::SimpleAtoi(dtype, &type) || type < 0 || type > 255) return false;
  ask->dtype = static_cast<DType>(type);
  std::vector<int64_t> sizes;
  for (absl::string_view dim : absl::StrSplit(dims, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(dim, &sizes.emplace_back())) return false;
  }
  auto shape = TensorShape::Make(sizes);
  if (shape.ok()) ask->shape = *shape;
  return shape.ok();
}

absl::StatusOr<TensorKey> Asking(const TensorKey& tensor, const std::string& what) {
  if (absl::StrContains(tensor.edge(), kMark)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor's edge name ", tensor.edge(), " has ", kMark,
                     " in it, which is reserved: choose another name"));
  }
  return tensor.WithEdge(absl::StrCat(tensor.edge(), kMark, what));
}

template <typename Array>
absl::string_view Bytes(const Array& array) {
  return {reinterpret_cast<const char*>(std::data(array)), std::size(array)};
}

// A Mac, cut, of everything that the manifest says and of whose it is.
std::array<uint8_t, 16> ProofOf(const TensorKey& key, DeviceManifest manifest) {
  std::array<uint8_t, 16> proof{};
  manifest.proof = proof;
  std::string said(DeviceManifest::kBytes, '\0');
  EncodeManifest(manifest, reinterpret_cast<uint8_t*>(&said[0]));
  const ProcessSecret& secret = ThisProcessSecret();
  const std::string mac = Mac(Bytes(secret.bytes), {said, key.text()});
  memcpy(proof.data(), mac.data(), proof.size());
  return proof;
}

}  // namespace

DeviceAsk ParseDeviceAsk(const TensorKey& key) {
  DeviceAsk ask;
  const size_t mark = key.edge().rfind(kMark);
  if (mark == absl::string_view::npos) return ask;
  ask.kind = DeviceAsk::Kind::kWrong;
  ask.edge = key.edge().substr(0, mark);
  const std::vector<absl::string_view> parts =
      absl::StrSplit(key.edge().substr(mark + kMark.size()), '|');
  if (parts.size() == 1) {
    if (absl::SimpleHexAtoi(parts[0], &ask.host)) ask.kind = DeviceAsk::Kind::kManifest;
    return ask;
  }
  if (parts.size() == 4 && parts[1] == "into") {
    ask.has_shape = true;
    if (absl::SimpleHexAtoi(parts[0], &ask.host) && ParseShape(parts[2], parts[3], &ask)) {
      ask.kind = DeviceAsk::Kind::kManifest;
    }
    return ask;
  }
  if (!absl::SimpleHexAtoi(parts[0], &ask.transfer)) return ask;
  if (parts.size() == 5 && parts[1] == "chunks" && absl::SimpleAtoi(parts[2], &ask.chunk)) {
    ask.kind = DeviceAsk::Kind::kChunks;
    ask.mailbox = parts[3];
    ask.token = parts[4];
    return ask;
  }
  if (parts.size() == 3 && parts[1] == "chunk" && absl::SimpleAtoi(parts[2], &ask.chunk)) {
    ask.kind = DeviceAsk::Kind::kChunk;
  } else if (parts.size() == 2 && parts[1] == "done") {
    ask.kind = DeviceAsk::Kind::kDone;
  } else if (parts.size() == 2 && parts[1] == "back") {
    ask.kind = DeviceAsk::Kind::kBack;
  } else if (parts.size() == 2 && parts[1] == "alive") {
    ask.kind = DeviceAsk::Kind::kAlive;
  } else if (parts.size() == 2 && parts[1] == "whole") {
    ask.kind = DeviceAsk::Kind::kWhole;
  } else if (parts.size() == 2 && parts[1] == "probe") {
    ask.kind = DeviceAsk::Kind::kProbe;
  } else if (parts.size() == 2 && parts[1] == "direct") {
    ask.kind = DeviceAsk::Kind::kDirect;
  }
  return ask;
}

absl::StatusOr<TensorKey> ManifestKey(const TensorKey& tensor, uint64_t host, const Tensor& into) {
  std::string what = absl::StrCat(absl::Hex(host));
  if (into.valid()) {
    absl::StrAppend(&what, "|into|", static_cast<int>(into.dtype()), "|",
                    absl::StrJoin(into.shape().dims(), ","));
  }
  return Asking(tensor, what);
}

absl::StatusOr<TensorKey> TransferKey(const TensorKey& tensor, uint64_t transfer,
                                      absl::string_view what) {
  return Asking(tensor, absl::StrCat(absl::Hex(transfer), "|", what));
}

absl::StatusOr<TensorKey> ChunkKey(const TensorKey& tensor, uint64_t transfer, uint64_t chunk) {
  return Asking(tensor, absl::StrCat(absl::Hex(transfer), "|chunk|", chunk));
}

absl::StatusOr<TensorKey> ChunksKey(const TensorKey& tensor, uint64_t transfer, uint64_t first,
                                    absl::string_view mailbox, absl::string_view token) {
  return Asking(tensor,
                absl::StrCat(absl::Hex(transfer), "|chunks|", first, "|", mailbox, "|", token));
}

absl::Status PackedOnDevice(const TensorKey& tensor) {
  return absl::InvalidArgumentError(absl::StrCat(
      tensor.text(), " has more than ", static_cast<int>(TensorShape::kMaxRank),
      " dimensions, and comes from another worker into host memory alone: receive it there, or "
      "send it in another shape"));
}

absl::StatusOr<TensorKey> PlainKey(const TensorKey& asking, const DeviceAsk& ask) {
  return asking.WithEdge(ask.edge);
}

uint64_t ThisHost() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return file >> id ? Hash(id) : 0;
}

uint64_t ThisProcess() {
  // The process namespace and the start time tell apart processes with the same number.
  char space[64] = {};
  [[maybe_unused]] const ssize_t length = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  std::ifstream file("/proc/self/stat");
  std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(stat.rfind(')') + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStartTime = 19;  // Behind the name.
  return Hash(absl::StrCat(space, " ", getpid(), " ",
                           fields.size() > kStartTime ? fields[kStartTime] : ""));
}

const ProcessSecret& ThisProcessSecret() {
  static const ProcessSecret secret = [] {
    ProcessSecret made;
    TRYST_CHECK(getrandom(made.bytes, sizeof(made.bytes), 0) == sizeof(made.bytes))
        << "no random bytes";
    return made;
  }();
  return secret;
}

void EncodeManifest(const DeviceManifest& manifest, uint8_t* out) {
  memset(out, 0, DeviceManifest::kBytes);
  Put(out, kManifestMagic, 4);
  out[kFlags] = static_cast<uint8_t>(
      (manifest.inside ? kInside : 0) | (manifest.has_ipc ? kHasIpc : 0) |
      (manifest.on_device ? kOnDevice : 0) | (manifest.has_chunks ? kHasChunks : 0));
  out[kDtype] = static_cast<uint8_t>(manifest.dtype);
  out[kRank] = static_cast<uint8_t>(manifest.shape.rank());
  Put(out + kBytesAt, manifest.bytes, 8);
  Put(out + kTransfer, manifest.transfer, 8);
  Put(out + kChunk, manifest.chunk_bytes, 8);
  for (int i = 0; i < manifest.shape.rank(); ++i) {
    Put(out + kDims + 8 * i, static_cast<uint64_t>(manifest.shape.dim(i)), 8);
  }
  Put(out + kProcess, manifest.host, 8);
  Put(out + kProcess + 8, manifest.process, 8);
  Put(out + kAddress, manifest.address, 8);
  Put(out + kOrdinal, static_cast<uint32_t>(manifest.ordinal), 4);
  Put(out + kDigest, manifest.digest, 4);
  Put(out + kAllocation, manifest.reference.allocation_id, 8);
  Put(out + kOffset, manifest.reference.offset, 8);
  Put(out + kAllocationBytes, manifest.reference.allocation_bytes, 8);
  if (manifest.has_chunks) {
    Put(out + kHandle, manifest.reference.chunks, 4);
  } else {
    memcpy(out + kHandle, manifest.reference.handle.bytes, 64);
  }
  memcpy(out + kUuid, manifest.uuid.bytes, 16);
  Put(out + kForgotten, manifest.forgotten, 8);
  memcpy(out + kProof, manifest.proof.data(), manifest.proof.size());
}

void ProveProcess(const TensorKey& key, DeviceManifest* manifest) {
  manifest->proof = ProofOf(key, *manifest);
}

bool IsOfThisProcess(const TensorKey& key, const DeviceManifest& manifest) {
  return SameSecret(Bytes(ProofOf(key, manifest)), Bytes(manifest.proof));
}

absl::StatusOr<DeviceManifest> DecodeManifest(const Tensor& of_peer) {
  const bool is_readable = of_peer.dtype() != DType::kString && of_peer.on_host();
  const uint64_t bytes = is_readable ? of_peer.bytes() : 0;
  // It may lie in memory that the producer can still write: what is checked is what is used.
  uint8_t in[DeviceManifest::kBytes];
  if (bytes >= sizeof(in)) memcpy(in, of_peer.data(), sizeof(in));
  if (bytes < sizeof(in) || Get(in, 4) != kManifestMagic) {
    return absl::DataLossError(
        "the producer broke the protocol: its answer does not describe a GPU's tensor");
  }
  DeviceManifest manifest;
  manifest.inside = (in[kFlags] & kInside) != 0;
  manifest.has_ipc = (in[kFlags] & kHasIpc) != 0;
  manifest.on_device = (in[kFlags] & kOnDevice) != 0;
  manifest.dtype = static_cast<DType>(in[kDtype]);
  if (in[kRank] > TensorShape::kMaxRank)
    return absl::DataLossError(
        "the producer broke the protocol: the rank of a GPU's tensor is out of range");
  int64_t dims[TensorShape::kMaxRank];
  for (int i = 0; i < in[kRank]; ++i) dims[i] = static_cast<int64_t>(Get(in + kDims + 8 * i, 8));
  auto shape = TensorShape::Make(absl::MakeConstSpan(dims, in[kRank]));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  manifest.shape = *shape;
  auto tensor_bytes = TensorBytes(manifest.dtype, *shape);
  if (!tensor_bytes.ok()) return absl::DataLossError(tensor_bytes.status().message());
  manifest.bytes = Get(in + kBytesAt, 8);
  manifest.transfer = Get(in + kTransfer, 8);
  manifest.chunk_bytes = Get(in + kChunk, 8);
  const bool fits = manifest.inside ? bytes - DeviceManifest::kBytes == manifest.bytes
                                    : bytes == DeviceManifest::kBytes && manifest.chunk_bytes > 0;
  if (manifest.bytes != *tensor_bytes || !fits) {
    return absl::DataLossError(
        "the producer broke the protocol: the length of a GPU's tensor does not match its type and "
        "shape");
  }
  manifest.host = Get(in + kProcess, 8);
  manifest.process = Get(in + kProcess + 8, 8);
  manifest.address = Get(in + kAddress, 8);
  manifest.ordinal = static_cast<int32_t>(Get(in + kOrdinal, 4));
  manifest.digest = static_cast<uint32_t>(Get(in + kDigest, 4));
  manifest.reference.allocation_id = Get(in + kAllocation, 8);
  manifest.reference.offset = Get(in + kOffset, 8);
  manifest.reference.allocation_bytes = Get(in + kAllocationBytes, 8);
  manifest.reference.allocation_at = manifest.address - manifest.reference.offset;
  manifest.has_chunks = (in[kFlags] & kHasChunks) != 0;
  if (manifest.has_chunks) {
    manifest.reference.chunks = static_cast<uint32_t>(Get(in + kHandle, 4));
  } else {
    memcpy(manifest.reference.handle.bytes, in + kHandle, 64);
  }
  memcpy(manifest.uuid.bytes, in + kUuid, 16);
  manifest.forgotten = Get(in + kForgotten, 8);
  memcpy(manifest.proof.data(), in + kProof, manifest.proof.size());
  if (manifest.has_chunks && (manifest.has_ipc || manifest.reference.chunks == 0 ||
                              manifest.reference.chunks > kMostChunks)) {
    return absl::DataLossError(
        "the producer broke the protocol: a GPU's tensor lies in an impossible number of pieces of "
        "memory");
  }
  if (manifest.in_reach() &&
      (manifest.reference.offset > manifest.reference.allocation_bytes ||
       manifest.bytes > manifest.reference.allocation_bytes - manifest.reference.offset)) {
    return absl::DataLossError(
        "the producer broke the protocol: a GPU's tensor reaches over the end of its allocation");
  }
  return manifest;
}

}  // namespace tryst
