// Plans: names that recur, and the arrays that go under them.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/server.h"
#include "python/extension/sources.h"
#include "python/extension/tensor.h"

namespace tryst_python {
namespace {

// Arrays that were converted once, for many calls. Threads that run one while another binds others
// share it.
struct Bound {
  Sources sources;
  std::vector<const tryst_tensor*> tensors;
};

struct PlanObject {
  PyObject_HEAD tryst_plan* plan;
  tryst_server* handle;
  PyObject* server;  // Keeps the server alive.
  // What the plan was made of, for parts of it.
  PyObject* src_device;
  uint64_t src_incarnation;
  PyObject* dst_device;
  PyObject* names;   // A list.
  PyObject* arrays;  // What bind() was given; null: nothing was.
  // These arrays, converted; null where a stream has to be asked for in every call.
  std::shared_ptr<const Bound>* bound;
};

PyTypeObject* plan_type = nullptr;

PlanObject* AsPlan(PyObject* self) { return reinterpret_cast<PlanObject*>(self); }

// One call's tensors, in the order of the names.
struct Tensors {
  std::vector<const tryst_tensor*> each;
  std::vector<int> streams_of;  // Places in streams; Sources::kNoStream.
  std::vector<Stream> streams;
  uint64_t bytes = 0;
  bool any_on_host = false;  // An array lies on the host; Tensors do not count.
};

// Takes a list, a tuple, or a mapping by the names; false with an exception.
bool Convert(PyObject* names, PyObject* arrays, Sources* sources, Tensors* tensors) {
  const Py_ssize_t count = PyList_Size(names);
  const bool is_list = PyList_Check(arrays);
  const bool is_dict = PyDict_Check(arrays);
  if (is_list && PyList_Size(arrays) != count) {
    PyErr_Format(PyExc_ValueError, "%zd arrays were given for the %zd names of the plan",
                 PyList_Size(arrays), count);
    return false;
  }
  tensors->each.reserve(static_cast<size_t>(count));
  tensors->streams_of.reserve(static_cast<size_t>(count));
  // A list or a dictionary may be changed by the Python that converting runs.
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const name = PyList_GetItem(names, i);
    PyObject* const found = is_list   ? PyList_GetItem(arrays, i)
                            : is_dict ? PyDict_GetItemWithError(arrays, name)
                                      : nullptr;
    Ref array(found != nullptr   ? Py_NewRef(found)
              : is_list          ? nullptr
              : PyErr_Occurred() ? nullptr
                                 : PyObject_GetItem(arrays, name));
    if (!array) return false;
    int stream = Sources::kNoStream;
    const tryst_tensor* tensor = nullptr;
    if (array.get() != Py_None) {
      tensor = sources->Add(array.get());
      if (tensor == nullptr) return false;
      stream = sources->last_stream();
      tensors->bytes += tryst_tensor_bytes(tensor);
      tensors->any_on_host |= stream == Sources::kNoStream && !IsTensor(array.get());
    }
    tensors->each.push_back(tensor);
    tensors->streams_of.push_back(stream);
  }
  tensors->streams = sources->streams();
  return true;
}

void Dealloc(PyObject* self) {
  const GivesBack gives_back;
  PyTypeObject* const type = Py_TYPE(self);
  delete AsPlan(self)->bound;
  Py_XDECREF(AsPlan(self)->arrays);
  tryst_plan_free(AsPlan(self)->plan);
  Py_XDECREF(AsPlan(self)->src_device);
  Py_XDECREF(AsPlan(self)->dst_device);
  Py_XDECREF(AsPlan(self)->names);
  Py_XDECREF(AsPlan(self)->server);
  PyObject_Free(self);
  Py_DECREF(type);
}

// The arrays that send() and recv() take where they are given none: a list in the order of the
// names, or a mapping by them.
PyObject* Bind(PyObject* self, PyObject* arrays) {
  const GivesBack gives_back;
  PlanObject* const plan = AsPlan(self);
  auto bound = std::make_shared<Bound>();
  Tensors tensors;
  if (!Convert(plan->names, arrays, &bound->sources, &tensors)) return nullptr;
  bound->tensors = std::move(tensors.each);
  *plan->bound = tensors.streams.empty() ? std::move(bound) : nullptr;
  Py_XDECREF(std::exchange(plan->arrays, Py_NewRef(arrays)));
  Py_RETURN_NONE;
}

// The tensors of one call.
struct Call {
  Sources sources;
  Tensors tensors;
  std::shared_ptr<const Bound> bound;
  const std::vector<const tryst_tensor*>& each() const {
    return bound != nullptr ? bound->tensors : tensors.each;
  }
};

// Fills `call` from `arrays`, or from what the plan was bound to. False with an exception.
bool Fill(const PlanObject& plan, PyObject* arrays, Call* call) {
  if (arrays == Py_None) {
    call->bound = *plan.bound;
    if (call->bound != nullptr) return true;
    if (plan.arrays == nullptr) {
      PyErr_SetString(
          PyExc_ValueError,
          "the plan was made with names and no tensors: give send() the tensors to send");
      return false;
    }
    arrays = plan.arrays;
  }
  const Ref kept(Py_NewRef(arrays));
  return Convert(plan.names, arrays, &call->sources, &call->tensors);
}

tryst_status* SendFollowing(tryst_plan* plan, int64_t step, const tryst_tensor* const* tensors,
                            uint32_t flags, const Stream* stream, bool is_small) {
  tryst_options options = {};
  options.flags = flags;
  Follow(stream, &options);
  if (is_small) return tryst_plan_send(plan, step, tensors, &options);
  const WithoutGil without;
  return tryst_plan_send(plan, step, tensors, &options);
}

// A plan of those names of `plan` whose tensors go by `stream`, or of all where that is null. Null
// with an exception.
tryst_plan* MakePlan(const PlanObject& plan, const Tensors* tensors, int stream) {
  std::vector<const char*> names;
  const Py_ssize_t count = PyList_Size(plan.names);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (tensors != nullptr && tensors->streams_of[static_cast<size_t>(i)] != stream) continue;
    names.push_back(TextOf(PyList_GetItem(plan.names, i)));
    if (names.back() == nullptr) return nullptr;
  }
  const char* const src = TextOf(plan.src_device);
  const char* const dst = TextOf(plan.dst_device);
  tryst_plan* made = nullptr;
  if (src == nullptr || dst == nullptr ||
      Raised(tryst_plan_create(plan.handle, src, plan.src_incarnation, dst, names.data(),
                               names.size(), &made))) {
    return nullptr;
  }
  return made;
}

