#ifndef TRYST_PYTHON_EXTENSION_SERVER_H_
#define TRYST_PYTHON_EXTENSION_SERVER_H_

#include "python/extension/python.h"
#include "python/extension/sources.h"

namespace tryst_python {

PyObject* MakeServerType();     // tryst._tryst.Server
PyObject* MakeOperationType();  // tryst._tryst.Operation
PyObject* MakeQueueType();      // tryst._tryst.Queue

// `queue` is None or a Queue. Returns null with an exception.
PyObject* StartReceive(PyObject* server, tryst_server* handle, PyObject* args);
PyObject* ReceiveOne(tryst_server* handle, PyObject* const* args, Py_ssize_t count);
// Null: none.
void Follow(const Stream* stream, tryst_options* options);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_SERVER_H_
