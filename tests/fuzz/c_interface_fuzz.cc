// The C interface with unchecked types, ranks, dimensions and names. It must return a status or a
// valid object, and never crash.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "server/c/tryst.h"

namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && size_ > 0; ++i, ++data_, --size_) value = value << 8 | *data_;
    return value;
  }
  std::string Text() {
    const size_t bytes = static_cast<size_t>(Number(1));
    std::string text;
    for (size_t i = 0; i < bytes && size_ > 0; ++i, ++data_, --size_) {
      text += static_cast<char>(*data_);
    }
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void TryTensor(Input* input) {
  const auto dtype = static_cast<tryst_dtype>(input->Number(1));
  int64_t dims[12];
  const size_t rank = input->Number(1) % 12;
  // Either small enough to be allocated, or larger than any memory.
  for (size_t i = 0; i < rank; ++i) {
    dims[i] = static_cast<int64_t>(input->Number(1));
    if (dims[i] == 255) dims[i] = INT64_MAX - static_cast<int64_t>(input->Number(1));
    if (dims[i] == 254) dims[i] = -1;
    if (dims[i] > 16 && dims[i] < 254) dims[i] %= 4;
  }
  tryst_tensor* tensor = nullptr;
  tryst_status* status = tryst_tensor_allocate(dtype, dims, rank, &tensor);
  if (status == nullptr) {
    if (tensor == nullptr || tryst_tensor_rank(tensor) != rank) abort();
    for (size_t i = 0; i < rank; ++i) {
      if (tryst_tensor_dim(tensor, i) != dims[i]) abort();
    }
    const uint64_t bytes = tryst_tensor_bytes(tensor);
    if (bytes > 0 && bytes < (1 << 20) && tryst_tensor_data(tensor) != nullptr) {
      memset(tryst_tensor_data(tensor), 1, bytes);
    }
  } else if (tryst_status_code(status) == TRYST_OK || tryst_status_message(status) == nullptr) {
    abort();
  }
  tryst_tensor_free(tensor);
  tryst_status_free(status);
}

void TryKey(Input* input) {
  const std::string src = input->Text();
  const uint64_t incarnation = input->Number(8);
  const std::string dst = input->Text();
  const std::string edge = input->Text();
  char* key = nullptr;
  tryst_status* status = tryst_key(src.c_str(), incarnation, dst.c_str(), edge.c_str(),
                                   input->Number(8), input->Number(8), &key);
  if ((status == nullptr) != (key != nullptr)) abort();
  tryst_string_free(key);
  tryst_status_free(status);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if (input.Number(1) % 2 == 0) {
    TryTensor(&input);
  } else {
    TryKey(&input);
  }
  return 0;
}
