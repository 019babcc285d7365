#include "python/extension/tensor.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "python/extension/deferred.h"
#include "rendezvous/dlpack_abi.h"

namespace tryst_python {
namespace {

using tryst::dlpack::DLDataType;
using Versioned = tryst::dlpack::DLManagedTensorVersioned;

constexpr char kOld[] = "dltensor";
constexpr char kOldUsed[] = "used_dltensor";
constexpr char kNew[] = "dltensor_versioned";
constexpr char kNewUsed[] = "used_dltensor_versioned";

struct TensorObject {
  PyObject_HEAD tryst_tensor* tensor;
};

PyTypeObject* tensor_type = nullptr;

tryst_tensor* Get(PyObject* self) { return reinterpret_cast<TensorObject*>(self)->tensor; }

// A type, as Python's struct module, DLPack and the library name it.
struct TypeRow {
  int32_t dtype;
  const char* name;    // The name in numpy and ml_dtypes.
  const char* format;  // Null: the buffer protocol has no such type.
  uint8_t code;        // DLPack's code.
  uint8_t bits;
};
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

const TypeRow* RowOf(int32_t dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

// Accepts the native byte order only, except for types of a single byte.
const TypeRow* RowOfFormat(const char* format) {
  if (format == nullptr) format = "B";
  const bool swapped = *format == '>' || *format == '!';
  if (strchr("@=<>!", *format) != nullptr && *format != 0) ++format;
  if (std::strcmp(format, "c") == 0) format = "B";
  for (const TypeRow& row : kTypes) {
    if (row.format == nullptr || std::strcmp(row.format, format) != 0) continue;
    return swapped && row.bits > 8 ? nullptr : &row;
  }
  return nullptr;
}

// ---- Python objects that the library holds ----

// A tensor of another library, in the layout that ours takes. Its deleter runs on any thread, so
// the Python object is given back later.
struct Borrowed : Deferred {
  Borrowed() {
    managed.version = {1, 0};
    managed.manager_ctx = static_cast<Deferred*>(this);
    managed.deleter = [](Versioned* self) { Defer(static_cast<Deferred*>(self->manager_ctx)); };
  }
  Versioned managed{};
};

struct BorrowedBuffer final : Borrowed {
  void GiveBack() override { PyBuffer_Release(&view); }
  Py_buffer view{};
};

struct BorrowedCapsule final : Borrowed {
  void GiveBack() override {
    if (is_versioned) {
      auto* const from = static_cast<Versioned*>(taken);
      if (from->deleter != nullptr) from->deleter(from);
      return;
    }
    struct Old {
      tryst::dlpack::DLTensor tensor;
      void* context;
      void (*deleter)(Old*);
    };
    auto* const from = static_cast<Old*>(taken);
    if (from->deleter != nullptr) from->deleter(from);
  }
  bool is_versioned = false;
  void* taken = nullptr;
};

struct BorrowedObject final : Borrowed {
  void GiveBack() override { Py_DECREF(object); }
  PyObject* object = nullptr;
  std::vector<int64_t> shape;
};

tryst_tensor* Import(Versioned* managed) {
  tryst_tensor* tensor = nullptr;
  if (Raised(tryst_tensor_from_dlpack(reinterpret_cast<DLManagedTensorVersioned*>(managed),
                                      &tensor))) {
    return nullptr;
  }
  return tensor;
}

tryst_tensor* OfBuffer(PyObject* object) {
  auto borrowed = std::make_unique<BorrowedBuffer>();
  Py_buffer* const view = &borrowed->view;
  if (PyObject_GetBuffer(object, view, PyBUF_RECORDS_RO) != 0) return nullptr;
  const TypeRow* const row = RowOfFormat(view->format);
  tryst_tensor* tensor = nullptr;
  if (row == nullptr || view->itemsize != row->bits / 8) {
    PyErr_Format(PyExc_TypeError,
                 "elements of format '%s' cannot be sent: use numbers in this machine's byte order",
                 view->format);
  } else {
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes are 64 bits wide");
    std::vector<int64_t> strides(static_cast<size_t>(view->ndim));
    bool whole = true;
    for (int i = 0; i < view->ndim && view->strides != nullptr; ++i) {
      whole = whole && view->strides[i] % view->itemsize == 0;
      strides[static_cast<size_t>(i)] = view->strides[i] / view->itemsize;
    }
    tryst::dlpack::DLTensor& to = borrowed->managed.dl_tensor;
    borrowed->managed.flags = view->readonly ? tryst::dlpack::kFlagReadOnly : 0;
    to.data = view->buf;
    to.device = {tryst::dlpack::kDLCPU, 0};
    to.ndim = view->ndim;
    to.dtype = {row->code, row->bits, 1};
    to.shape = reinterpret_cast<int64_t*>(view->shape);
    to.strides = view->strides == nullptr ? nullptr : strides.data();
    if (view->len / (view->itemsize == 0 ? 1 : view->itemsize) == 0) to.strides = nullptr;
    if (whole) {
      tensor = Import(&borrowed->managed);
      to.strides = nullptr;  // They are checked, and no longer needed.
    } else {
      PyErr_SetString(
          PyExc_ValueError,
          "strides that are no multiple of an element: make it contiguous first, row by row");
    }
  }
  if (tensor == nullptr) {
    PyBuffer_Release(view);
  } else {
    (void)borrowed.release();
  }
  return tensor;
}

tryst_tensor* OfCapsule(PyObject* capsule) {
  auto borrowed = std::make_unique<BorrowedCapsule>();
  const bool is_versioned = PyCapsule_IsValid(capsule, kNew) != 0;
  if (!is_versioned && !PyCapsule_IsValid(capsule, kOld)) {
    PyErr_SetString(PyExc_TypeError, "__dlpack__ gave no DLPack capsule, or one that was used");
    return nullptr;
  }
  borrowed->is_versioned = is_versioned;
  borrowed->taken = PyCapsule_GetPointer(capsule, is_versioned ? kNew : kOld);
  if (borrowed->taken == nullptr) return nullptr;
  if (is_versioned) {
    const auto* const from = static_cast<const Versioned*>(borrowed->taken);
    borrowed->managed.version = from->version;
    if (from->version.major == 1) {  // The layout of another version is unknown.
      borrowed->managed.flags = from->flags;
      borrowed->managed.dl_tensor = from->dl_tensor;
    }
  } else {
    borrowed->managed.dl_tensor = *static_cast<const tryst::dlpack::DLTensor*>(borrowed->taken);
  }
  tryst_tensor* const tensor = Import(&borrowed->managed);
  if (tensor == nullptr) return nullptr;
  PyCapsule_SetName(capsule, is_versioned ? kNewUsed : kOldUsed);
  (void)borrowed.release();
  return tensor;
}

tryst_tensor* OfDlpack(PyObject* object, PyObject* stream) {
  const Ref method(PyObject_GetAttrString(object, "__dlpack__"));
  if (!method) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%R has no buffer and no __dlpack__: it is no tensor",
                 reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return nullptr;
  }
  const Ref empty(PyTuple_New(0));
  const Ref names(Py_BuildValue("{s:(ii)}", "max_version", 1, 1));
  if (!empty || !names) return nullptr;
  if (stream != Py_None && PyDict_SetItemString(names.get(), "stream", stream) != 0) return nullptr;
  Ref capsule(PyObject_Call(method.get(), empty.get(), names.get()));
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {  // It predates DLPack 1.0.
    PyErr_Clear();
    if (PyDict_DelItemString(names.get(), "max_version") != 0) return nullptr;
    capsule = Ref(PyObject_Call(method.get(), empty.get(), names.get()));
  }
  return capsule ? OfCapsule(capsule.get()) : nullptr;
}

// ---- The type ----

// If an object has both a buffer and DLPack, the buffer is tried first: it is quicker and tells
// what is read-only. But it has no bfloat16 and no GPU memory.
tryst_tensor* OfAny(PyObject* object, PyObject* stream) {
  if (stream == Py_None && PyObject_CheckBuffer(object)) {
    tryst_tensor* const tensor = OfBuffer(object);
    const bool is_done = tensor != nullptr || !PyErr_ExceptionMatches(PyExc_BufferError) ||
                         PyObject_HasAttrString(object, "__dlpack__") == 0;
    if (is_done) return tensor;
    PyErr_Clear();
  }
  return OfDlpack(object, stream);
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"source", "stream", nullptr};
  PyObject* source;
  PyObject* stream = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", const_cast<char**>(names), &source,
                                   &stream)) {
    return nullptr;
  }
  (void)type;
  GiveBackDeferred();
  if (IsTensor(source)) return Py_NewRef(source);
  tryst_tensor* const tensor =
      PyCapsule_CheckExact(source) ? OfCapsule(source) : OfAny(source, stream);
  return tensor == nullptr ? nullptr : WrapTensor(tensor);
}

