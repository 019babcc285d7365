// Owners and members of sets of weights. Each call that waits does so without the interpreter's
// lock, until its Cancellation is cancelled; python/tryst/weights.py listens for signals meanwhile.
#include <deque>
#include <string>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/server.h"
#include "python/extension/tensor.h"

namespace tryst_python {
namespace {

struct WeightsObject {
  PyObject_HEAD tryst_weights* weights;
  PyObject* server;  // Keeps the server alive.
};
struct CancellationObject {
  PyObject_HEAD tryst_cancellation* cancellation;
  bool cancelled;
};

PyTypeObject* weights_type = nullptr;
PyTypeObject* cancellation_type = nullptr;
constexpr char kVersion[] = "tryst_weights_version";

tryst_weights* Get(PyObject* self) { return reinterpret_cast<WeightsObject*>(self)->weights; }

tryst_cancellation* CancellationIn(PyObject* object) {
  return reinterpret_cast<CancellationObject*>(object)->cancellation;
}

// None, or the exception of the status that `call` returns.
template <typename Call>
PyObject* Waits(Call call) {
  tryst_status* status;
  {
    const WithoutGil without;
    status = call();
  }
  if (Raised(status)) return nullptr;
  Py_RETURN_NONE;
}

// ---- What Python gives ----

// For PyArg_ParseTuple's "O&". Its "K" would make 2^64 - 1 of -1, which no later version is above.
int ReadNumber(PyObject* object, void* number) {
  const Ref index(PyNumber_Index(object));
  if (!index) return 0;
  *static_cast<uint64_t*>(number) = PyLong_AsUnsignedLongLong(index.get());
  return PyErr_Occurred() ? 0 : 1;
}

bool ReadNumbers(PyObject* tuple, std::vector<int64_t>* numbers) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "something else was given where a tuple of numbers is needed");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
    numbers->push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
    if (PyErr_Occurred()) return false;
  }
  return true;
}

bool ReadTexts(PyObject* list, std::vector<const char*>* texts) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    texts->push_back(TextOf(PyList_GetItem(list, i)));
    if (texts->back() == nullptr) return false;
  }
  return true;
}

// A layout of (name, dtype, shape, owners, mesh, placements, boxes), where a box is (owner, begin,
// extent). What `layout` points to belongs to this object and to the tuple.
class ReadLayout {
 public:
  bool Read(PyObject* tuple) {
    const char* dtype;
    PyObject *shape, *owners, *mesh, *placements, *boxes;
    if (!PyArg_ParseTuple(tuple, "ssOOOOO!", &layout.name, &dtype, &shape, &owners, &mesh,
                          &placements, &PyTuple_Type, &boxes)) {
      return false;
    }
    std::vector<int64_t> owner_numbers, placement_numbers;
    if (!ReadNumbers(shape, &dims_) || !ReadNumbers(owners, &owner_numbers) ||
        !ReadNumbers(mesh, &mesh_) || !ReadNumbers(placements, &placement_numbers)) {
      return false;
    }
    owners_.assign(owner_numbers.begin(), owner_numbers.end());
    placements_.assign(placement_numbers.begin(), placement_numbers.end());
    if (placements_.size() != mesh_.size()) {
      PyErr_SetString(
          PyExc_ValueError,
          "placements and mesh differ in length: give one placement for each axis of the mesh");
      return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(boxes); ++i) {
      unsigned int owner;
      PyObject *begin, *extent;
      std::vector<int64_t>&begins = numbers_.emplace_back(), &extents = numbers_.emplace_back();
      if (!PyArg_ParseTuple(PyTuple_GetItem(boxes, i), "IOO", &owner, &begin, &extent) ||
          !ReadNumbers(begin, &begins) || !ReadNumbers(extent, &extents)) {
        return false;
      }
      if (begins.size() != dims_.size() || extents.size() != dims_.size()) {
        PyErr_SetString(PyExc_ValueError,
                        "a box and its tensor differ in their number of dimensions");
        return false;
      }
      boxes_.push_back({owner, begins.data(), extents.data()});
    }
    layout.dtype = TypeNumber(dtype);
    layout.dims = dims_.data();
    layout.rank = dims_.size();
    layout.owners = owners_.data();
    layout.owner_count = owners_.size();
    layout.mesh = mesh_.data();
    layout.placements = placements_.data();
    layout.mesh_rank = mesh_.size();
    layout.boxes = boxes_.data();
    layout.box_count = boxes_.size();
    return true;
  }

