#include "channel/string_codec.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr size_t kLengthBytes = 8;

void StoreLength(char* at, uint64_t length) {
  for (size_t i = 0; i < kLengthBytes; ++i) at[i] = static_cast<char>(length >> (8 * i));
}

uint64_t LoadLength(const char* at) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(at[i])} << (8 * i);
  }
  return length;
}

}  // namespace

std::string EncodeStrings(const Tensor& tensor) {
  const absl::Span<const std::string> elements = tensor.strings();
  std::string out(elements.size() * kLengthBytes, '\0');
  size_t total = out.size();
  for (const std::string& element : elements) total += element.size();
  out.reserve(total);
  for (size_t i = 0; i < elements.size(); ++i) {
    StoreLength(&out[i * kLengthBytes], elements[i].size());
    out += elements[i];
  }
  return out;
}

absl::StatusOr<Tensor> DecodeStrings(absl::string_view bytes, const TensorShape& shape) {
  const uint64_t count = static_cast<uint64_t>(shape.elements());
  if (count > bytes.size() / kLengthBytes) {
    return absl::DataLossError(
        "the peer sent a malformed string tensor: it has fewer lengths than elements");
  }
  uint64_t left = bytes.size() - count * kLengthBytes;
  const char* at = bytes.data() + count * kLengthBytes;
  std::vector<std::string> elements;
  try {
    elements.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t length = LoadLength(bytes.data() + i * kLengthBytes);
      if (length > left)
        return absl::DataLossError(
            "the peer sent a malformed string tensor: a string reaches over the end");
      elements.emplace_back(at, length);
      at += length;
      left -= length;
    }
  } catch (const std::bad_alloc&) {  // A peer chose the size.
    return absl::ResourceExhaustedError(
        absl::StrCat("the process has no memory for the peer's tensor of ", count, " strings of ",
                     bytes.size(), " bytes"));
  }
  if (left != 0)
    return absl::DataLossError(
        "the peer sent a malformed string tensor: there are bytes behind the last string");
  return Tensor::FromStrings(std::move(elements), shape);
}

}  // namespace tryst
