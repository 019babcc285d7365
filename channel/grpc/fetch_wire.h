#ifndef TRYST_CHANNEL_GRPC_FETCH_WIRE_H_
#define TRYST_CHANNEL_GRPC_FETCH_WIRE_H_

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "proto/transport.pb.h"
#include "rendezvous/tensor.h"

// How a tensor travels in FetchResponse messages. The payload of a fixed-size type is its
// bytes; of strings, what channel/string_codec.h makes of them.
namespace tryst {

inline constexpr char kFetchMethod[] = "/tryst.rpc.TransportService/FetchTensor";

// Most payload in one message: well below gRPC's default receive limit of 4 MiB, which
// therefore stays in force against peers that send more.
inline constexpr uint64_t kFetchChunkBytes = uint64_t{1} << 20;

// A tensor on its way out. The messages borrow its memory and keep it alive until gRPC
// has let go of them.
class OutgoingTensor {
 public:
  // Strings are copied once, into one block. kFailedPrecondition: the bytes are a device's.
  static absl::StatusOr<OutgoingTensor> Make(const Tensor& tensor, bool is_dead);

  const rpc::TensorMetadata& metadata() const { return metadata_; }
  uint64_t bytes() const { return metadata_.bytes(); }

  // A message with payload [offset, offset + bytes) and, if not null, `header`. The payload's
  // digest costs a pass over it. REQUIRES: within bytes().
  grpc::ByteBuffer Message(const rpc::FetchHeader* header, uint64_t offset, uint64_t bytes,
                           bool digest) const;

 private:
  rpc::TensorMetadata metadata_;
  Tensor tensor_;                               // Fixed-size types.
  std::shared_ptr<const std::string> strings_;  // kString.
  const char* payload_ = nullptr;
};

// A message that only says how the fetch ended.
grpc::ByteBuffer HeaderMessage(const rpc::FetchHeader& header);

// A tensor on its way in, over one or several attempts. The bytes are copied once, from
// gRPC's slices to where they stay. What it reads comes from a peer.
class IncomingTensor {
 public:
  // `destination`, where valid, takes the bytes; type and shape must be its own. Host memory.
  IncomingTensor(Tensor destination, uint64_t max_bytes)
      : destination_(std::move(destination)), max_bytes_(max_bytes) {}

  // The bytes are for somebody else, whose destination is this. False: they have begun to land
  // where they were to; Reset() then, and another attempt from the beginning.
  bool Redirect(const Tensor& destination) {
    if (prepared_ && (destination_.valid() || destination.valid())) return false;
    destination_ = destination;
    return true;
  }
  void Reset(Tensor destination) { *this = IncomingTensor(std::move(destination), max_bytes_); }

  // The next attempt begins: its first message has a header again.
  void StartAttempt() { header_seen_ = digest_wrong_ = false; }

  // kDataLoss: not what a producer sends. kResourceExhausted: over `max_bytes` or no memory.
  // kInvalidArgument: does not fit the destination. After an error, only destroy it; but for
  // digest_wrong(), after which another attempt may begin where the good bytes end.
  absl::Status Take(grpc::ByteBuffer* message);

  bool header_seen() const { return header_seen_; }
  const rpc::FetchHeader& header() const { return header_; }
  // Every byte of the tensor is there. Never so after the header of a failure.
  bool complete() const {
    return header_seen_ && header_.code() == 0 && received_ == expected_.bytes();
  }
  uint64_t received() const { return received_; }
  bool digest_wrong() const { return digest_wrong_; }

  // REQUIRES: complete(). kDataLoss: the strings do not add up.
  absl::StatusOr<Tensor> Finish();

 private:
  absl::Status TakeHeader(const rpc::FetchHeader& header);
  absl::Status Prepare(const rpc::TensorMetadata& metadata);
  absl::Status TakeChunk(google::protobuf::io::CodedInputStream* coded, uint32_t bytes,
                         absl::optional<uint32_t> digest);

  Tensor destination_;
  uint64_t max_bytes_;
  rpc::FetchHeader header_;       // The present attempt's.
  rpc::TensorMetadata expected_;  // What there is room for; the same in each attempt.
  bool header_seen_ = false;
  bool prepared_ = false;
  bool digest_wrong_ = false;
  uint64_t received_ = 0;
  Tensor tensor_;
  TensorShape shape_;
  std::string strings_;  // The payload of a kString.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_WIRE_H_