  tryst_weights_layout layout = {};

 private:
  std::vector<int64_t> dims_, mesh_;
  std::vector<uint32_t> owners_;
  std::vector<int32_t> placements_;
  std::deque<std::vector<int64_t>> numbers_;
  std::vector<tryst_weights_box> boxes_;
};

// An item of (name, begin, extent, tensor, offset, strides, what it has of a fetch, the number of
// its GPU or -1, the address of its stream).
class ReadItem {
 public:
  bool Read(PyObject* tuple) {
    PyObject *begin, *extent, *tensor, *strides;
    long long offset;
    unsigned long long stream;
    int gpu;
    if (!PyArg_ParseTuple(tuple, "sOOOLOO&iK", &item.name, &begin, &extent, &tensor, &offset,
                          &strides, ReadNumber, &item.has, &gpu, &stream) ||
        !ReadNumbers(begin, &begin_) || !ReadNumbers(extent, &extent_) ||
        !ReadNumbers(strides, &strides_)) {
      return false;
    }
    if (!IsTensor(tensor)) {
      PyErr_SetString(PyExc_TypeError,
                      "the memory of an item should be a Tensor, and is something else");
      return false;
    }
    if (begin_.size() != extent_.size() || strides_.size() != extent_.size()) {
      PyErr_SetString(PyExc_ValueError,
                      "a box and the array of its elements differ in their number of dimensions");
      return false;
    }
    item.begin = begin_.data();
    item.extent = extent_.data();
    item.rank = extent_.size();
    item.tensor = TensorIn(tensor);
    item.offset = offset;
    item.strides = strides_.data();
    if (gpu >= 0) {
      const Stream follows = {gpu, reinterpret_cast<void*>(stream)};
      Follow(&follows, &options_);
      item.options = &options_;
    }
    return true;
  }

  tryst_weights_item item = {};

 private:
  tryst_options options_ = {};
  std::vector<int64_t> begin_, extent_, strides_;
};

class ReadItems {
 public:
  bool Read(PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
      if (!read_.emplace_back().Read(PyList_GetItem(list, i))) return false;
      items.push_back(read_.back().item);
    }
    return true;
  }
  std::vector<tryst_weights_item> items;

 private:
  std::deque<ReadItem> read_;
};

// ---- Cancellations ----

PyObject* NewCancellation(PyTypeObject*, PyObject*, PyObject*) {
  auto* const self = PyObject_New(CancellationObject, cancellation_type);
  if (self == nullptr) return nullptr;
  self->cancellation = nullptr;
  self->cancelled = false;
  Ref result(reinterpret_cast<PyObject*>(self));
  return Raised(tryst_cancellation_create(&self->cancellation)) ? nullptr : result.release();
}

void DeallocCancellation(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  tryst_cancellation_free(CancellationIn(self));
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* Cancel(PyObject* self, PyObject*) {
  reinterpret_cast<CancellationObject*>(self)->cancelled = true;
  return Waits([&]() -> tryst_status* {
    tryst_cancellation_cancel(CancellationIn(self));
    return nullptr;
  });
}

PyObject* Cancelled(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<CancellationObject*>(self)->cancelled ? 1 : 0);
}

