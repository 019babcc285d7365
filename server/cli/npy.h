#ifndef TRYST_SERVER_CLI_NPY_H_
#define TRYST_SERVER_CLI_NPY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor.h"

namespace tryst {

// Reads and writes NumPy's array files, versions 1 to 3: little-endian, in C order, of a type with
// a fixed size that NumPy has. bfloat16 and 8-bit floats are written as unsigned integers of their
// size.

// kInvalidArgument says what is wrong.
absl::StatusOr<Tensor> ParseNpy(absl::string_view bytes);
absl::StatusOr<std::string> PrintNpy(const Tensor& tensor);

absl::StatusOr<Tensor> ReadNpy(const std::string& path);
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_NPY_H_
