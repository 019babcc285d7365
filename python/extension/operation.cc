// Receives under way, and the queues that give finished ones.
#include <cmath>
#include <cstring>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/server.h"
#include "python/extension/sources.h"
#include "python/extension/tensor.h"

namespace tryst_python {
namespace {

constexpr int64_t kSignalCheckMs = 50;

struct QueueObject {
  PyObject_HEAD tryst_queue* queue;
};

struct OperationObject {
  PyObject_HEAD tryst_op* op;
  Py_ssize_t count;
  PyObject* server;  // Keeps the server alive.
  PyObject* queue;   // Keeps the queue alive; null: none.
  PyObject* owner;   // Set by the caller: a weak reference to what waits.
};

PyTypeObject* queue_type = nullptr;
PyTypeObject* operation_type = nullptr;

OperationObject* AsOperation(PyObject* self) { return reinterpret_cast<OperationObject*>(self); }
tryst_queue* AsQueue(PyObject* self) { return reinterpret_cast<QueueObject*>(self)->queue; }

// ---- Operations ----

void DeallocOperation(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  OperationObject* const operation = AsOperation(self);
  tryst_op_free(operation->op);
  Py_XDECREF(operation->server);
  Py_XDECREF(operation->queue);
  Py_XDECREF(operation->owner);
  PyObject_Free(self);
  Py_DECREF(type);
}

// Waits without the interpreter's lock, but checks for signals: Ctrl-C ends the wait and cancels
// the operation. Below 0 ms it waits without limit. Returns 1 when the operation has ended, -1 with
// an exception.
int WaitFor(tryst_op* op, int64_t left_ms) {
  const bool forever = left_ms < 0;
  while (!tryst_op_wait(op, 0)) {
    const int64_t slice = forever || left_ms > kSignalCheckMs ? kSignalCheckMs : left_ms;
    int ended;
    {
      const WithoutGil without;
      ended = tryst_op_wait(op, slice);
    }
    if (ended) return 1;
    if (PyErr_CheckSignals() != 0) {
      tryst_op_cancel(op);
      return -1;
    }
    if (forever) continue;
    left_ms -= slice;
    if (left_ms <= 0) return 0;
  }
  return 1;
}

PyObject* Wait(PyObject* self, PyObject* timeout) {
  const int64_t left_ms = TimeoutMs(timeout);
  if (PyErr_Occurred()) return nullptr;
  const int ended = WaitFor(AsOperation(self)->op, left_ms);
  return ended < 0 ? nullptr : PyBool_FromLong(ended);
}

PyObject* Cancel(PyObject* self, PyObject*) {
  tryst_op_cancel(AsOperation(self)->op);
  Py_RETURN_NONE;
}

// The tensor of the i-th receive, None for a dead one. Raises the receive's error.
PyObject* Result(PyObject* self, PyObject* index) {
  const Py_ssize_t i = PyLong_AsSsize_t(index);
  if (i < 0 && PyErr_Occurred()) return nullptr;
  tryst_tensor* tensor;
  int is_dead;
  if (Raised(tryst_op_result(AsOperation(self)->op, static_cast<size_t>(i), &tensor, &is_dead))) {
    return nullptr;
  }
  if (tensor == nullptr) Py_RETURN_NONE;
  return WrapTensor(tensor);
}

// All tensors in a list; raises the first error.
PyObject* Results(PyObject* self, PyObject*) {
  const Py_ssize_t count = AsOperation(self)->count;
  Ref list(PyList_New(count));
  for (Py_ssize_t i = 0; list && i < count; ++i) {
    const Ref index(PyLong_FromSsize_t(i));
    PyObject* const result = Result(self, index.get());
    if (result == nullptr || PyList_SetItem(list.get(), i, result) != 0) return nullptr;
  }
  GiveBackDeferred();
  return list.release();
}

// The numbers of a gather's spans that failed, and all spans' digests: uint32 in two bytes objects.
PyObject* Spans(PyObject* self, PyObject*) {
  const tryst_op* const op = AsOperation(self)->op;
  const auto numbers = [op](size_t (*get)(const tryst_op*, uint32_t*, size_t)) {
    const size_t count = get(op, nullptr, 0);
    PyObject* const bytes =
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * sizeof(uint32_t)));
    if (bytes != nullptr) get(op, reinterpret_cast<uint32_t*>(PyBytes_AsString(bytes)), count);
    return bytes;
  };
  const Ref failed(numbers(tryst_op_failed_spans)), digests(numbers(tryst_op_span_digests));
  if (!failed || !digests) return nullptr;
  return PyTuple_Pack(2, failed.get(), digests.get());
}