// A call of the library for each stream, with plans of their own. What follows none goes with the
// first stream. False with an exception.
bool SendByStream(const PlanObject& plan, int64_t step, Tensors* tensors, uint32_t flags) {
  for (int& stream : tensors->streams_of) stream = std::max(stream, 0);
  for (size_t stream = 0; stream < tensors->streams.size(); ++stream) {
    std::vector<const tryst_tensor*> these;
    for (size_t i = 0; i < tensors->each.size(); ++i) {
      if (tensors->streams_of[i] == static_cast<int>(stream)) these.push_back(tensors->each[i]);
    }
    tryst_plan* const part = MakePlan(plan, tensors, static_cast<int>(stream));
    if (part == nullptr) return false;
    tryst_status* const status =
        SendFollowing(part, step, these.data(), flags, &tensors->streams[stream], false);
    tryst_plan_free(part);
    if (Raised(status)) return false;
  }
  return true;
}

// (step, arrays or None, flags)
PyObject* Send(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  constexpr uint64_t kWorthReleasing = 64 << 10;
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "send takes 3 arguments");
    return nullptr;
  }
  const GivesBack gives_back;
  PlanObject* const plan = AsPlan(self);
  const int64_t step = PyLong_AsLongLong(args[0]);
  const auto flags = static_cast<uint32_t>(PyLong_AsUnsignedLong(args[2]));
  if (PyErr_Occurred()) return nullptr;
  Call call;
  if (!Fill(*plan, args[1], &call)) return nullptr;
  const std::vector<Stream>& streams = call.tensors.streams;
  if (streams.size() > 1) {
    if (!SendByStream(*plan, step, &call.tensors, flags)) return nullptr;
    Py_RETURN_NONE;
  }
  const bool is_small = call.bound == nullptr && call.tensors.bytes < kWorthReleasing;
  if (Raised(SendFollowing(plan->plan, step, call.each().data(), flags,
                           streams.empty() ? nullptr : &streams[0], is_small))) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// (step, arrays or None, timeout or None, flags, queue or None). Without arrays the tensors come in
