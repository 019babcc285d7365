// Selections, groups and regions.
#include <string>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/server.h"
#include "python/extension/sources.h"

namespace tryst_python {
namespace {

struct GroupObject {
  PyObject_HEAD tryst_group* group;
};
struct RegionObject {
  PyObject_HEAD tryst_region* region;
  PyObject* server;  // Keeps the server alive.
};

PyTypeObject* group_type = nullptr;
PyTypeObject* region_type = nullptr;
constexpr int64_t kSignalCheckMs = 50;

tryst_group* GroupOf(PyObject* self) { return reinterpret_cast<GroupObject*>(self)->group; }
tryst_region* RegionOf(PyObject* self) { return reinterpret_cast<RegionObject*>(self)->region; }

// The selection of a tuple (kind, unit, buffer) or of None, with the buffer for as long as it
// lives.
class ReadSelection {
 public:
  ReadSelection() = default;
  ReadSelection(const ReadSelection&) = delete;
  ReadSelection& operator=(const ReadSelection&) = delete;
  ~ReadSelection() {
    if (has_view_) PyBuffer_Release(&view_);
  }
  // False with an exception.
  bool Read(PyObject* selection) {
    if (selection == Py_None) return true;
    PyObject* items;
    unsigned long long unit;
    if (!PyArg_ParseTuple(selection, "iKO", &selection_.kind, &unit, &items)) return false;
    if (PyObject_GetBuffer(items, &view_, PyBUF_SIMPLE) != 0) return false;
    has_view_ = true;
    if (selection_.kind == TRYST_SELECT_BOXES) {  // Its two numbers, its extent, its strides.
      const auto* const numbers = static_cast<const uint64_t*>(view_.buf);
      box_.rank = (static_cast<size_t>(view_.len) / sizeof(uint64_t) - 2) / 2;
      box_.offset = numbers[0];
      box_.element_bytes = numbers[1];
      box_.extent = numbers + 2;
      box_.strides = box_.extent + box_.rank;
      selection_.items = &box_;
      selection_.count = 1;
      return true;
    }
    const size_t each = selection_.kind == TRYST_SELECT_INDICES ? sizeof(uint32_t)
                        : selection_.kind == TRYST_SELECT_RUNS  ? sizeof(tryst_run)
                                                                : sizeof(tryst_span);
    selection_.unit = unit;
    selection_.items = view_.buf;
    selection_.count = static_cast<size_t>(view_.len) / each;
    return true;
  }
  const tryst_selection* get() const { return has_view_ ? &selection_ : nullptr; }

 private:
  tryst_selection selection_ = {};
  tryst_box box_ = {};
  Py_buffer view_ = {};
  bool has_view_ = false;
};

// Waits without the interpreter's lock until `ended` says so, and checks for signals. -1 with an
// exception.
template <typename Ended>
int WaitUntil(PyObject* timeout, Ended ended) {
  int64_t left_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return -1;
  for (;;) {
    const int64_t slice = left_ms < 0 || left_ms > kSignalCheckMs ? kSignalCheckMs : left_ms;
    int is_over;
    {
      const WithoutGil without;
      is_over = ended(slice);
    }
    if (is_over) return 1;
    if (PyErr_CheckSignals() != 0) return -1;
    if (left_ms < 0) continue;
    left_ms -= slice;
    if (left_ms <= 0) return 0;
  }
}

// ---- Groups ----

PyObject* NewGroup(PyTypeObject* type, PyObject*, PyObject*) {
  (void)type;
  auto* const self = PyObject_New(GroupObject, group_type);
  if (self == nullptr) return nullptr;
  self->group = nullptr;
  Ref result(reinterpret_cast<PyObject*>(self));
  return Raised(tryst_group_create(&self->group)) ? nullptr : result.release();
}

void DeallocGroup(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  {
    const WithoutGil without;
    tryst_group_free(GroupOf(self));
  }
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* CancelGroup(PyObject* self, PyObject*) {
  {
    const WithoutGil without;
    tryst_group_cancel(GroupOf(self));
  }
  GiveBackDeferred();
  Py_RETURN_NONE;
}

PyObject* Fenced(PyObject* self, PyObject* timeout) {
  const int fenced =
      WaitUntil(timeout, [&](int64_t ms) { return tryst_group_fenced(GroupOf(self), ms); });
  return fenced < 0 ? nullptr : PyBool_FromLong(fenced);
}

PyObject* UnderWay(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(tryst_group_under_way(GroupOf(self)));
}

PyObject* Report(PyObject* self, PyObject*) {
  char* const text = tryst_group_report_json(GroupOf(self));
  if (text == nullptr) Py_RETURN_NONE;
  PyObject* const made = MakeString(text);
  tryst_string_free(text);
  return made;
}

PyMethodDef kGroupMethods[] = {
    {"cancel", CancelGroup, METH_NOARGS, nullptr},
    {"fenced", Fenced, METH_O, nullptr},
    {"under_way", UnderWay, METH_NOARGS, nullptr},
    {"report", Report, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kGroupSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewGroup)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocGroup)},
    {Py_tp_methods, kGroupMethods},
    {0, nullptr},
};
PyType_Spec kGroupSpec = {"tryst._tryst.Group", sizeof(GroupObject), 0, Py_TPFLAGS_DEFAULT,
                          kGroupSlots};

// ---- Regions ----

void DeallocRegion(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  {
    const WithoutGil without;
    tryst_region_free(RegionOf(self));
  }
  Py_XDECREF(reinterpret_cast<RegionObject*>(self)->server);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* CloseRegion(PyObject* self, PyObject* timeout) {
  const int closed =
      WaitUntil(timeout, [&](int64_t ms) { return tryst_region_close(RegionOf(self), ms); });
  GiveBackDeferred();
  return closed < 0 ? nullptr : PyBool_FromLong(closed);
}

PyObject* BytesSent(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(tryst_region_bytes_sent(RegionOf(self)));
}

PyMethodDef kRegionMethods[] = {
    {"bytes_sent", BytesSent, METH_NOARGS, nullptr},
    {"close", CloseRegion, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kRegionSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocRegion)},
    {Py_tp_methods, kRegionMethods},
    {0, nullptr},
};
PyType_Spec kRegionSpec = {"tryst._tryst.Region", sizeof(RegionObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kRegionSlots};

}  // namespace

PyObject* MakeGroupType() {
  group_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kGroupSpec));
  return reinterpret_cast<PyObject*>(group_type);
}

