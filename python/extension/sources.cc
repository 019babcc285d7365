#include "python/extension/sources.h"

#include <cstring>
#include <memory>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/dtypes.h"
#include "python/extension/tensor.h"
#include "rendezvous/dlpack_abi.h"

namespace tryst_python {
namespace {

using tryst::dlpack::DLExchangeApi;
using tryst::dlpack::DLTensor;
using Versioned = tryst::dlpack::DLManagedTensorVersioned;

constexpr char kOld[] = "dltensor";
constexpr char kOldUsed[] = "used_dltensor";
constexpr char kNew[] = "dltensor_versioned";
constexpr char kNewUsed[] = "used_dltensor_versioned";

PyObject* tensor_helper = nullptr;
PyObject* stream_helper = nullptr;

// A name that is looked up again and again: made once, for as long as the process lives.
struct Name {
  explicit Name(const char* text) : text(PyUnicode_InternFromString(text)) {}
  PyObject* const text;
};

// A small table by address, in which a new entry takes the place of what had its place. An entry
// keeps its object, so that no other one gets that address.
template <typename Value>
class ByAddress {
 public:
  const Value* Find(PyObject* object) const {
    const Entry& entry = entries_[PlaceOf(object)];
    return entry.object == object ? &entry.value : nullptr;
  }
  const Value* Put(PyObject* object, const Value& value) {
    Entry& entry = entries_[PlaceOf(object)];
    PyObject* const old = entry.object;
    entry.object = Py_NewRef(object);
    entry.value = value;
    Py_XDECREF(old);
    return &entry.value;
  }