PyMethodDef kCancellationMethods[] = {
    {"cancel", Cancel, METH_NOARGS, nullptr},
    {"cancelled", Cancelled, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kCancellationSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewCancellation)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocCancellation)},
    {Py_tp_methods, kCancellationMethods},
    {0, nullptr},
};
PyType_Spec kCancellationSpec = {"tryst._tryst.Cancellation", sizeof(CancellationObject), 0,
                                 Py_TPFLAGS_DEFAULT, kCancellationSlots};

// ---- Weights ----

void Dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  {
    const WithoutGil without;
    tryst_weights_free(Get(self));
  }
  Py_XDECREF(reinterpret_cast<WeightsObject*>(self)->server);
  PyObject_Free(self);
  Py_DECREF(type);
}

// Closes the set for this worker: other workers get no answers from it any more.
PyObject* Close(PyObject* self, PyObject*) {
  tryst_weights* const weights = Get(self);
  reinterpret_cast<WeightsObject*>(self)->weights = nullptr;
  return Waits([&]() -> tryst_status* {
    tryst_weights_free(weights);
    return nullptr;
  });
}

// (layouts)
PyObject* Declare(PyObject* self, PyObject* list) {
  std::deque<ReadLayout> read;
  std::vector<tryst_weights_layout> layouts;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    if (!read.emplace_back().Read(PyList_GetItem(list, i))) return nullptr;
    layouts.push_back(read.back().layout);
  }
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] { return tryst_weights_declare(Get(self), layouts.data(), layouts.size()); });
}

// (number, item, borrow)
PyObject* Publish(PyObject* self, PyObject* args) {
  uint64_t number;
  PyObject* tuple;
  int borrow;
  ReadItem read;
  if (!PyArg_ParseTuple(args, "O&Op", ReadNumber, &number, &tuple, &borrow) || !read.Read(tuple)) {
    return nullptr;
  }
  const auto publish = borrow ? &tryst_weights_borrow : &tryst_weights_publish;
  return Waits([&] { return publish(Get(self), number, &read.item); });
}

// (number, how, timeout, cancellation)
PyObject* Release(PyObject* self, PyObject* args) {
  uint64_t number;
  int how;
  PyObject *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "O&iOO!", ReadNumber, &number, &how, &timeout, cancellation_type,
                        &cancellation)) {
    return nullptr;
  }
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] {
    return tryst_weights_release(Get(self), number, how, timeout_ms, CancellationIn(cancellation));
  });
}

// (number, label, timeout, cancellation)
PyObject* Seal(PyObject* self, PyObject* args) {
  uint64_t number;
  const char* label;
  PyObject *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "O&sOO!", ReadNumber, &number, &label, &timeout, cancellation_type,
                        &cancellation)) {
    return nullptr;
  }
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] {
    return tryst_weights_seal(Get(self), number, label, timeout_ms, CancellationIn(cancellation));
  });
}

PyObject* Drop(PyObject* self, PyObject* number) {
  uint64_t which;
  if (!ReadNumber(number, &which)) return nullptr;
  return Waits([&]() -> tryst_status* {
    tryst_weights_drop(Get(self), which);
    return nullptr;
  });
}

// (number, mode, timeout, cancellation)
PyObject* Activate(PyObject* self, PyObject* args) {
  uint64_t number;
  int mode;
  PyObject *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "O&iOO!", ReadNumber, &number, &mode, &timeout, cancellation_type,
                        &cancellation)) {
    return nullptr;
  }
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] {
    return tryst_weights_activate(Get(self), number, mode, timeout_ms,
                                  CancellationIn(cancellation));
  });
}

void FreeVersion(PyObject* capsule) {
  tryst_weights_version_free(
      static_cast<tryst_weights_version*>(PyCapsule_GetPointer(capsule, kVersion)));
}

// (how, number, timeout, cancellation): a version.
PyObject* Find(PyObject* self, PyObject* args) {
  int how;
  uint64_t number;
  PyObject *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "iO&OO!", &how, ReadNumber, &number, &timeout, cancellation_type,
                        &cancellation)) {
    return nullptr;
  }
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  tryst_weights_version* version = nullptr;
  const Ref done(Waits([&] {
    return tryst_weights_find(Get(self), how, number, timeout_ms, CancellationIn(cancellation),
                              &version);
  }));
  if (!done) return nullptr;
  PyObject* const capsule = PyCapsule_New(version, kVersion, FreeVersion);
  if (capsule == nullptr) tryst_weights_version_free(version);
  return capsule;
}

