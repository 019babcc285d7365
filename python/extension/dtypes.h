#ifndef TRYST_PYTHON_EXTENSION_DTYPES_H_
#define TRYST_PYTHON_EXTENSION_DTYPES_H_

#include <cstdint>

namespace tryst_python {

// A type, as Python's struct module, DLPack and the library name it.
struct TypeRow {
  int32_t dtype;
  const char* name;    // The name in numpy and ml_dtypes.
  const char* format;  // Null: the buffer protocol has no such type.
  uint8_t code;        // DLPack's code.
  uint8_t bits;
};

// Null where there is none.
const TypeRow* RowOf(int32_t dtype);
const TypeRow* RowOfName(const char* name);
// By a format of the buffer protocol. Accepts the native byte order only, except for types of a
// single byte. Null stands for bytes.
const TypeRow* RowOfFormat(const char* format);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_DTYPES_H_