void Dealloc(PyObject* self) {
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
                    "what lies in a GPU is not copied: use the library's clone()");
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
                      "the tensor is on another device, and is not copied there");
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
                    "the tensor is read-only, which DLPack 0.x cannot say: ask with "
                    "max_version=(1, 0), or use numpy()");
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

// The same memory, as elements of another type of the same size.
PyObject* View(PyObject* self, PyObject* name) {
  const Ref text(PyUnicode_AsUTF8String(name));
  if (!text) return nullptr;
  const TypeRow* to = nullptr;
  for (const TypeRow& row : kTypes) {
    if (std::strcmp(row.name, PyBytes_AsString(text.get())) == 0) to = &row;
  }
  const TypeRow* const from = RowOf(tryst_tensor_dtype(Get(self)));
  if (to == nullptr || from == nullptr || (to->bits + 7) / 8 != (from->bits + 7) / 8) {
    PyErr_Format(PyExc_ValueError, "%U is no type of elements of that size", name);
    return nullptr;
  }
  auto borrowed = std::make_unique<BorrowedObject>();
  const size_t rank = tryst_tensor_rank(Get(self));
  for (size_t i = 0; i < rank; ++i) borrowed->shape.push_back(tryst_tensor_dim(Get(self), i));
  Versioned& managed = borrowed->managed;
  managed.flags = (tryst_tensor_is_read_only(Get(self)) ? tryst::dlpack::kFlagReadOnly : 0) |
                  tryst::dlpack::kFlagSubbyteTypePadded;
  const int32_t gpu = tryst_tensor_gpu(Get(self));
  managed.dl_tensor.data = tryst_tensor_data(Get(self));
  managed.dl_tensor.device = {gpu < 0 ? tryst::dlpack::kDLCPU : tryst::dlpack::kDLCUDA,
                              gpu < 0 ? 0 : gpu};
  managed.dl_tensor.ndim = static_cast<int32_t>(rank);
  managed.dl_tensor.dtype = {to->code, to->bits, 1};
  managed.dl_tensor.shape = borrowed->shape.data();
  tryst_tensor* const tensor = Import(&managed);
  if (tensor == nullptr) return nullptr;
  borrowed->object = Py_NewRef(self);
  (void)borrowed.release();
  return WrapTensor(tensor);
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
    PyErr_SetString(PyExc_ValueError, "the shape wants another number of strings");
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
  for (const TypeRow& row : kTypes) {
    if (std::strcmp(row.name, name) == 0) return row.dtype;
  }
  return 0;
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

tryst_tensor* TensorOf(PyObject* object, bool* owned) {
  *owned = !IsTensor(object);
  if (!*owned) return Get(object);
  return OfAny(object, Py_None);
}

}  // namespace tryst_python