tryst_weights_version* VersionIn(PyObject* capsule) {
  return static_cast<tryst_weights_version*>(PyCapsule_GetPointer(capsule, kVersion));
}

// (version, timeout, cancellation): JSON.
PyObject* Describe(PyObject* self, PyObject* args) {
  PyObject *capsule, *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "OOO!", &capsule, &timeout, cancellation_type, &cancellation)) {
    return nullptr;
  }
  const tryst_weights_version* const version = VersionIn(capsule);
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  char* json = nullptr;
  const Ref done(Waits([&] {
    return tryst_weights_describe(Get(self), version, timeout_ms, CancellationIn(cancellation),
                                  &json);
  }));
  if (!done) return nullptr;
  PyObject* const text = MakeString(json);
  tryst_string_free(json);
  return text;
}

// (version, items, timeout, cancellation)
PyObject* Fetch(PyObject* self, PyObject* args) {
  PyObject *capsule, *list, *timeout, *cancellation;
  ReadItems read;
  if (!PyArg_ParseTuple(args, "OO!OO!", &capsule, &PyList_Type, &list, &timeout, cancellation_type,
                        &cancellation) ||
      !read.Read(list)) {
    return nullptr;
  }
  const tryst_weights_version* const version = VersionIn(capsule);
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] {
    return tryst_weights_fetch(Get(self), version, read.items.data(), read.items.size(), timeout_ms,
                               CancellationIn(cancellation));
  });
}

// (number, items, timeout, cancellation)
PyObject* Stage(PyObject* self, PyObject* args) {
  uint64_t number;
  PyObject *list, *timeout, *cancellation;
  ReadItems read;
  if (!PyArg_ParseTuple(args, "O&O!OO!", ReadNumber, &number, &PyList_Type, &list, &timeout,
                        cancellation_type, &cancellation) ||
      !read.Read(list)) {
    return nullptr;
  }
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  return Waits([&] {
    return tryst_weights_stage(Get(self), number, read.items.data(), read.items.size(), timeout_ms,
                               CancellationIn(cancellation));
  });
}

// (timeout, cancellation): (kind, number).
PyObject* NextEvent(PyObject* self, PyObject* args) {
  PyObject *timeout, *cancellation;
  if (!PyArg_ParseTuple(args, "OO!", &timeout, cancellation_type, &cancellation)) return nullptr;
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  int32_t kind = 0;
  uint64_t number = 0;
  const Ref done(Waits([&] {
    return tryst_weights_next_event(Get(self), timeout_ms, CancellationIn(cancellation), &kind,
                                    &number);
  }));
  if (!done) return nullptr;
  return Py_BuildValue("(iK)", static_cast<int>(kind), static_cast<unsigned long long>(number));
}

// (number, what)
PyObject* Answer(PyObject* self, PyObject* args) {
  uint64_t number;
  int what;
  if (!PyArg_ParseTuple(args, "O&i", ReadNumber, &number, &what)) return nullptr;
  return Waits([&] { return tryst_weights_answer(Get(self), number, what); });
}

// (how, number)
PyObject* Serve(PyObject* self, PyObject*) {
  uint64_t number = 0;
  const int how = tryst_weights_serve(Get(self), &number);
  return Py_BuildValue("(iK)", how, static_cast<unsigned long long>(number));
}

PyObject* Explain(PyObject* self, PyObject*) {
  char* text;
  {
    const WithoutGil without;
    text = tryst_weights_explain(Get(self));
  }
  PyObject* const made = MakeString(text);
  tryst_string_free(text);
  return made;
}

