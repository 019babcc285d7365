#include "channel/compat/fetch_wire.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

namespace tryst {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kHeaderTag =
    (rpc::FetchResponse::kHeaderFieldNumber << 3) | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
constexpr uint32_t kChunkTag =
    (rpc::FetchResponse::kChunkFieldNumber << 3) | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;

constexpr uint32_t kDigestTag =
    (rpc::FetchResponse::kChunkCrc32CFieldNumber << 3) | WireFormatLite::WIRETYPE_FIXED32;

// Everything of a message except the chunk's bytes.
std::string Preamble(const rpc::FetchHeader* header, absl::optional<uint32_t> digest,
                     uint64_t chunk_bytes) {
  std::string out;
  google::protobuf::io::StringOutputStream stream(&out);
  CodedOutputStream coded(&stream);
  if (header != nullptr) {
    coded.WriteTag(kHeaderTag);
    coded.WriteVarint32(static_cast<uint32_t>(header->ByteSizeLong()));
    header->SerializeToCodedStream(&coded);
  }
  if (digest) {
    coded.WriteTag(kDigestTag);
    coded.WriteLittleEndian32(*digest);
  }
  if (chunk_bytes > 0) {
    coded.WriteTag(kChunkTag);
    coded.WriteVarint32(static_cast<uint32_t>(chunk_bytes));
  }
  coded.Trim();
  return out;
}

// Copies and computes the checksum in one pass. False: the message is cut short.
bool ReadSummed(CodedInputStream* coded, char* into, uint32_t bytes, uint32_t* crc) {
  while (bytes > 0) {
    const void* data = nullptr;
    int available = 0;
    if (!coded->GetDirectBufferPointer(&data, &available)) return false;
    const uint32_t part = std::min(bytes, static_cast<uint32_t>(available));
    *crc = CopyCrc32c(*crc, into, data, part);
    if (!coded->Skip(static_cast<int>(part))) return false;
    into += part;
    bytes -= part;
  }
  return true;
}

// Keeps the memory of a borrowed slice alive.
struct Keep {
  Tensor tensor;
  std::shared_ptr<const std::string> strings;
};

void Release(void* keep) { delete static_cast<Keep*>(keep); }

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the producer sent a malformed answer (FetchResponse): ", what));
}

}  // namespace

absl::StatusOr<OutgoingTensor> OutgoingTensor::Make(const Tensor& tensor, bool is_dead) {
  OutgoingTensor out;
  if (is_dead || !tensor.valid()) {
    out.metadata_.set_is_dead(is_dead);
    return out;
  }
  if (!tensor.space().host_readable()) {
    return absl::FailedPreconditionError(
        "a GPU's tensor was to be sent over gRPC before it was copied to the host: this is a bug "
        "of Tryst's");
  }
  out.metadata_.set_dtype(static_cast<uint32_t>(tensor.dtype()));
  for (int64_t dim : tensor.shape().dims()) out.metadata_.add_dims(dim);
  out.tensor_bytes_ = tensor.bytes();
  if (tensor.dtype() == DType::kString) {
    auto strings = std::make_shared<const std::string>(EncodeStrings(tensor));
    out.metadata_.set_bytes(strings->size());
    out.payload_ = strings->data();
    out.strings_ = std::move(strings);
  } else {
    out.metadata_.set_bytes(tensor.bytes());
    out.payload_ = tensor.data_as<char>();
    out.tensor_ = tensor;
  }
  return out;
}

grpc::ByteBuffer OutgoingTensor::Message(const rpc::FetchHeader* header, uint64_t offset,
                                         uint64_t bytes, bool digest) const {
  absl::optional<uint32_t> crc;
  if (digest && bytes > 0) crc = Crc32c(0, payload_ + offset, bytes);
  grpc::Slice slices[2] = {grpc::Slice(Preamble(header, crc, bytes))};
  if (bytes == 0) return grpc::ByteBuffer(slices, 1);
  slices[1] = grpc::Slice(const_cast<char*>(payload_ + offset), bytes, Release,
                          new Keep{tensor_, strings_});
  return grpc::ByteBuffer(slices, 2);
}

