#ifndef TRYST_CHANNEL_COMPAT_FETCH_WIRE_H_
#define TRYST_CHANNEL_COMPAT_FETCH_WIRE_H_

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "proto/transport.pb.h"
#include "rendezvous/tensor.h"

// How a tensor travels in FetchResponse messages. The payload of a fixed-size type is its bytes;
// for strings see channel/string_codec.h.
namespace tryst {

inline constexpr char kFetchMethod[] = "/tryst.rpc.TransportService/FetchTensor";

// The most payload in one message. It is well below gRPC's default receive limit of 4 MiB, so that
// limit can stay in force against peers that send more.
inline constexpr uint64_t kFetchChunkBytes = uint64_t{1} << 20;

// The answer to a batch carries tensors up to this size, and so much of them in all.
inline constexpr uint64_t kParcelBytes = 4096;
inline constexpr size_t kMostParcelBytes = 256 << 10;

// How many fetches one batch asks for.
inline constexpr int kMaxAsks = 8192;

// A tensor to be sent. The messages borrow its memory, and keep it alive until gRPC has released
// them.
class OutgoingTensor {
 public:
  // Strings are copied once, into one block. kFailedPrecondition: the bytes are in a device's
  // memory.
  static absl::StatusOr<OutgoingTensor> Make(const Tensor& tensor, bool is_dead);

  const rpc::TensorMetadata& metadata() const { return metadata_; }
  uint64_t bytes() const { return metadata_.bytes(); }
  // Like bytes(), without what strings take beside what they hold.
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  // A message with the payload [offset, offset + bytes) and, if not null, `header`. A digest costs
  // a pass over the payload. REQUIRES: the range is within bytes().
  grpc::ByteBuffer Message(const rpc::FetchHeader* header, uint64_t offset, uint64_t bytes,
                           bool digest) const;
  // A message with the whole payload, as one copy.
  std::string Parcel(const rpc::FetchHeader& header, bool digest) const;

 private:
  rpc::TensorMetadata metadata_;
  Tensor tensor_;                               // For fixed-size types.
  std::shared_ptr<const std::string> strings_;  // For kString.
  const char* payload_ = nullptr;
  uint64_t tensor_bytes_ = 0;
};

// A message that only tells how the fetch ended.
grpc::ByteBuffer HeaderMessage(const rpc::FetchHeader& header);

// A tensor that is received, in one or several attempts. The bytes are copied once, from gRPC's
// slices to their final place. All that it reads comes from a peer.
class IncomingTensor {
 public:
  // If `destination` is valid, the bytes go there; it must be host memory, and its type and shape
  // must match.
  IncomingTensor(Tensor destination, uint64_t max_bytes)
      : destination_(std::move(destination)), max_bytes_(max_bytes) {}

  // The bytes are for another receive now, with this destination. False: they have begun to land in
  // the old place; call Reset(), and begin another attempt.
  bool Redirect(const Tensor& destination) {
    if (prepared_ && (destination_.valid() || destination.valid())) return false;
    destination_ = destination;
    return true;
  }
  void Reset(Tensor destination) { *this = IncomingTensor(std::move(destination), max_bytes_); }

  // Begins the next attempt, whose first message has a header again.
  void StartAttempt() { header_seen_ = digest_wrong_ = false; }

  // kDataLoss: a producer never sends this. kResourceExhausted: more than `max_bytes`, or no
  // memory. kInvalidArgument: it does not fit the destination. After an error only destroy the
  // object; except after digest_wrong(), when another attempt may continue after the good bytes.
  absl::Status Take(grpc::ByteBuffer* message);
  absl::Status TakeParcel(absl::string_view message);

  bool header_seen() const { return header_seen_; }
  const rpc::FetchHeader& header() const { return header_; }
  // Every byte of the tensor is there. Never true after the header of a failure.
  bool complete() const {
    return header_seen_ && header_.code() == 0 && received_ == expected_.bytes();
  }
  uint64_t received() const { return received_; }
  bool digest_wrong() const { return digest_wrong_; }

  // REQUIRES: complete(). kDataLoss: the strings are inconsistent.
  absl::StatusOr<Tensor> Finish();

 private:
  absl::Status TakeMessage(google::protobuf::io::ZeroCopyInputStream* stream);
  absl::Status TakeHeader(const rpc::FetchHeader& header);
  absl::Status Prepare(const rpc::TensorMetadata& metadata);
  absl::Status TakeChunk(google::protobuf::io::CodedInputStream* coded, uint32_t bytes,
                         absl::optional<uint32_t> digest);

  Tensor destination_;
  uint64_t max_bytes_;
  rpc::FetchHeader header_;  // The present attempt's.
  // The tensor that memory was prepared for; the same in each attempt.
  rpc::TensorMetadata expected_;
  bool header_seen_ = false;
  bool prepared_ = false;
  bool digest_wrong_ = false;
  uint64_t received_ = 0;
  Tensor tensor_;
  TensorShape shape_;
  std::string strings_;  // The payload of a string tensor.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_FETCH_WIRE_H_