PyObject* Members(PyObject* self, PyObject*) {
  size_t members;
  {
    const WithoutGil without;
    members = tryst_weights_members(Get(self));
  }
  return PyLong_FromSize_t(members);
}

PyMethodDef kMethods[] = {
    {"close", Close, METH_NOARGS, nullptr},
    {"declare", Declare, METH_O, nullptr},
    {"publish", Publish, METH_VARARGS, nullptr},
    {"release", Release, METH_VARARGS, nullptr},
    {"seal", Seal, METH_VARARGS, nullptr},
    {"drop", Drop, METH_O, nullptr},
    {"activate", Activate, METH_VARARGS, nullptr},
    {"find", Find, METH_VARARGS, nullptr},
    {"describe", Describe, METH_VARARGS, nullptr},
    {"fetch", Fetch, METH_VARARGS, nullptr},
    {"stage", Stage, METH_VARARGS, nullptr},
    {"next_event", NextEvent, METH_VARARGS, nullptr},
    {"answer", Answer, METH_VARARGS, nullptr},
    {"serve", Serve, METH_NOARGS, nullptr},
    {"explain", Explain, METH_NOARGS, nullptr},
    {"members", Members, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {0, nullptr},
};
PyType_Spec kSpec = {"tryst._tryst.Weights", sizeof(WeightsObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};

}  // namespace

PyObject* OpenWeights(PyObject* server, tryst_server* handle, PyObject* args) {
  const char* set;
  PyObject *owners, *settings;
  std::vector<const char*> owner_texts, setting_texts;
  if (!PyArg_ParseTuple(args, "sO!O!", &set, &PyList_Type, &owners, &PyList_Type, &settings) ||
      !ReadTexts(owners, &owner_texts) || !ReadTexts(settings, &setting_texts)) {
    return nullptr;
  }
  auto* const self = PyObject_New(WeightsObject, weights_type);
  if (self == nullptr) return nullptr;
  self->weights = nullptr;
  self->server = Py_NewRef(server);
  Ref result(reinterpret_cast<PyObject*>(self));
  const Ref done(Waits([&] {
    return tryst_weights_open(handle, set, owner_texts.data(), owner_texts.size(),
                              setting_texts.data(), setting_texts.size(), &self->weights);
  }));
  return done ? result.release() : nullptr;
}

// (layout, owners, owner): a list of (begin, extent).
PyObject* WeightBoxes(PyObject*, PyObject* args) {
  PyObject* tuple;
  unsigned int owners, owner;
  ReadLayout read;
  if (!PyArg_ParseTuple(args, "OII", &tuple, &owners, &owner) || !read.Read(tuple)) return nullptr;
  size_t count = 0;
  if (Raised(tryst_weights_boxes(&read.layout, owners, owner, nullptr, 0, &count))) return nullptr;
  const size_t rank = read.layout.rank;
  std::vector<int64_t> numbers(count * 2 * rank);
  if (Raised(tryst_weights_boxes(&read.layout, owners, owner, numbers.data(), numbers.size(),
                                 &count))) {
    return nullptr;
  }
  Ref list(PyList_New(0));
  size_t at = 0;
  for (size_t i = 0; list && i < count; ++i) {
    Ref ends[2];
    for (Ref& end : ends) {
      end = Ref(PyTuple_New(rank));
      for (size_t dim = 0; end && dim < rank; ++dim) {
        PyTuple_SetItem(end.get(), dim, PyLong_FromLongLong(numbers[at++]));
      }
      if (!end || PyErr_Occurred()) return nullptr;
    }
    const Ref box(PyTuple_Pack(2, ends[0].get(), ends[1].get()));
    if (!box || PyList_Append(list.get(), box.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* MakeWeightsType() {
  weights_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return reinterpret_cast<PyObject*>(weights_type);
}

PyObject* MakeCancellationType() {
  cancellation_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kCancellationSpec));
  return reinterpret_cast<PyObject*>(cancellation_type);
}

}  // namespace tryst_python
