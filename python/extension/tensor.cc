#include "python/extension/tensor.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/dtypes.h"
#include "python/extension/sources.h"
#include "rendezvous/dlpack_abi.h"

namespace tryst_python {
namespace {

using Versioned = tryst::dlpack::DLManagedTensorVersioned;

constexpr char kOld[] = "dltensor";
constexpr char kNew[] = "dltensor_versioned";

struct TensorObject {
  PyObject_HEAD tryst_tensor* tensor;
};

PyTypeObject* tensor_type = nullptr;

tryst_tensor* Get(PyObject* self) { return reinterpret_cast<TensorObject*>(self)->tensor; }

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"source", "stream", nullptr};
  PyObject* source;
  PyObject* stream = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", const_cast<char**>(names), &source,
                                   &stream)) {
    return nullptr;
  }
  (void)type;
  const GivesBack gives_back;
  if (IsTensor(source)) return Py_NewRef(source);
  tryst_tensor* const tensor =
      PyCapsule_CheckExact(source) ? FromCapsule(source) : FromProtocols(source, stream);
  return tensor == nullptr ? nullptr : WrapTensor(tensor);
}

void Dealloc(PyObject* self) {
  const GivesBack gives_back;
  PyTypeObject* const type = Py_TYPE(self);
  tryst_tensor_free(Get(self));
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* Shape(PyObject* self, void*) {
  const size_t rank = tryst_tensor_rank(Get(self));
  Ref shape(PyTuple_New(static_cast<Py_ssize_t>(rank)));
  for (size_t i = 0; shape && i < rank; ++i) {
    PyObject* const dim = PyLong_FromLongLong(tryst_tensor_dim(Get(self), i));
    if (dim == nullptr || PyTuple_SetItem(shape.get(), static_cast<Py_ssize_t>(i), dim) != 0) {
      return nullptr;
    }
  }
  return shape.release();
}

PyObject* DtypeName(PyObject* self, void*) {
  const int32_t dtype = tryst_tensor_dtype(Get(self));
  const TypeRow* const row = RowOf(dtype);
  return PyUnicode_FromString(row != nullptr ? row->name : tryst_dtype_name(dtype));
}

PyObject* Bytes(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(tryst_tensor_bytes(Get(self)));
}

PyObject* ReadOnly(PyObject* self, void*) {
  return PyBool_FromLong(tryst_tensor_is_read_only(Get(self)));
}

PyObject* DeviceOf(PyObject* self, PyObject*) {
  const int32_t gpu = tryst_tensor_gpu(Get(self));
  return gpu < 0 ? Py_BuildValue("(ii)", 1, 0) : Py_BuildValue("(ii)", 2, gpu);
}

void DropNew(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kNew)) return;
  auto* const managed = static_cast<Versioned*>(PyCapsule_GetPointer(capsule, kNew));
  managed->deleter(managed);
}

void DropOld(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kOld)) return;
  struct Old {
    tryst::dlpack::DLTensor tensor;
    void* context;
    void (*deleter)(Old*);
  };
  auto* const managed = static_cast<Old*>(PyCapsule_GetPointer(capsule, kOld));
  managed->deleter(managed);
}

// Copies the elements into memory that only the caller has; null with an exception.
tryst_tensor* CopyOf(tryst_tensor* from) {
  if (tryst_tensor_gpu(from) >= 0) {
    PyErr_SetString(PyExc_BufferError,
                    "Tryst does not copy tensors in GPU memory: use clone() of your library "
                    "(torch, cupy, jax)");
    return nullptr;
  }
  std::vector<int64_t> dims;
  for (size_t i = 0; i < tryst_tensor_rank(from); ++i) dims.push_back(tryst_tensor_dim(from, i));
  tryst_tensor* copied;
  if (Raised(tryst_tensor_allocate(static_cast<tryst_dtype>(tryst_tensor_dtype(from)), dims.data(),
                                   dims.size(), &copied))) {
    return nullptr;
  }
  const WithoutGil without;
  if (const size_t bytes = tryst_tensor_bytes(from); bytes != 0) {
    std::memcpy(tryst_tensor_data(copied), tryst_tensor_data(from), bytes);
  }
  return copied;
}