PyObject* GetOwner(PyObject* self, void*) {
  PyObject* const owner = AsOperation(self)->owner;
  return Py_NewRef(owner == nullptr ? Py_None : owner);
}

int SetOwner(PyObject* self, PyObject* owner, void*) {
  PyObject* const old = AsOperation(self)->owner;
  AsOperation(self)->owner = Py_XNewRef(owner);
  Py_XDECREF(old);
  return 0;
}

PyMethodDef kOperationMethods[] = {
    {"wait", Wait, METH_O,
     "Waits for at most this many seconds, None: without a limit. Returns whether it has ended."},
    {"cancel", Cancel, METH_NOARGS, "Ends the operation with Cancelled if it is still under way."},
    {"result", Result, METH_O, nullptr},
    {"results", Results, METH_NOARGS, nullptr},
    {"spans", Spans, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef kOperationFields[] = {
    {"owner", GetOwner, SetOwner, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot kOperationSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocOperation)},
    {Py_tp_methods, kOperationMethods},
    {Py_tp_getset, kOperationFields},
    {0, nullptr},
};
PyType_Spec kOperationSpec = {"tryst._tryst.Operation", sizeof(OperationObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              kOperationSlots};

// ---- Queues ----

PyObject* NewQueue(PyTypeObject* type, PyObject*, PyObject*) {
  (void)type;
  tryst_queue* queue;
  if (Raised(tryst_queue_create(&queue))) return nullptr;
  auto* const self = PyObject_New(QueueObject, queue_type);
  if (self == nullptr) {
    tryst_queue_free(queue);
    return nullptr;
  }
  self->queue = queue;
  return reinterpret_cast<PyObject*>(self);
}

void DeallocQueue(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  tryst_queue_free(AsQueue(self));
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* FileNumber(PyObject* self, PyObject*) {
  return PyLong_FromLong(tryst_queue_fd(AsQueue(self)));
}

// Takes up to `most` finished operations. Never waits.
PyObject* Take(PyObject* self, PyObject* most) {
  const Py_ssize_t max = PyLong_AsSsize_t(most);
  if (PyErr_Occurred()) return nullptr;
  std::vector<tryst_op*> ops(static_cast<size_t>(max > 0 ? max : 0));
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  // The queue owns no operation: each leaves it when it is freed, which needs the interpreter's
  // lock. So all of them are there, and are kept before anything else can run.
  const size_t count = tryst_queue_take(AsQueue(self), ops.data(), ops.size(), 0);
  for (size_t i = 0; i < count; ++i) Py_INCREF(static_cast<PyObject*>(tryst_op_tag(ops[i])));
  for (size_t i = 0; i < count; ++i) {
    const Ref operation(static_cast<PyObject*>(tryst_op_tag(ops[i])));
    if (list && PyList_Append(list.get(), operation.get()) != 0) list = Ref();
  }
  GiveBackDeferred();
  return list.release();
}

PyMethodDef kQueueMethods[] = {
    {"fileno", FileNumber, METH_NOARGS, nullptr},
    {"take", Take, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kQueueSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewQueue)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocQueue)},
    {Py_tp_methods, kQueueMethods},
    {0, nullptr},
};
PyType_Spec kQueueSpec = {"tryst._tryst.Queue", sizeof(QueueObject), 0, Py_TPFLAGS_DEFAULT,
                          kQueueSlots};

}  // namespace

PyObject* MakeOperationType() {
  operation_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kOperationSpec));
  return reinterpret_cast<PyObject*>(operation_type);
}