 private:
  static constexpr size_t kPlaces = 128;
  struct Entry {
    PyObject* object = nullptr;
    Value value{};
  };
  static size_t PlaceOf(PyObject* object) {
    const auto address = reinterpret_cast<uintptr_t>(object);
    return (address >> 4 ^ address >> 11) % kPlaces;
  }
  Entry entries_[kPlaces];
};

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

// What another library has handed over as a DLPack tensor.
struct BorrowedDlpack final : Borrowed {
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

// Makes `borrowed` show the tensor that it has taken. REQUIRES: is_versioned.
void ShowVersioned(BorrowedDlpack* borrowed) {
  const auto* const from = static_cast<const Versioned*>(borrowed->taken);
  borrowed->managed.version = from->version;
  if (from->version.major != 1) return;  // The layout of another version is unknown.
  borrowed->managed.flags = from->flags;
  borrowed->managed.dl_tensor = from->dl_tensor;
}

// ---- The buffer protocol ----

// A tensor of `borrowed->view`, whose elements are `row`'s; on failure the view is released.
tryst_tensor* OfView(std::unique_ptr<BorrowedBuffer> borrowed, const TypeRow& row) {
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes are 64 bits wide");
  Py_buffer* const view = &borrowed->view;
  int64_t strides[PyBUF_MAX_NDIM];
  bool whole = view->ndim <= PyBUF_MAX_NDIM;
  for (int i = 0; whole && i < view->ndim && view->strides != nullptr; ++i) {
    whole = view->strides[i] % view->itemsize == 0;
    strides[i] = view->strides[i] / view->itemsize;
  }
  DLTensor& to = borrowed->managed.dl_tensor;
  borrowed->managed.flags = (view->readonly ? tryst::dlpack::kFlagReadOnly : 0) |
                            (row.bits < 8 ? tryst::dlpack::kFlagSubbyteTypePadded : 0);
  to.data = view->buf;
  to.device = {tryst::dlpack::kDLCPU, 0};
  to.ndim = view->ndim;
  to.dtype = {row.code, row.bits, 1};
  to.shape = reinterpret_cast<int64_t*>(view->shape);
  to.strides = view->strides == nullptr || view->len == 0 ? nullptr : strides;
  tryst_tensor* tensor = nullptr;
  if (whole) {
    tensor = Import(&borrowed->managed);
    to.strides = nullptr;  // They are checked, and no longer needed.
  } else {
    PyErr_SetString(PyExc_ValueError,
                    "the array's strides are no multiples of the size of its elements: make the "
                    "array contiguous first");
  }
  if (tensor == nullptr) {
    PyBuffer_Release(view);
  } else {
    (void)borrowed.release();
  }
  return tensor;
}

tryst_tensor* OfBuffer(PyObject* object) {
  auto borrowed = std::make_unique<BorrowedBuffer>();
  Py_buffer* const view = &borrowed->view;
  if (PyObject_GetBuffer(object, view, PyBUF_RECORDS_RO) != 0) return nullptr;
  const TypeRow* const row = RowOfFormat(view->format);
  if (row == nullptr || view->itemsize != row->bits / 8) {
    PyErr_Format(PyExc_TypeError,
                 "elements of format '%s' cannot be sent: use numbers in this machine's byte order",
                 view->format);
    PyBuffer_Release(view);
    return nullptr;
  }
  return OfView(std::move(borrowed), *row);
}

// ---- numpy ----

// The row of a type of numpy's by its number, which lasts as long as the process. By its name the
// first time. Null: there is none. Sets no exception.
const TypeRow* RowOfNumber(PyObject* dtype) {
  constexpr long kNumbers = 512;  // ml_dtypes' begin with 256.
  static const Name num("num");
  static const Name isnative("isnative");
  static const Name name("name");
  struct Known {
    bool is_known = false;
    const TypeRow* row = nullptr;
  };
  static Known known[kNumbers];
  const Ref number_object(PyObject_GetAttr(dtype, num.text));
  const Ref native(number_object ? PyObject_GetAttr(dtype, isnative.text) : nullptr);
  if (native.get() != Py_True) {
    PyErr_Clear();
    return nullptr;
  }
  const long number = PyLong_AsLong(number_object.get());
  const bool has_place = number >= 0 && number < kNumbers;
  if (has_place && known[number].is_known) return known[number].row;
  const Ref called(PyObject_GetAttr(dtype, name.text));
  const char* const text = called ? PyUnicode_AsUTF8AndSize(called.get(), nullptr) : nullptr;
  const TypeRow* const row = text == nullptr ? nullptr : RowOfName(text);
  PyErr_Clear();
  if (has_place) known[number] = {true, row};
  return row;
}

const TypeRow* RowOfDtype(PyObject* dtype) {
  // Nearly all arrays of a type share one object. One that was unpickled has its own.
  static ByAddress<const TypeRow*> known;
  if (const TypeRow* const* row = known.Find(dtype)) return *row;
  return *known.Put(dtype, RowOfNumber(dtype));
}

// Null without an exception: C does not know such elements.
tryst_tensor* OfNumpy(PyObject* array) {
  static const Name dtype_name("dtype");
  const Ref dtype(PyObject_GetAttr(array, dtype_name.text));
  if (!dtype) return nullptr;
  const TypeRow* const row = RowOfDtype(dtype.get());
  if (row == nullptr) return nullptr;
  auto borrowed = std::make_unique<BorrowedBuffer>();
  // Without a format, which numpy would have to write, and has not for the types of ml_dtypes.
  if (PyObject_GetBuffer(array, &borrowed->view, PyBUF_STRIDES) != 0) return nullptr;
  return OfView(std::move(borrowed), *row);
}

// ---- DLPack ----

}  // namespace

tryst_tensor* FromCapsule(PyObject* capsule) {
  auto borrowed = std::make_unique<BorrowedDlpack>();
  const bool is_versioned = PyCapsule_IsValid(capsule, kNew) != 0;
  if (!is_versioned && !PyCapsule_IsValid(capsule, kOld)) {
    PyErr_SetString(PyExc_TypeError,
                    "__dlpack__() returned no DLPack capsule, or one that was used before");
    return nullptr;
  }
  borrowed->is_versioned = is_versioned;
  borrowed->taken = PyCapsule_GetPointer(capsule, is_versioned ? kNew : kOld);
  if (borrowed->taken == nullptr) return nullptr;
  if (is_versioned) {
    ShowVersioned(borrowed.get());
  } else {
    borrowed->managed.dl_tensor = *static_cast<const tryst::dlpack::DLTensor*>(borrowed->taken);
  }
  tryst_tensor* const tensor = Import(&borrowed->managed);
  if (tensor == nullptr) return nullptr;
  PyCapsule_SetName(capsule, is_versioned ? kNewUsed : kOldUsed);
  (void)borrowed.release();
  return tensor;
}

namespace {

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
  return capsule ? FromCapsule(capsule.get()) : nullptr;
}

}  // namespace

// If an object has both a buffer and DLPack, the buffer is tried first: it is quicker and tells
// what is read-only. But it has no bfloat16 and no GPU memory.
tryst_tensor* FromProtocols(PyObject* object, PyObject* stream) {
  if (stream == Py_None && PyObject_CheckBuffer(object)) {
    tryst_tensor* const tensor = OfBuffer(object);
    const bool is_done = tensor != nullptr || !PyErr_ExceptionMatches(PyExc_BufferError) ||
                         PyObject_HasAttrString(object, "__dlpack__") == 0;
    if (is_done) return tensor;
    PyErr_Clear();
  }
  return OfDlpack(object, stream);
}

tryst_tensor* ViewAs(tryst_tensor* tensor, PyObject* owner, const TypeRow& row) {
  auto borrowed = std::make_unique<BorrowedObject>();
  const size_t rank = tryst_tensor_rank(tensor);
  for (size_t i = 0; i < rank; ++i) borrowed->shape.push_back(tryst_tensor_dim(tensor, i));
  Versioned& managed = borrowed->managed;
  managed.flags = (tryst_tensor_is_read_only(tensor) ? tryst::dlpack::kFlagReadOnly : 0) |
                  tryst::dlpack::kFlagSubbyteTypePadded;
  const int32_t gpu = tryst_tensor_gpu(tensor);
  managed.dl_tensor.data = tryst_tensor_data(tensor);
  managed.dl_tensor.device = {gpu < 0 ? tryst::dlpack::kDLCPU : tryst::dlpack::kDLCUDA,
                              gpu < 0 ? 0 : gpu};
  managed.dl_tensor.ndim = static_cast<int32_t>(rank);
  managed.dl_tensor.dtype = {row.code, row.bits, 1};
  managed.dl_tensor.shape = borrowed->shape.data();
  tryst_tensor* const view = Import(&managed);
  if (view == nullptr) return nullptr;
  borrowed->object = Py_NewRef(owner);
  (void)borrowed.release();
  return view;
}

// ---- Kinds of arrays, by their Python type ----

namespace {

enum class Kind : uint8_t {
  kNumpy,      // An array of numpy's.
  kTable,      // Its type has DLPack's table of C functions.
  kDevice,     // It says where it lies.
  kProtocols,  // It has a buffer, or __dlpack__ alone.
  kPython,     // arrays.py knows, or nobody does.
};
struct KnownType {
  Kind kind = Kind::kPython;
  const DLExchangeApi* table = nullptr;  // Set where `kind` is kTable.
};

// Whether `type` is a class of numpy's or derived from it. Imports nothing.
bool IsNumpys(PyObject* type, const char* name) {
  const Ref modules_name(PyUnicode_InternFromString("numpy"));
  const Ref numpy(modules_name ? PyImport_GetModule(modules_name.get()) : nullptr);
  const Ref base(numpy ? PyObject_GetAttrString(numpy.get(), name) : nullptr);
  const int derived = base ? PyObject_IsSubclass(type, base.get()) : 0;
  PyErr_Clear();
  return derived == 1;
}

// DLPack's table of 1.x of that type. Null: it has none.
const DLExchangeApi* TableOf(PyObject* type) {
  const Ref capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  const void* found = nullptr;
  if (capsule && PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api")) {
    found = PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api");
  }
  PyErr_Clear();
  const auto* header = static_cast<const DLExchangeApi*>(found);
  while (header != nullptr && header->version.major != tryst::dlpack::kMajorVersion) {
    header = static_cast<const DLExchangeApi*>(header->previous);
  }
  const bool is_whole = header != nullptr &&
                        header->managed_tensor_from_py_object_no_sync != nullptr &&
                        header->current_work_stream != nullptr;
  return is_whole ? header : nullptr;
}

KnownType LearnType(PyObject* type, PyObject* source) {
  if (IsNumpys(type, "ndarray")) return {Kind::kNumpy, nullptr};
  if (IsNumpys(type, "generic")) return {Kind::kPython, nullptr};
  if (const DLExchangeApi* const table = TableOf(type)) return {Kind::kTable, table};
  if (PyObject_HasAttrString(type, "__dlpack_device__")) return {Kind::kDevice, nullptr};
  if (PyObject_CheckBuffer(source)) return {Kind::kProtocols, nullptr};
  return {Kind::kPython, nullptr};
}

const KnownType& TypeOf(PyObject* source) {
  static ByAddress<KnownType> known;
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(source));
  const KnownType* found = known.Find(type);
  if (found == nullptr) found = known.Put(type, LearnType(type, source));
  return *found;
}

}  // namespace