std::string OutgoingTensor::Parcel(const rpc::FetchHeader& header, bool digest) const {
  absl::optional<uint32_t> crc;
  if (digest && bytes() > 0) crc = Crc32c(0, payload_, bytes());
  return absl::StrCat(Preamble(&header, crc, bytes()), absl::string_view(payload_, bytes()));
}

grpc::ByteBuffer HeaderMessage(const rpc::FetchHeader& header) {
  grpc::Slice slice(Preamble(&header, absl::nullopt, 0));
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status IncomingTensor::Take(grpc::ByteBuffer* message) {
  grpc::ProtoBufferReader reader(message);
  if (!reader.status().ok()) return Malformed("gRPC cannot parse it");
  return TakeMessage(&reader);
}

absl::Status IncomingTensor::TakeParcel(absl::string_view message) {
  google::protobuf::io::ArrayInputStream stream(message.data(), static_cast<int>(message.size()));
  return TakeMessage(&stream);
}

absl::Status IncomingTensor::TakeMessage(google::protobuf::io::ZeroCopyInputStream* stream) {
  CodedInputStream coded(stream);
  coded.SetTotalBytesLimit(std::numeric_limits<int>::max());
  absl::optional<uint32_t> digest;
  while (const uint32_t tag = coded.ReadTag()) {
    uint32_t bytes = 0;
    if (tag == kDigestTag) {
      if (!coded.ReadLittleEndian32(&digest.emplace()))
        return Malformed("it ends in the middle of a field or of the tensor");
      continue;
    }
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&coded, tag))
        return Malformed("it ends in the middle of a field or of the tensor");
      continue;
    }
    if (!coded.ReadVarint32(&bytes) ||
        bytes > static_cast<uint32_t>(std::numeric_limits<int>::max()))
      return Malformed("a field has no length");
    if (tag == kHeaderTag) {
      if (header_seen_) return Malformed("it has two headers");
      rpc::FetchHeader header;
      const auto limit = coded.PushLimit(static_cast<int>(bytes));
      if (!header.MergeFromCodedStream(&coded) || !coded.ConsumedEntireMessage()) {
        return Malformed("its header cannot be read");
      }
      coded.PopLimit(limit);
      absl::Status taken = TakeHeader(header);
      if (!taken.ok()) return taken;
    } else if (tag == kChunkTag) {
      absl::Status taken = TakeChunk(&coded, bytes, std::exchange(digest, absl::nullopt));
      if (!taken.ok()) return taken;
    } else if (!coded.Skip(static_cast<int>(bytes))) {
      return Malformed("it ends in the middle of a field or of the tensor");
    }
  }
  if (!coded.ConsumedEntireMessage()) return Malformed("it has bytes that belong to no field");
  return header_seen_ ? absl::OkStatus() : Malformed("the first message has no header");
}

absl::Status IncomingTensor::TakeChunk(CodedInputStream* coded, uint32_t bytes,
                                       absl::optional<uint32_t> digest) {
  if (!header_seen_) return Malformed("bytes of the tensor come before the header");
  if (header_.code() != 0) {
    TRYST_REACHED("grpc: bytes of a tensor that does not come");
    return Malformed("it says that the fetch failed, and sends bytes all the same");
  }
  if (bytes > expected_.bytes() - received_) {
    TRYST_REACHED("grpc: more bytes than stated");
    return Malformed("it sends more bytes than it announced");
  }
  char* into = static_cast<char*>(tensor_.mutable_data());
  if (expected_.dtype() == static_cast<uint32_t>(DType::kString)) {
    // Grows with what really arrives, because the stated size is only a peer's word.
    try {
      strings_.resize(received_ + bytes);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for ", received_ + bytes, " bytes of strings"));
    }
    into = &strings_[0];
  }
  uint32_t crc = 0;
  const bool whole = digest ? ReadSummed(coded, into + received_, bytes, &crc)
                            : coded->ReadRaw(into + received_, static_cast<int>(bytes));
  if (!whole) return Malformed("it ends in the middle of a field or of the tensor");
  if (digest && crc != *digest) {
    TRYST_REACHED("grpc: a wrong digest");
    digest_wrong_ = true;
    return absl::DataLossError(
        absl::StrCat("bytes ", received_, " to ", received_ + bytes, " of ", expected_.bytes(),
                     " were changed on their way: their digest is wrong; if this repeats, look for "
                     "a faulty NIC, cable or memory, or use TLS"));
  }
  received_ += bytes;
  return absl::OkStatus();
}