PyObject* MakeRegionType() {
  region_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kRegionSpec));
  return reinterpret_cast<PyObject*>(region_type);
}

PyObject* SendSelected(tryst_server* handle, PyObject* args) {
  long long step;
  const char* key;
  PyObject *source, *selection;
  tryst_options options = {};
  if (!PyArg_ParseTuple(args, "LsOOI", &step, &key, &source, &selection, &options.flags)) {
    return nullptr;
  }
  const GivesBack gives_back;
  Sources sources;
  ReadSelection selected;
  const tryst_tensor* const tensor = sources.Add(source);
  if (tensor == nullptr || !selected.Read(selection)) return nullptr;
  Follow(sources.streams().empty() ? nullptr : &sources.streams()[0], &options);
  tryst_status* status;
  {
    const WithoutGil without;  // It copies.
    status = tryst_send_selected(handle, step, key, tensor, selected.get(), &options);
  }
  if (Raised(status)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* StartGather(PyObject* server, tryst_server* handle, PyObject* args) {
  long long step;
  const char* key;
  PyObject *wanted, *into, *landing, *timeout, *group, *queue;
  tryst_options options = {};
  if (!PyArg_ParseTuple(args, "LsOOOOOOI", &step, &key, &wanted, &into, &landing, &timeout, &group,
                        &queue, &options.flags)) {
    return nullptr;
  }
  const GivesBack gives_back;
  Sources sources;
  ReadSelection comes, lands;
  const int64_t timeout_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  const tryst_tensor* const tensor = sources.Add(into);
  if (tensor == nullptr || !comes.Read(wanted) || !lands.Read(landing)) return nullptr;
  Follow(sources.streams().empty() ? nullptr : &sources.streams()[0], &options);
  tryst_group* const of = group == Py_None ? nullptr : GroupOf(group);
  return StartOperation(server, 1, queue, [&](tryst_queue* finished, void* tag, tryst_op** op) {
    return tryst_gather_start(handle, step, key, comes.get(), tensor, lands.get(), &options,
                              timeout_ms, of, finished, tag, op);
  });
}

PyObject* OpenRegion(PyObject* server, tryst_server* handle, PyObject* args) {
  const char* name;
  PyObject *memory, *list;
  if (!PyArg_ParseTuple(args, "sOO!", &name, &memory, &PyList_Type, &list)) return nullptr;
  std::vector<const char*> readers;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    readers.push_back(TextOf(PyList_GetItem(list, i)));
    if (readers.back() == nullptr) return nullptr;
  }
  Sources sources;
  const tryst_tensor* const tensor = sources.Add(memory);
  if (tensor == nullptr) return nullptr;
  auto* const self = PyObject_New(RegionObject, region_type);
  if (self == nullptr) return nullptr;
  self->region = nullptr;
  self->server = Py_NewRef(server);
  Ref result(reinterpret_cast<PyObject*>(self));
  const bool failed = Raised(
      tryst_region_open(handle, name, tensor, readers.data(), readers.size(), &self->region));
  return failed ? nullptr : result.release();
}

}  // namespace tryst_python