// memory of the library's, or into what the plan was bound to.
PyObject* Receive(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "recv takes 5 arguments");
    return nullptr;
  }
  const GivesBack gives_back;
  PlanObject* const plan = AsPlan(self);
  const int64_t step = PyLong_AsLongLong(args[0]);
  const int64_t timeout_ms = TimeoutMs(args[2]);
  tryst_options options = {};
  options.flags = static_cast<uint32_t>(PyLong_AsUnsignedLong(args[3]));
  if (PyErr_Occurred()) return nullptr;
  Call call;
  const bool has_into = args[1] != Py_None || plan->arrays != nullptr;
  if (has_into && !Fill(*plan, args[1], &call)) return nullptr;
  const std::vector<Stream>& streams = call.tensors.streams;
  if (streams.size() > (call.tensors.any_on_host ? 0 : 1)) {
    PyErr_SetString(PyExc_ValueError,
                    "'into' has arrays on several GPUs or streams, and one call can wait for one "
                    "stream alone: receive the arrays of each stream in a call of its own");
    return nullptr;
  }
  Follow(streams.empty() ? nullptr : &streams[0], &options);
  return StartOperation(plan->server, PyList_Size(plan->names), args[4],
                        [&](tryst_queue* queue, void* tag, tryst_op** op) {
                          return tryst_plan_recv_start(plan->plan, step,
                                                       has_into ? call.each().data() : nullptr,
                                                       &options, timeout_ms, queue, tag, op);
                        });
}

PyMethodDef kMethods[] = {
    {"bind", Bind, METH_O, nullptr},
    {"send", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Send)), METH_FASTCALL, nullptr},
    {"recv", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Receive)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {0, nullptr},
};
PyType_Spec kSpec = {"tryst._tryst.Plan", sizeof(PlanObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};

}  // namespace

PyObject* NewPlan(PyObject* server, tryst_server* handle, PyObject* args) {
  PyObject *src_device, *dst_device, *names;
  unsigned long long src_incarnation;
  if (!PyArg_ParseTuple(args, "UKUO!", &src_device, &src_incarnation, &dst_device, &PyList_Type,
                        &names)) {
    return nullptr;
  }
  auto* const self = PyObject_New(PlanObject, plan_type);
  if (self == nullptr) return nullptr;
  self->plan = nullptr;
  self->handle = handle;
  self->server = Py_NewRef(server);
  self->src_device = Py_NewRef(src_device);
  self->src_incarnation = src_incarnation;
  self->dst_device = Py_NewRef(dst_device);
  self->names = Py_NewRef(names);
  self->arrays = nullptr;
  self->bound = new std::shared_ptr<const Bound>();
  Ref made(reinterpret_cast<PyObject*>(self));
  self->plan = MakePlan(*self, nullptr, 0);
  return self->plan == nullptr ? nullptr : made.release();
}

PyObject* MakePlanType() {
  plan_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return reinterpret_cast<PyObject*>(plan_type);
}

}  // namespace tryst_python