absl::Status IncomingTensor::TakeHeader(const rpc::FetchHeader& header) {
  // In the header of a failure, the description of a tensor is ignored: nothing was allocated for
  // it.
  if (header.code() == 0 && prepared_) {  // An attempt that continues an earlier one.
    if (header.tensor().SerializeAsString() != expected_.SerializeAsString()) {
      TRYST_REACHED("grpc: another tensor than the attempt before");
      return Malformed("it brings another tensor than the first attempt at this fetch did");
    }
  } else if (header.code() == 0) {
    absl::Status prepared = Prepare(header.tensor());
    if (!prepared.ok()) return prepared;
    expected_ = header.tensor();
    prepared_ = true;
  }
  header_ = header;
  header_seen_ = true;
  return absl::OkStatus();
}

absl::Status IncomingTensor::Prepare(const rpc::TensorMetadata& metadata) {
  if (metadata.is_dead() || metadata.dtype() == 0) {
    return metadata.bytes() == 0 ? absl::OkStatus()
                                 : Malformed("it sends bytes of a dead tensor, which has none");
  }
  const absl::Status may_be = FitsLimit(metadata.bytes(), max_bytes_);
  if (!may_be.ok()) return may_be;
  const DType dtype = static_cast<DType>(metadata.dtype());
  if (metadata.dtype() > std::numeric_limits<uint8_t>::max() || !DTypeValid(dtype)) {
    return Malformed(absl::StrCat("the tensor has the unknown type ", metadata.dtype()));
  }
  const std::vector<int64_t> dims(metadata.dims().begin(), metadata.dims().end());
  absl::StatusOr<TensorShape> shape = TensorShape::Make(dims);
  if (!shape.ok()) return Malformed(shape.status().message());
  shape_ = *shape;
  if (destination_.valid() && (destination_.dtype() != dtype || destination_.shape() != shape_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor that came is ", DTypeName(dtype), shape_.ToString(),
                     " and the receive's destination is ", DTypeName(destination_.dtype()),
                     destination_.shape().ToString()));
  }
  if (dtype == DType::kString) {
    if (metadata.bytes() / 8 < static_cast<uint64_t>(shape_.elements())) {
      return Malformed("there are fewer strings than the shape says");
    }
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> bytes = TensorBytes(dtype, shape_);
  if (!bytes.ok() || *bytes != metadata.bytes()) {
    TRYST_REACHED("grpc: bytes that the shape has not");
    return Malformed("the tensor's length does not match its type and shape");
  }
  absl::StatusOr<Tensor> tensor =
      destination_.valid() ? destination_ : Tensor::Allocate(dtype, shape_);
  if (!tensor.ok()) return tensor.status();
  tensor_ = *std::move(tensor);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> IncomingTensor::Finish() {
  if (expected_.dtype() != static_cast<uint32_t>(DType::kString)) return std::move(tensor_);
  absl::StatusOr<Tensor> tensor = DecodeStrings(strings_, shape_);
  if (!tensor.ok() || !destination_.valid()) return tensor;
  const absl::Span<std::string> from = tensor->mutable_strings();
  std::move(from.begin(), from.end(), destination_.mutable_strings().begin());
  return destination_;
}

}  // namespace tryst