PyObject* MakeQueueType() {
  queue_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kQueueSpec));
  return reinterpret_cast<PyObject*>(queue_type);
}

void Follow(const Stream* stream, tryst_options* options) {
  if (stream == nullptr) return;
  options->has_stream = 1;
  options->gpu = stream->gpu;
  options->stream = stream->address;
}

int64_t MsOf(double seconds) {
  if (std::isnan(seconds)) {
    PyErr_SetString(PyExc_ValueError, "a time to wait is nan: give seconds");
    return 0;
  }
  return seconds <= 0 ? 0 : seconds > 1e9 ? -1 : static_cast<int64_t>(seconds * 1000 + 0.999);
}

int64_t TimeoutMs(PyObject* timeout) {
  return timeout == Py_None ? -1 : MsOf(PyFloat_AsDouble(timeout));
}

namespace {

// Whether the worker of `handle` itself sends the tensors of `key`.
bool IsOwn(const tryst_server* handle, const char* key) {
  const char* const worker = tryst_server_worker(handle);
  const size_t size = std::strlen(worker);
  return std::strncmp(key, worker, size) == 0 && key[size] == '/';
}

}  // namespace

// Receives one key: (step, key, timeout or None, flags, into or None).
PyObject* ReceiveOne(tryst_server* handle, PyObject* const* args, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "recv_one() takes 5 arguments");
    return nullptr;
  }
  const GivesBack gives_back;
  tryst_options options = {};
  const int64_t step = PyLong_AsLongLong(args[0]);
  tryst_recv_item item = {TextOf(args[1]), nullptr};
  const int64_t timeout_ms = TimeoutMs(args[2]);
  options.flags = static_cast<uint32_t>(PyLong_AsUnsignedLong(args[3]));
  if (PyErr_Occurred()) return nullptr;
  Sources sources;
  if (args[4] != Py_None) {
    item.into = sources.Add(args[4]);
    if (item.into == nullptr) return nullptr;
    Follow(sources.streams().empty() ? nullptr : &sources.streams()[0], &options);
  }
  const bool own = IsOwn(handle, item.key);
  tryst_op* op;
  tryst_status* status;
  if (own && item.into == nullptr) {
    // It may be there already, and the interpreter's lock need not be given up.
    status = tryst_recv_start(handle, step, &item, 1, &options, timeout_ms, nullptr, nullptr, &op);
  } else {
    const WithoutGil without;  // The call may copy a tensor that this worker sent to itself.
    status = tryst_recv_start(handle, step, &item, 1, &options, timeout_ms, nullptr, nullptr, &op);
    if (status == nullptr && !own) tryst_op_wait(op, kSignalCheckMs);
  }
  if (Raised(status)) return nullptr;
  PyObject* result = nullptr;
  if (WaitFor(op, -1) > 0) {
    tryst_tensor* tensor;
    int is_dead;
    if (!Raised(tryst_op_result(op, 0, &tensor, &is_dead))) {
      result = tensor == nullptr ? Py_NewRef(Py_None) : WrapTensor(tensor);
    }
  }
  tryst_op_free(op);
  return result;
}

PyObject* StartOperation(
    PyObject* server, Py_ssize_t count, PyObject* queue,
    absl::FunctionRef<tryst_status*(tryst_queue* queue, void* tag, tryst_op** op)> start) {
  auto* const self = PyObject_New(OperationObject, operation_type);
  if (self == nullptr) return nullptr;
  self->op = nullptr;
  self->count = count;
  self->server = Py_NewRef(server);
  self->queue = queue == Py_None ? nullptr : Py_NewRef(queue);
  self->owner = nullptr;
  Ref result(reinterpret_cast<PyObject*>(self));
  tryst_status* status;
  {
    const WithoutGil without;  // The call may copy a tensor that this worker sent to itself.
    status = start(self->queue == nullptr ? nullptr : AsQueue(queue), result.get(), &self->op);
  }
  return Raised(status) ? nullptr : result.release();
}

}  // namespace tryst_python
