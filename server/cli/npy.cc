#include "server/cli/npy.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tryst {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);

struct TypeRow {
  const char* descr;
  DType dtype;
};
// A type's first row is what we write; all rows are read.
constexpr TypeRow kTypes[] = {
    {"<f4", DType::kFloat},      {"<f8", DType::kDouble},       {"<f2", DType::kHalf},
    {"|i1", DType::kInt8},       {"<i2", DType::kInt16},        {"<i4", DType::kInt32},
    {"<i8", DType::kInt64},      {"|u1", DType::kUint8},        {"<u2", DType::kUint16},
    {"<u4", DType::kUint32},     {"<u8", DType::kUint64},       {"|b1", DType::kBool},
    {"<c8", DType::kComplex64},  {"<c16", DType::kComplex128},  {"<u2", DType::kBfloat16},
    {"|u1", DType::kFloat8E5m2}, {"|u1", DType::kFloat8E4m3fn},
};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("it is no .npy file that Tryst can read: ", what));
}

// The text after 'name': in the header's dictionary.
absl::string_view Value(absl::string_view header, absl::string_view name) {
  const size_t at = header.find(absl::StrCat("'", name, "':"));
  if (at == absl::string_view::npos) return "";
  return absl::StripLeadingAsciiWhitespace(header.substr(at + name.size() + 3));
}

absl::StatusOr<TensorShape> ParseShape(absl::string_view text) {
  const size_t close = text.find(')');
  if (!absl::ConsumePrefix(&text, "(") || close == absl::string_view::npos) {
    return Bad("its header has no shape");
  }
  std::vector<int64_t> dims;
  for (absl::string_view dim :
       absl::StrSplit(text.substr(0, close - 1), ',', absl::SkipWhitespace())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(dim, &value))
      return Bad(absl::StrCat("the shape in its header has the dimension '", dim, "'"));
    dims.push_back(value);
  }
  return TensorShape::Make(dims);
}

}  // namespace

absl::StatusOr<Tensor> ParseNpy(absl::string_view bytes) {
  if (!absl::ConsumePrefix(&bytes, kMagic) || bytes.size() < 4)
    return Bad("a .npy file begins with other bytes");
  const int version = bytes[0];
  size_t header_bytes = 0;
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (version < 1 || version > 3 || bytes.size() < 2 + length_bytes)
    return Bad("its version of the format is unknown");
  for (size_t i = 0; i < length_bytes; ++i) {
    header_bytes |= static_cast<size_t>(static_cast<unsigned char>(bytes[2 + i])) << (8 * i);
  }
  bytes.remove_prefix(2 + length_bytes);
  if (header_bytes > bytes.size()) return Bad("it ends within its header");
  const absl::string_view header = bytes.substr(0, header_bytes);
  bytes.remove_prefix(header_bytes);
  if (!absl::StartsWith(Value(header, "fortran_order"), "False"))
    return Bad("it is in Fortran order: write numpy.ascontiguousarray(array)");
  DType dtype = DType::kInvalid;
  for (const TypeRow& row : kTypes) {
    if (absl::StartsWith(Value(header, "descr"), absl::StrCat("'", row.descr, "'"))) {
      dtype = row.dtype;
      break;
    }
  }
  if (dtype == DType::kInvalid)
    return Bad(
        "the type of its elements is not one that is supported (numbers and bool, little-endian)");
  const absl::StatusOr<TensorShape> shape = ParseShape(Value(header, "shape"));
  if (!shape.ok()) return Bad(shape.status().message());
  const absl::StatusOr<uint64_t> want = TensorBytes(dtype, *shape);
  if (!want.ok() || *want != bytes.size()) {
    return Bad(
        absl::StrCat(bytes.size(), " bytes of data do not fit the shape ", shape->ToString()));
  }
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, *shape);
  if (!tensor.ok()) return tensor;
  if (!bytes.empty()) std::memcpy(tensor->mutable_data(), bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<std::string> PrintNpy(const Tensor& tensor) {
  const char* descr = nullptr;
  for (const TypeRow& row : kTypes) {
    if (row.dtype == tensor.dtype()) {
      descr = row.descr;
      break;
    }
  }
  if (descr == nullptr || !tensor.space().host_readable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", DTypeName(tensor.dtype()),
        " tensor cannot be written as a .npy file, which holds numbers in host memory"));
  }
  std::string shape;
  for (int64_t dim : tensor.shape().dims()) absl::StrAppend(&shape, dim, ", ");
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", shape, "), }");
  // The format wants the data at a multiple of 64.
  header.append(63 - (kMagic.size() + 4 + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string out = absl::StrCat(kMagic, absl::string_view("\x01\x00", 2));
  out.push_back(static_cast<char>(header.size() & 0xff));
  out.push_back(static_cast<char>(header.size() >> 8));
  out += header;
  if (tensor.bytes() > 0) out.append(tensor.data_as<char>(), tensor.bytes());
  return out;
}

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  absl::StatusOr<Tensor> tensor = ParseNpy(text.str());
  if (!tensor.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot use ", path, ": ", tensor.status().message()));
  }
  return tensor;
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  absl::StatusOr<std::string> text = PrintNpy(tensor);
  if (!text.ok()) return text.status();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text->data(), static_cast<std::streamsize>(text->size()));
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace tryst
