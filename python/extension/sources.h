#ifndef TRYST_PYTHON_EXTENSION_SOURCES_H_
#define TRYST_PYTHON_EXTENSION_SOURCES_H_

#include <cstdint>
#include <vector>

#include "python/extension/python.h"
#include "rendezvous/dlpack_abi.h"

namespace tryst_python {

struct TypeRow;

// A CUDA stream, as Python's pair of a GPU's number and an address.
struct Stream {
  int32_t gpu;
  void* address;
  friend bool operator==(const Stream& a, const Stream& b) {
    return a.gpu == b.gpu && a.address == b.address;
  }
};

// The arrays that one call of Python's was given, as tensors of the library: numpy's by the buffer
// protocol and the number of their type, torch's and others' by DLPack's table of C functions
// where their type has one, the rest by __dlpack__ or by arrays.py. A tensor that it makes refers
// to the array's memory and keeps the array alive. Each library is asked for its current stream
// once for each GPU. REQUIRES of all: the interpreter's lock.
class Sources {
 public:
  static constexpr int kNoStream = -1;

  Sources() = default;
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources();

  // A Tensor gives its own. Lasts as long as this object and `source`. Null with an exception.
  tryst_tensor* Add(PyObject* source);
  // An object for arrays.tensor(): the Tensor of `source`. Null with an exception.
  PyObject* Wrap(PyObject* source);

  // The place in streams() of what the last Add() has to follow; kNoStream for host memory and for
  // a Tensor.
  int last_stream() const { return last_stream_; }
  const std::vector<Stream>& streams() const { return streams_; }

 private:
  struct Asked {
    const void* library;
    int32_t gpu;
    int stream;
  };
  tryst_tensor* Make(PyObject* source);
  tryst_tensor* OfTable(PyObject* source, const tryst::dlpack::DLExchangeApi* table);
  tryst_tensor* OfDevice(PyObject* source);
  PyObject* AskPython(PyObject* source);
  int FindAsked(const void* library, int32_t gpu) const;
  int Remember(const void* library, Stream stream);

  std::vector<tryst_tensor*> made_;
  std::vector<PyObject*> kept_;  // What arrays.py has made.
  std::vector<Stream> streams_;
  std::vector<Asked> asked_;
  int last_stream_ = kNoStream;
};

// What C does not know goes to `tensor`, called with (source): texts, arrays of objects. `stream`
// is called with (source, the GPU's number) and returns the stream's address. Both are kept.
void SetArrayHelpers(PyObject* tensor, PyObject* stream);

// A tensor of an object with a buffer or with __dlpack__, which is given `stream`, or of a DLPack
// capsule. Null with an exception.
tryst_tensor* FromProtocols(PyObject* object, PyObject* stream);
tryst_tensor* FromCapsule(PyObject* capsule);
// The memory of `tensor`, which `owner` keeps, as elements of another type of the same size.
tryst_tensor* ViewAs(tryst_tensor* tensor, PyObject* owner, const TypeRow& row);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_SOURCES_H_