// When a receive has ended its bytes are there, so no stream has to wait for them.
PyObject* Dlpack(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"stream", "max_version", "dl_device", "copy", nullptr};
  PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", const_cast<char**>(names), &stream,
                                   &max_version, &device, &copy)) {
    return nullptr;
  }
  if (copy == Py_True) {
    tryst_tensor* const copied = CopyOf(Get(self));
    const Ref wrapped(copied == nullptr ? nullptr : WrapTensor(copied));
    const Ref rest(wrapped ? PyDict_Copy(kwargs) : nullptr);
    if (!rest || PyDict_DelItemString(rest.get(), "copy") != 0) return nullptr;
    return Dlpack(wrapped.get(), args, rest.get());
  }
  if (device != Py_None) {
    const Ref own(DeviceOf(self, nullptr));
    const int same = own ? PyObject_RichCompareBool(own.get(), device, Py_EQ) : -1;
    if (same < 0) return nullptr;
    if (same == 0) {
      PyErr_SetString(PyExc_BufferError,
                      "the tensor is on another device than the call asks for, and Tryst does not "
                      "copy between devices: copy the tensor with your library (torch, cupy, jax)");
      return nullptr;
    }
  }
  long major = 0;
  if (max_version != Py_None) {
    const Ref first(PySequence_GetItem(max_version, 0));
    if (!first) return nullptr;
    major = PyLong_AsLong(first.get());
    if (major == -1 && PyErr_Occurred()) return nullptr;
  }
  if (major >= 1) {
    DLManagedTensorVersioned* managed;
    if (Raised(tryst_tensor_to_dlpack(Get(self), &managed))) return nullptr;
    PyObject* const capsule = PyCapsule_New(managed, kNew, DropNew);
    if (capsule == nullptr) {
      reinterpret_cast<Versioned*>(managed)->deleter(reinterpret_cast<Versioned*>(managed));
    }
    return capsule;
  }
  if (tryst_tensor_is_read_only(Get(self))) {
    PyErr_SetString(PyExc_BufferError,
                    "the tensor is read-only, and DLPack 0.x cannot mark it so: call "
                    "__dlpack__(max_version=(1, 0)), or use numpy()");
    return nullptr;
  }
  DLManagedTensor* managed;
  if (Raised(tryst_tensor_to_dlpack0(Get(self), &managed))) return nullptr;
  return PyCapsule_New(managed, kOld, DropOld);
}

// The shape and the strides of a view.
struct ViewParts {
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  tryst_tensor* const tensor = Get(self);
  const TypeRow* const row = RowOf(tryst_tensor_dtype(tensor));
  const char* trouble = nullptr;
  if (row == nullptr || row->format == nullptr) {
    trouble = "the buffer protocol has no elements of this type: use numpy(), or DLPack";
  } else if (tryst_tensor_gpu(tensor) >= 0) {
    trouble = "the tensor is in a GPU's memory: use DLPack";
  } else if ((flags & PyBUF_WRITABLE) != 0 && tryst_tensor_is_read_only(tensor)) {
    trouble = "the tensor is read-only: others read the same memory";
  }
  if (trouble != nullptr) {
    PyErr_SetString(PyExc_BufferError, trouble);
    return -1;
  }
  const size_t rank = tryst_tensor_rank(tensor);
  auto parts = std::make_unique<ViewParts>();
  parts->shape.resize(rank);
  parts->strides.resize(rank);
  const Py_ssize_t item = row->bits / 8;
  Py_ssize_t stride = item;
  for (size_t i = rank; i-- > 0;) {
    parts->shape[i] = static_cast<Py_ssize_t>(tryst_tensor_dim(tensor, i));
    parts->strides[i] = stride;
    stride *= parts->shape[i];
  }
  static char nothing;
  view->buf = tryst_tensor_bytes(tensor) == 0 ? &nothing : tryst_tensor_data(tensor);
  view->len = static_cast<Py_ssize_t>(tryst_tensor_bytes(tensor));
  view->itemsize = item;
  view->readonly = tryst_tensor_is_read_only(tensor);
  view->ndim = static_cast<int>(rank);
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(row->format) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? parts->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? parts->strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = parts.release();
  view->obj = Py_NewRef(self);
  return 0;
}

void ReleaseBuffer(PyObject*, Py_buffer* view) { delete static_cast<ViewParts*>(view->internal); }

