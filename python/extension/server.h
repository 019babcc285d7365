#ifndef TRYST_PYTHON_EXTENSION_SERVER_H_
#define TRYST_PYTHON_EXTENSION_SERVER_H_

#include "absl/functional/function_ref.h"
#include "python/extension/python.h"
#include "python/extension/sources.h"

namespace tryst_python {

PyObject* MakeServerType();     // tryst._tryst.Server
PyObject* MakeOperationType();  // tryst._tryst.Operation
PyObject* MakeQueueType();      // tryst._tryst.Queue

PyObject* MakePlanType();          // tryst._tryst.Plan
PyObject* MakeWeightsType();       // tryst._tryst.Weights
PyObject* MakeCancellationType();  // tryst._tryst.Cancellation
PyObject* MakeGroupType();         // tryst._tryst.Group
PyObject* MakeRegionType();        // tryst._tryst.Region

// (set, owners, settings). Returns null with an exception.
PyObject* OpenWeights(PyObject* server, tryst_server* handle, PyObject* args);
PyObject* WeightBoxes(PyObject* module, PyObject* args);

// A selection is None or (kind, unit, buffer). All return null with an exception.
// (step, key, source, selection)
PyObject* SendSelected(tryst_server* handle, PyObject* args);
// (step, key, wanted, into, landing, timeout, group, queue): an Operation.
PyObject* StartGather(PyObject* server, tryst_server* handle, PyObject* args);
// (name, memory, readers)
PyObject* OpenRegion(PyObject* server, tryst_server* handle, PyObject* args);

// (src_device, src_incarnation, dst_device, names). Returns null with an exception.
PyObject* NewPlan(PyObject* server, tryst_server* handle, PyObject* args);
// Makes an Operation of `count` receives, which `start` starts, without the interpreter's lock.
// `queue` is None or a Queue. Returns null with an exception.
PyObject* StartOperation(
    PyObject* server, Py_ssize_t count, PyObject* queue,
    absl::FunctionRef<tryst_status*(tryst_queue* queue, void* tag, tryst_op** op)> start);
PyObject* ReceiveOne(tryst_server* handle, PyObject* const* args, Py_ssize_t count);
// What is below 0 is 0; -1, without a limit, is of more than 1e9. Sets an exception of nan.
int64_t MsOf(double seconds);
// `timeout` is None or seconds; anything else sets an exception.
int64_t TimeoutMs(PyObject* timeout);
// Null: none.
void Follow(const Stream* stream, tryst_options* options);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_SERVER_H_