void SetArrayHelpers(PyObject* tensor, PyObject* stream) {
  Py_XDECREF(std::exchange(tensor_helper, Py_NewRef(tensor)));
  Py_XDECREF(std::exchange(stream_helper, Py_NewRef(stream)));
}

// ---- Sources ----

Sources::~Sources() {
  for (tryst_tensor* tensor : made_) tryst_tensor_free(tensor);
  for (PyObject* object : kept_) Py_DECREF(object);
}

tryst_tensor* Sources::Add(PyObject* source) {
  last_stream_ = kNoStream;
  if (IsTensor(source)) return TensorIn(source);
  if (tryst_tensor* const tensor = Make(source)) {
    made_.push_back(tensor);
    return tensor;
  }
  PyObject* const made = AskPython(source);
  if (made == nullptr) return nullptr;
  kept_.push_back(made);
  return TensorIn(made);
}

PyObject* Sources::Wrap(PyObject* source) {
  if (IsTensor(source)) return Py_NewRef(source);
  tryst_tensor* const tensor = Make(source);
  return tensor == nullptr ? AskPython(source) : WrapTensor(tensor);
}

// Null without an exception: ask Python.
tryst_tensor* Sources::Make(PyObject* source) {
  const KnownType known = TypeOf(source);
  switch (known.kind) {
    case Kind::kNumpy:
      return OfNumpy(source);
    case Kind::kTable:
      return OfTable(source, known.table);
    case Kind::kDevice:
      return OfDevice(source);
    case Kind::kProtocols:
      return FromProtocols(source, Py_None);
    case Kind::kPython:
      break;
  }
  return nullptr;
}

