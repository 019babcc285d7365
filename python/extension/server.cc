#include "python/extension/server.h"

#include <string>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/tensor.h"

namespace tryst_python {
namespace {

struct ServerObject {
  PyObject_HEAD tryst_server* server;
};

PyTypeObject* server_type = nullptr;

tryst_server* Get(PyObject* self) { return reinterpret_cast<ServerObject*>(self)->server; }

// Makes a Python string of a library text, and frees the text.
PyObject* Text(char* text) {
  if (text == nullptr) Py_RETURN_NONE;
  PyObject* const made = MakeString(text);
  tryst_string_free(text);
  return made;
}

PyObject* New(PyTypeObject*, PyObject* args, PyObject*) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list)) return nullptr;
  std::vector<const char*> settings;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    settings.push_back(TextOf(PyList_GetItem(list, i)));
    if (settings.back() == nullptr) return nullptr;
  }
  tryst_server* server;
  if (Raised(tryst_server_create(settings.data(), settings.size(), &server))) return nullptr;
  auto* const self = PyObject_New(ServerObject, server_type);
  if (self == nullptr) {
    tryst_server_free(server);
    return nullptr;
  }
  self->server = server;
  return reinterpret_cast<PyObject*>(self);
}

void Dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  {
    const WithoutGil without;
    tryst_server_free(Get(self));
  }
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* Start(PyObject* self, PyObject*) {
  tryst_status* status;
  {
    const WithoutGil without;
    status = tryst_server_start(Get(self));
  }
  if (Raised(status)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Stop(PyObject* self, PyObject* seconds) {
  const int64_t deadline_ms = MsOf(PyFloat_AsDouble(seconds));
  if (PyErr_Occurred()) return nullptr;
  tryst_status* status;
  {
    const WithoutGil without;
    status = tryst_server_stop(Get(self), deadline_ms);
  }
  GiveBackDeferred();
  if (Raised(status)) return nullptr;
  Py_RETURN_NONE;
}

// (peer, seconds): waits for at most that time.
PyObject* PeerIncarnation(PyObject* self, PyObject* args) {
  const char* peer;
  double seconds;
  if (!PyArg_ParseTuple(args, "sd", &peer, &seconds)) return nullptr;
  const int64_t timeout_ms = MsOf(seconds);
  if (PyErr_Occurred()) return nullptr;
  uint64_t incarnation;
  tryst_status* status;
  {
    const WithoutGil without;
    status = tryst_server_peer_incarnation(Get(self), peer, timeout_ms, &incarnation);
  }
  if (Raised(status)) return nullptr;
  return PyLong_FromUnsignedLongLong(incarnation);
}

// (src_device, src_incarnation, dst_device, names)
PyObject* Plan(PyObject* self, PyObject* args) { return NewPlan(self, Get(self), args); }

// (set, owners, settings)
PyObject* Weights(PyObject* self, PyObject* args) { return OpenWeights(self, Get(self), args); }

PyObject* SendSelection(PyObject* self, PyObject* args) { return SendSelected(Get(self), args); }
PyObject* Gather(PyObject* self, PyObject* args) { return StartGather(self, Get(self), args); }
PyObject* Region(PyObject* self, PyObject* args) { return OpenRegion(self, Get(self), args); }

PyObject* RecvOne(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return ReceiveOne(Get(self), args, count);
}

// (step, code, message)
PyObject* Abort(PyObject* self, PyObject* args) {
  long long step;
  int code;
  const char* message;
  if (!PyArg_ParseTuple(args, "Lis", &step, &code, &message)) return nullptr;
  tryst_status* status;
  {
    const WithoutGil without;
    status = tryst_step_abort(Get(self), step, static_cast<tryst_code>(code), message);
  }
  if (Raised(status)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Cleanup(PyObject* self, PyObject* step) {
  const long long number = PyLong_AsLongLong(step);
  if (PyErr_Occurred()) return nullptr;
  {
    const WithoutGil without;
    tryst_step_cleanup(Get(self), number);
  }
  GiveBackDeferred();
  Py_RETURN_NONE;
}

// (dtype, shape)
PyObject* Allocate(PyObject* self, PyObject* args) {
  const char* dtype;
  PyObject* shape;
  if (!PyArg_ParseTuple(args, "sO!", &dtype, &PyTuple_Type, &shape)) return nullptr;
  std::vector<int64_t> dims;
  for (Py_ssize_t i = 0; i < PyTuple_Size(shape); ++i) {
    dims.push_back(PyLong_AsLongLong(PyTuple_GetItem(shape, i)));
    if (PyErr_Occurred()) return nullptr;
  }
  GiveBackDeferred();
  tryst_tensor* tensor;
  if (Raised(
          tryst_server_allocate(Get(self), TypeNumber(dtype), dims.data(), dims.size(), &tensor))) {
    return nullptr;
  }
  return WrapTensor(tensor);
}

template <char* (*kAsk)(tryst_server*, const char*)>
PyObject* AskAbout(PyObject* self, PyObject* peer) {
  const char* const text = TextOf(peer);
  if (text == nullptr) return nullptr;
  char* answer;
  {
    const WithoutGil without;
    answer = kAsk(Get(self), text);
  }
  return Text(answer);
}

template <char* (*kAsk)(tryst_server*)>
PyObject* Ask(PyObject* self, PyObject*) {
  char* answer;
  {
    const WithoutGil without;
    answer = kAsk(Get(self));
  }
  return Text(answer);
}

PyObject* Setting(PyObject* self, PyObject* name) {
  const char* const text = TextOf(name);
  return text == nullptr ? nullptr : Text(tryst_server_setting(Get(self), text));
}

PyObject* Worker(PyObject* self, void*) {
  return PyUnicode_FromString(tryst_server_worker(Get(self)));
}
PyObject* Address(PyObject* self, void*) {
  return PyUnicode_FromString(tryst_server_address(Get(self)));
}
PyObject* Incarnation(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(tryst_server_incarnation(Get(self)));
}

PyObject* ReleaseGpuMemory(PyObject* self, PyObject*) {
  size_t released;
  {
    const WithoutGil without;
    released = tryst_server_release_gpu_memory(Get(self));
  }
  return PyLong_FromSize_t(released);
}

PyMethodDef kMethods[] = {
    {"start", Start, METH_NOARGS, nullptr},
    {"stop", Stop, METH_O, nullptr},
    {"peer_incarnation", PeerIncarnation, METH_VARARGS, nullptr},
    {"plan", Plan, METH_VARARGS, nullptr},
    {"weights", Weights, METH_VARARGS, nullptr},
    {"recv_one", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(RecvOne)), METH_FASTCALL,
     nullptr},
    {"send_selected", SendSelection, METH_VARARGS, nullptr},
    {"gather", Gather, METH_VARARGS, nullptr},
    {"region", Region, METH_VARARGS, nullptr},
    {"abort", Abort, METH_VARARGS, nullptr},
    {"cleanup", Cleanup, METH_O, nullptr},
    {"allocate", Allocate, METH_VARARGS, nullptr},
    {"explain", AskAbout<tryst_server_explain>, METH_O, nullptr},
    {"explain_json", AskAbout<tryst_server_explain_json>, METH_O, nullptr},
    {"waiting_json", Ask<tryst_server_waiting_json>, METH_NOARGS, nullptr},
    {"stats_json", Ask<tryst_server_stats_json>, METH_NOARGS, nullptr},
    {"release_gpu_memory", ReleaseGpuMemory, METH_NOARGS, nullptr},
    {"setting", Setting, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef kFields[] = {
    {"worker", Worker, nullptr, nullptr, nullptr},
    {"address", Address, nullptr, nullptr, nullptr},
    {"incarnation", Incarnation, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {Py_tp_getset, kFields},
    {0, nullptr},
};
PyType_Spec kSpec = {"tryst._tryst.Server", sizeof(ServerObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

PyObject* MakeServerType() {
  server_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return reinterpret_cast<PyObject*>(server_type);
}

}  // namespace tryst_python
