#ifndef TRYST_PLUGINS_TENSORFLOW_LIBRARY_H_
#define TRYST_PLUGINS_TENSORFLOW_LIBRARY_H_

#include <string>

#include "server/c/tryst_v1.h"

namespace tryst_tensorflow {

// The functions of libtryst that the plug-in calls.
#define TRYST_TENSORFLOW_CALLS(X)  \
  X(tryst_abi_version)             \
  X(tryst_status_code)             \
  X(tryst_status_message)          \
  X(tryst_status_free)             \
  X(tryst_string_free)             \
  X(tryst_tensor_adopt)            \
  X(tryst_tensor_free)             \
  X(tryst_tensor_dtype)            \
  X(tryst_tensor_rank)             \
  X(tryst_tensor_dim)              \
  X(tryst_tensor_bytes)            \
  X(tryst_tensor_data)             \
  X(tryst_server_create)           \
  X(tryst_server_start)            \
  X(tryst_server_stop)             \
  X(tryst_server_worker)           \
  X(tryst_server_address)          \
  X(tryst_server_incarnation)      \
  X(tryst_server_peer_incarnation) \
  X(tryst_server_explain)          \
  X(tryst_server_stats_json)       \
  X(tryst_key)                     \
  X(tryst_step_cleanup)            \
  X(tryst_send)                    \
  X(tryst_recv_async)

// libtryst.so.1, loaded at run time beside TensorFlow. It hides the gRPC, Protobuf and Abseil that
// are linked into it, and does not see TensorFlow's.
struct Library {
#define TRYST_TENSORFLOW_CALL(name) decltype(&::name) name;
  TRYST_TENSORFLOW_CALLS(TRYST_TENSORFLOW_CALL)
#undef TRYST_TENSORFLOW_CALL
};

// Loads it once; null and `why` when it cannot be used. It is never unloaded, because its threads
// live as long as the process.
const Library* LoadLibrary(std::string* why);

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_LIBRARY_H_