// Shows the memory as elements of another type of the same size.
PyObject* View(PyObject* self, PyObject* name) {
  const Ref text(PyUnicode_AsUTF8String(name));
  if (!text) return nullptr;
  const TypeRow* const to = RowOfName(PyBytes_AsString(text.get()));
  const TypeRow* const from = RowOf(tryst_tensor_dtype(Get(self)));
  if (to == nullptr || from == nullptr || (to->bits + 7) / 8 != (from->bits + 7) / 8) {
    PyErr_Format(PyExc_ValueError,
                 "%U is not a type with elements of the same size as the tensor's", name);
    return nullptr;
  }
  tryst_tensor* const tensor = ViewAs(Get(self), self, *to);
  return tensor == nullptr ? nullptr : WrapTensor(tensor);
}

// The strings of a tensor of strings, row by row.
PyObject* Strings(PyObject* self, PyObject*) {
  Ref list(PyList_New(0));
  size_t count = 1;
  for (size_t i = 0; i < tryst_tensor_rank(Get(self)); ++i) {
    count *= static_cast<size_t>(tryst_tensor_dim(Get(self), i));
  }
  for (size_t i = 0; list && i < count; ++i) {
    const char* text;
    size_t size;
    if (Raised(tryst_tensor_string(Get(self), i, &text, &size))) return nullptr;
    const Ref bytes(PyBytes_FromStringAndSize(text, static_cast<Py_ssize_t>(size)));
    if (!bytes || PyList_Append(list.get(), bytes.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* OfStrings(PyObject*, PyObject* args) {
  PyObject *list, *dims;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &list, &PyTuple_Type, &dims)) return nullptr;
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (Py_ssize_t i = 0; i < PyTuple_Size(dims); ++i) {
    shape.push_back(PyLong_AsLongLong(PyTuple_GetItem(dims, i)));
    if (PyErr_Occurred()) return nullptr;
    elements *= shape.back();
  }
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    char* text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &text, &size) != 0) return nullptr;
    texts.push_back(text);
    sizes.push_back(static_cast<size_t>(size));
  }
  if (elements != static_cast<int64_t>(texts.size())) {
    PyErr_Format(
        PyExc_ValueError,
        "the shape has %lld elements, and %zu strings were given: give one string for each element",
        static_cast<long long>(elements), texts.size());
    return nullptr;
  }
  tryst_tensor* tensor;
  if (Raised(
          tryst_tensor_strings(texts.data(), sizes.data(), shape.data(), shape.size(), &tensor))) {
    return nullptr;
  }
  return WrapTensor(tensor);
}

PyMethodDef kMethods[] = {
    {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Dlpack)),
     METH_VARARGS | METH_KEYWORDS, "The tensor as a DLPack capsule, without a copy."},
    {"__dlpack_device__", DeviceOf, METH_NOARGS, "DLPack's (device type, number)."},
    {"_view", View, METH_O, nullptr},
    {"_strings", Strings, METH_NOARGS, nullptr},
    {"_of_strings", OfStrings, METH_VARARGS | METH_STATIC, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef kFields[] = {
    {"shape", Shape, nullptr, "The dimensions, outermost first.", nullptr},
    {"dtype", DtypeName, nullptr, "The name of the elements' type, as numpy has it.", nullptr},
    {"nbytes", Bytes, nullptr, "How many bytes the elements take.", nullptr},
    {"readonly", ReadOnly, nullptr, "Whether others read the same memory.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {Py_tp_getset, kFields},
    {Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
    {0, nullptr},
};
PyType_Spec kSpec = {"tryst._tryst.Tensor", sizeof(TensorObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

PyObject* MakeTensorType() {
  tensor_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return reinterpret_cast<PyObject*>(tensor_type);
}

int32_t TypeNumber(const char* name) {
  const TypeRow* const row = RowOfName(name);
  return row == nullptr ? 0 : row->dtype;
}

bool IsTensor(PyObject* object) { return PyObject_TypeCheck(object, tensor_type) != 0; }

PyObject* WrapTensor(tryst_tensor* tensor) {
  auto* const self = PyObject_New(TensorObject, tensor_type);
  if (self == nullptr) {
    tryst_tensor_free(tensor);
    return nullptr;
  }
  self->tensor = tensor;
  return reinterpret_cast<PyObject*>(self);
}

tryst_tensor* TensorIn(PyObject* object) { return Get(object); }

}  // namespace tryst_python
