#ifndef TRYST_CHANNEL_DEVICE_MANIFEST_H_
#define TRYST_CHANNEL_DEVICE_MANIFEST_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu/ipc.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

// What the two ends of a device tensor's fetch say to each other (docs/WIRE.md). They use
// the channel as everybody does, by keys: the edge's name is followed by
//   |device|HOST          what is this tensor, and how do I get it?
//   |device|HOST|into|TYPE|DIMS  the same; it has to be of this type and shape
//   |device|ID|chunk|N    bytes [N * chunk_bytes, ...) of transfer ID
//   |device|ID|done       the consumer has what it wanted of ID
//   |device|ID|back       it has not, and takes nothing: the tensor is the next fetch's
//   |device|ID|chunks|N|NAME|TOKEN  chunks of its memory from N on, into that mailbox
//                         (chunk_mail.h); a word without bytes
//   |device|ID|alive      it still reads the producer's memory
//   |device|ID|whole      the tensor as it lies in the producer's device memory, for a NIC
//                         that reads it there; of a NIC that does not, kUnimplemented
//   |device|0|probe       memory with a known digest, to prove a mapping by
//   |device|0|direct      the same memory itself, as |whole| would bring it
// so that order, exactly-once, abort and reconnecting are the channel's.
namespace tryst {

struct DeviceAsk {
  enum class Kind {
    kNone,
    kManifest,
    kChunk,
    kDone,
    kBack,
    kChunks,
    kAlive,
    kWhole,
    kProbe,
    kDirect,
    kWrong
  };
  Kind kind = Kind::kNone;  // kNone: an ordinary key.
  absl::string_view edge;   // The tensor's own.
  uint64_t host = 0;        // kManifest: the consumer's; 0: does not tell.
  bool has_shape = false;   // kManifest: what the consumer's destination is.
  DType dtype = DType::kInvalid;
  TensorShape shape;
  uint64_t transfer = 0;
  uint64_t chunk = 0;  // kChunk, kChunks.
  // kChunks: the mailbox.
  absl::string_view mailbox;
  absl::string_view token;
};

// Views into the key's text.
DeviceAsk ParseDeviceAsk(const TensorKey& key);
// The key under which a consumer asks for the manifest of `tensor`. kInvalidArgument: it is too
// long, or `tensor` is such a key already. `into`, if valid, is the destination.
absl::StatusOr<TensorKey> ManifestKey(const TensorKey& tensor, uint64_t host, const Tensor& into);
absl::StatusOr<TensorKey> TransferKey(const TensorKey& tensor, uint64_t transfer,
                                      absl::string_view what);
absl::StatusOr<TensorKey> ChunkKey(const TensorKey& tensor, uint64_t transfer, uint64_t chunk);
absl::StatusOr<TensorKey> ChunksKey(const TensorKey& tensor, uint64_t transfer, uint64_t first,
                                    absl::string_view mailbox, absl::string_view token);
// kInvalidArgument: the tensor has more dimensions than a wire describes, and is packed
// (rendezvous/packed_tensor.h); only a host unpacks it.
absl::Status PackedOnDevice(const TensorKey& tensor);
// The key of the tensor itself, from a key that asks for its manifest.
absl::StatusOr<TensorKey> PlainKey(const TensorKey& asking, const DeviceAsk& ask);

// A number that all processes of this host see until it reboots; 0 if unknown.
uint64_t ThisHost();
// This process among all that ever run on the host.
uint64_t ThisProcess();

// What only this process knows: random, and never sent.
struct ProcessSecret {
  uint8_t bytes[32];
};
const ProcessSecret& ThisProcessSecret();

// The answer to kManifest and kProbe: the head of a kUint8 tensor, before what is inline.
struct DeviceManifest {
  static constexpr uint64_t kBytes = 256;
  bool inside = false;      // The tensor's bytes follow.
  bool has_ipc = false;     // One allocation of this host, with its handle.
  bool has_chunks = false;  // Virtual memory of this host: reference.chunks of them.
  bool on_device = false;   // The bytes lie in device memory, and may be asked for whole.
  DType dtype = DType::kInvalid;
  TensorShape shape;
  uint64_t bytes = 0;
  uint64_t transfer = 0;  // 0: inside.
  uint64_t chunk_bytes = 0;
  uint64_t host = 0;  // With on_device: ThisHost() and ThisProcess() of the producer.
  uint64_t process = 0;
  // With has_ipc or has_chunks: where the bytes lie.
  uint64_t address = 0;  // In that process.
  int32_t ordinal = 0;
  cuda::Uuid uuid{};
  IpcReference reference;
  // Whoever has it made this manifest of this key's tensor in the process whose secret it is.
  // ThisProcess() alone can be guessed, and a false one would have a consumer read any address.
  std::array<uint8_t, 16> proof{};
  uint64_t forgotten = 0;  // How often that process has given memory back (IpcExporter).
  uint32_t digest = 0;     // CRC-32C of a probe's bytes.

  bool in_reach() const { return has_ipc || has_chunks; }
  // When this consumer asked, which is before the producer's lease began. Is not sent.
  int64_t asked_ns = 0;
};
// Writes `proof`, of the tensor's own key and the fields that say where its bytes lie.
void ProveProcess(const TensorKey& key, DeviceManifest* manifest);
// Whether this very process has made it.
bool IsOfThisProcess(const TensorKey& key, const DeviceManifest& manifest);
void EncodeManifest(const DeviceManifest& manifest, uint8_t* out);  // kBytes.
// What a peer answered. kDataLoss: not one, or one that does not add up. Strings are none, and
// neither is what lies in a GPU's memory, which the CPU cannot read.
absl::StatusOr<DeviceManifest> DecodeManifest(const Tensor& of_peer);

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_MANIFEST_H_