PyObject* Sources::AskPython(PyObject* source) {
  if (PyErr_Occurred()) return nullptr;
  Ref made(PyObject_CallFunctionObjArgs(tensor_helper, source, nullptr));
  if (made && !IsTensor(made.get())) {
    PyErr_SetString(PyExc_TypeError,
                    "arrays.py made no Tensor of an array: this is a bug of Tryst's");
    return nullptr;
  }
  return made.release();
}

int Sources::FindAsked(const void* library, int32_t gpu) const {
  for (const Asked& asked : asked_) {
    if (asked.library == library && asked.gpu == gpu) return asked.stream;
  }
  return kNoStream;
}

int Sources::Remember(const void* library, Stream stream) {
  int place = 0;
  while (place < static_cast<int>(streams_.size()) &&
         !(streams_[static_cast<size_t>(place)] == stream)) {
    ++place;
  }
  if (place == static_cast<int>(streams_.size())) streams_.push_back(stream);
  asked_.push_back({library, stream.gpu, place});
  return place;
}

tryst_tensor* Sources::OfTable(PyObject* source, const DLExchangeApi* table) {
  auto borrowed = std::make_unique<BorrowedDlpack>();
  Versioned* from = nullptr;
  if (table->managed_tensor_from_py_object_no_sync(source, &from) != 0 || from == nullptr) {
    PyErr_Clear();
    return OfDevice(source);  // Where it is refused as well, it is with a better message.
  }
  borrowed->is_versioned = true;
  borrowed->taken = from;
  // torch's table does not look at the mark that a complex tensor is to be read conjugated, which
  // its __dlpack__ refuses.
  if (from->version.major == tryst::dlpack::kMajorVersion &&
      from->dl_tensor.dtype.code == tryst::dlpack::kDLComplex) {
    borrowed->GiveBack();
    return OfDevice(source);
  }
  ShowVersioned(borrowed.get());
  const tryst::dlpack::DLDevice device = borrowed->managed.dl_tensor.device;
  if (device.device_type == tryst::dlpack::kDLCUDA) {
    last_stream_ = FindAsked(table, device.device_id);
    void* address = nullptr;
    if (last_stream_ == kNoStream) {
      if (table->current_work_stream(device.device_type, device.device_id, &address) != 0) {
        borrowed->GiveBack();
        return nullptr;
      }
      last_stream_ = Remember(table, {device.device_id, address});
    }
  }
  tryst_tensor* const tensor = Import(&borrowed->managed);
  if (tensor == nullptr) {
    borrowed->GiveBack();
  } else {
    (void)borrowed.release();
  }
  return tensor;
}

tryst_tensor* Sources::OfDevice(PyObject* source) {
  static const Name dlpack_device("__dlpack_device__");
  const Ref where(PyObject_CallMethodObjArgs(source, dlpack_device.text, nullptr));
  int kind;
  int gpu;
  if (!where || !PyArg_Parse(where.get(), "(ii)", &kind, &gpu)) return nullptr;
  if (kind != tryst::dlpack::kDLCUDA) return FromProtocols(source, Py_None);
  const void* const library = Py_TYPE(source);
  last_stream_ = FindAsked(library, gpu);
  if (last_stream_ == kNoStream) {
    const Ref address(PyObject_CallFunction(stream_helper, "Oi", source, gpu));
    if (!address) return nullptr;
    void* const stream = PyLong_AsVoidPtr(address.get());
    if (PyErr_Occurred()) return nullptr;
    last_stream_ = Remember(library, {gpu, stream});
  }
  // For DLPack the default stream is 1.
  void* const stream = streams_[static_cast<size_t>(last_stream_)].address;
  const Ref number(PyLong_FromVoidPtr(stream == nullptr ? reinterpret_cast<void*>(1) : stream));
  return number ? OfDlpack(source, number.get()) : nullptr;
}

}  // namespace tryst_python
