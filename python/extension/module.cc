// The module tryst._tryst: the C interface for Python. Users see python/tryst.
#include <cstring>
#include <vector>

#include "python/extension/deferred.h"
#include "python/extension/server.h"
#include "python/extension/sources.h"
#include "python/extension/tensor.h"

int TrystMain(int argc, char** argv);  // The command line program: server/tryst_main.cc.

namespace tryst_python {
namespace {

PyObject* error_maker = nullptr;

PyObject* SetErrorMakerOf(PyObject*, PyObject* maker) {
  SetErrorMaker(maker);
  Py_RETURN_NONE;
}

// (tensor, stream): see sources.h.
PyObject* SetArrayHelpersOf(PyObject*, PyObject* args) {
  PyObject *tensor, *stream;
  if (!PyArg_ParseTuple(args, "OO", &tensor, &stream)) return nullptr;
  SetArrayHelpers(tensor, stream);
  Py_RETURN_NONE;
}

PyObject* TensorOf(PyObject*, PyObject* source) {
  const GivesBack gives_back;
  return Sources().Wrap(source);
}

PyObject* GiveBack(PyObject*, PyObject*) {
  GiveBackDeferred();
  Py_RETURN_NONE;
}

PyObject* End(PyObject*, PyObject*) {
  StopDeferring();
  Py_RETURN_NONE;
}

PyObject* CommandLine(PyObject*, PyObject* words) {
  std::vector<char*> argv;
  for (Py_ssize_t i = 0; i < PyList_Size(words); ++i) {
    argv.push_back(const_cast<char*>(TextOf(PyList_GetItem(words, i))));
    if (argv.back() == nullptr) return nullptr;
  }
  int code;
  {
    const WithoutGil without;
    code = TrystMain(static_cast<int>(argv.size()), argv.data());
  }
  return PyLong_FromLong(code);
}

PyMethodDef kMethods[] = {
    {"set_error_maker", SetErrorMakerOf, METH_O, nullptr},
    {"set_array_helpers", SetArrayHelpersOf, METH_VARARGS, nullptr},
    {"tensor", TensorOf, METH_O,
     "tensor(source): a Tensor of anything that holds one, without a copy where its memory is "
     "dense."},
    {"weight_boxes", WeightBoxes, METH_VARARGS, nullptr},
    {"give_back", GiveBack, METH_NOARGS, nullptr},
    {"end", End, METH_NOARGS, nullptr},
    {"command_line", CommandLine, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "tryst._tryst",
                       nullptr,
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

bool Add(PyObject* module, const char* name, PyObject* type) {
  return type != nullptr && PyModule_AddObjectRef(module, name, type) == 0;
}

}  // namespace

void SetErrorMaker(PyObject* maker) {
  PyObject* const old = error_maker;
  error_maker = Py_NewRef(maker);
  Py_XDECREF(old);
}

PyObject* MakeString(const char* text) {
  return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace");
}

const char* TextOf(PyObject* text) {
  Py_ssize_t size;
  const char* const made = PyUnicode_AsUTF8AndSize(text, &size);
  if (made == nullptr || std::strlen(made) == static_cast<size_t>(size)) return made;
  PyErr_Format(PyExc_ValueError, "%R has a NUL in it: give a name or a setting without one", text);
  return nullptr;
}

bool Raised(tryst_status* status) {
  if (status == nullptr) return false;
  const int code = static_cast<int>(tryst_status_code(status));
  const int derived = tryst_status_is_derived(status);
  const Ref message(MakeString(tryst_status_message(status)));
  if (error_maker == nullptr) {
    if (message) PyErr_SetObject(PyExc_RuntimeError, message.get());
  } else if (message) {
    const Ref error(PyObject_CallFunction(error_maker, "iOi", code, message.get(), derived));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  }
  tryst_status_free(status);
  return true;
}

}  // namespace tryst_python

PyMODINIT_FUNC PyInit__tryst(void) {
  using namespace tryst_python;  // NOLINT(build/namespaces)
  Ref module(PyModule_Create(&kModule));
  if (!module) return nullptr;
  const bool good =
      Add(module.get(), "Tensor", MakeTensorType()) &&
      Add(module.get(), "Server", MakeServerType()) &&
      Add(module.get(), "Operation", MakeOperationType()) &&
      Add(module.get(), "Queue", MakeQueueType()) && Add(module.get(), "Plan", MakePlanType()) &&
      Add(module.get(), "Weights", MakeWeightsType()) &&
      Add(module.get(), "Cancellation", MakeCancellationType()) &&
      Add(module.get(), "Group", MakeGroupType()) && Add(module.get(), "Region", MakeRegionType());
  return good ? module.release() : nullptr;
}
