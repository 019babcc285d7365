#include "python/extension/dtypes.h"

#include <cstring>

#include "server/c/tryst.h"

namespace tryst_python {
namespace {

constexpr TypeRow kTypes[] = {
    {TRYST_FLOAT, "float32", "f", 2, 32},
    {TRYST_DOUBLE, "float64", "d", 2, 64},
    {TRYST_HALF, "float16", "e", 2, 16},
    {TRYST_INT8, "int8", "b", 0, 8},
    {TRYST_INT16, "int16", "h", 0, 16},
    {TRYST_INT32, "int32", "i", 0, 32},
    {TRYST_INT64, "int64", "q", 0, 64},
    {TRYST_INT64, "int64", "l", 0, 64},
    {TRYST_UINT8, "uint8", "B", 1, 8},
    {TRYST_UINT16, "uint16", "H", 1, 16},
    {TRYST_UINT32, "uint32", "I", 1, 32},
    {TRYST_UINT64, "uint64", "Q", 1, 64},
    {TRYST_UINT64, "uint64", "L", 1, 64},
    {TRYST_BOOL, "bool", "?", 6, 8},
    {TRYST_COMPLEX64, "complex64", "Zf", 5, 64},
    {TRYST_COMPLEX128, "complex128", "Zd", 5, 128},
    {TRYST_BFLOAT16, "bfloat16", nullptr, 4, 16},
    {TRYST_FLOAT8_E4M3FN, "float8_e4m3fn", nullptr, 10, 8},
    {TRYST_FLOAT8_E5M2, "float8_e5m2", nullptr, 12, 8},
    {TRYST_INT4, "int4", nullptr, 0, 4},
    {TRYST_UINT4, "uint4", nullptr, 1, 4},
};

}  // namespace

const TypeRow* RowOf(int32_t dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

const TypeRow* RowOfName(const char* name) {
  for (const TypeRow& row : kTypes) {
    if (std::strcmp(row.name, name) == 0) return &row;
  }
  return nullptr;
}

const TypeRow* RowOfFormat(const char* format) {
  if (format == nullptr) format = "B";
  const bool swapped = *format == '>' || *format == '!';
  if (*format != 0 && std::strchr("@=<>!", *format) != nullptr) ++format;
  if (std::strcmp(format, "c") == 0) format = "B";
  for (const TypeRow& row : kTypes) {
    if (row.format == nullptr || std::strcmp(row.format, format) != 0) continue;
    return swapped && row.bits > 8 ? nullptr : &row;
  }
  return nullptr;
}

}  // namespace tryst_python
