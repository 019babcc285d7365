#ifndef TRYST_SERVER_C_TRYST_H_
#define TRYST_SERVER_C_TRYST_H_

/* Tryst for C and whatever calls C: tensors move between processes by name.
 *
 * Thread-safe but for what frees. Nothing here throws or exits. A call that can fail
 * returns a status: null when all is well, else the caller's to free. Strings and tensors
 * that a call gives out are the caller's to free too, unless it says otherwise, once each: what
 * was freed must not be used or freed again, as with free(). Null in place of a handle, or of a
 * place that a call writes to, fails with TRYST_INVALID_ARGUMENT where a status is returned;
 * elsewhere it gives 0, null or "", and frees nothing. Of a server any call may be made at any
 * time, in callbacks too, but not in a signal's handler, since calls allocate and lock; what
 * makes no sense then, as a send before the start, fails with a status. A timeout or deadline of
 * less than 0 ms is none: the call waits for as long as it takes. What is declared here keeps its
 * meaning and its layout within TRYST_ABI_VERSION. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRYST_ABI_VERSION 1       /* Has all of 0; what is new is in tryst_v1.h. */
uint32_t tryst_abi_version(void); /* Of the library. */

/* ---- Statuses: absl's and gRPC's codes ---- */

typedef enum {
  TRYST_OK = 0,
  TRYST_CANCELLED = 1,
  TRYST_UNKNOWN = 2,
  TRYST_INVALID_ARGUMENT = 3,
  TRYST_DEADLINE_EXCEEDED = 4,
  TRYST_NOT_FOUND = 5,
  TRYST_ALREADY_EXISTS = 6,
  TRYST_PERMISSION_DENIED = 7,
  TRYST_RESOURCE_EXHAUSTED = 8,
  TRYST_FAILED_PRECONDITION = 9,
  TRYST_ABORTED = 10,
  TRYST_OUT_OF_RANGE = 11,
  TRYST_UNIMPLEMENTED = 12,
  TRYST_INTERNAL = 13,
  TRYST_UNAVAILABLE = 14,
  TRYST_DATA_LOSS = 15,
  TRYST_UNAUTHENTICATED = 16
} tryst_code;

typedef struct tryst_status tryst_status;
tryst_code tryst_status_code(const tryst_status* status);     /* Of null: TRYST_OK. */
const char* tryst_status_message(const tryst_status* status); /* The status's own. */
void tryst_status_free(tryst_status* status);                 /* As all: null is no harm. */

void tryst_string_free(char* text);

/* ---- Tensors ---- */

/* TensorFlow's numbers. Strings have no size of their own: tryst_tensor_strings (tryst_v1.h). */
typedef enum {
  TRYST_FLOAT = 1,
  TRYST_DOUBLE = 2,
  TRYST_INT32 = 3,
  TRYST_UINT8 = 4,
  TRYST_INT16 = 5,
  TRYST_INT8 = 6,
  TRYST_STRING = 7,
  TRYST_COMPLEX64 = 8,
  TRYST_INT64 = 9,
  TRYST_BOOL = 10,
  TRYST_QINT8 = 11,
  TRYST_QUINT8 = 12,
  TRYST_QINT32 = 13,
  TRYST_BFLOAT16 = 14,
  TRYST_QINT16 = 15,
  TRYST_QUINT16 = 16,
  TRYST_UINT16 = 17,
  TRYST_COMPLEX128 = 18,
  TRYST_HALF = 19,
  TRYST_UINT32 = 22,
  TRYST_UINT64 = 23,
  TRYST_FLOAT8_E5M2 = 24,
  TRYST_FLOAT8_E4M3FN = 25,
  TRYST_INT4 = 29, /* One element a byte. */
  TRYST_UINT4 = 30
} tryst_dtype;

typedef struct tryst_tensor tryst_tensor; /* A reference to typed bytes with a shape. */

/* Memory of the library's, not cleared. */
tryst_status* tryst_tensor_allocate(tryst_dtype dtype, const int64_t* dims, size_t rank,
                                    tryst_tensor** tensor);
/* The caller's memory, without a copy. `release(arg)` runs once, on any thread, when
 * nobody refers to it any more; on failure too. `release` may be null. */
tryst_status* tryst_tensor_adopt(void* data, tryst_dtype dtype, const int64_t* dims, size_t rank,
                                 void (*release)(void* arg), void* arg, tryst_tensor** tensor);
void tryst_tensor_free(tryst_tensor* tensor); /* This reference. */

int32_t tryst_tensor_dtype(const tryst_tensor* tensor); /* May be one that is not listed. */
size_t tryst_tensor_rank(const tryst_tensor* tensor);
int64_t tryst_tensor_dim(const tryst_tensor* tensor, size_t i); /* i < rank */
uint64_t tryst_tensor_bytes(const tryst_tensor* tensor);
/* To be written only before it is sent, or by the destination's owner. Null for strings. */
void* tryst_tensor_data(tryst_tensor* tensor);

/* ---- A worker of a cluster ---- */

typedef struct tryst_server tryst_server;

/* `settings` as on trystd's command line: "--job=worker", "--task=0" (docs/CONFIG.md). The
 * environment's TRYST_* variables are heeded. */
tryst_status* tryst_server_create(const char* const* settings, size_t count, tryst_server** server);
tryst_status* tryst_server_start(tryst_server* server); /* Serves when it returns. */
/* Every callback has run when it returns. TRYST_DEADLINE_EXCEEDED: something was cut off.
 * TRYST_FAILED_PRECONDITION: it was called in a callback of this server, which it would wait
 * for, and has done nothing. */
tryst_status* tryst_server_stop(tryst_server* server, int64_t deadline_ms);
/* Stops it first if need be. In a callback of this server it returns at once, and the server
 * stops when the callback has returned. No call of the server may follow or be under way. */
void tryst_server_free(tryst_server* server);

const char* tryst_server_worker(const tryst_server* server); /* "/job:worker/replica:0/task:0" */
/* Both are the server's own. The address is empty until it has started. */
const char* tryst_server_address(const tryst_server* server);
uint64_t tryst_server_incarnation(const tryst_server* server);
/* Waits until the peer answers, so long at most. */
tryst_status* tryst_server_peer_incarnation(tryst_server* server, const char* peer,
                                            int64_t timeout_ms, uint64_t* incarnation);
/* Which path leads to the peer, and why; to all of them when empty or null. */
char* tryst_server_explain(tryst_server* server, const char* peer);

/* ---- Keyed tensors ---- */

/* "src_device;incarnation;dst_device;edge;frame:iter": a tensor's name in a step. The
 * incarnation is that of the source's worker: its life that produces. */
tryst_status* tryst_key(const char* src_device, uint64_t src_incarnation, const char* dst_device,
                        const char* edge, uint64_t frame, uint64_t iter, char** key);

/* Gives it to the receive of the key, now or when it comes; keeps the bytes until then.
 * Never waits. A null tensor is a dead one. The caller keeps its reference, and must not
 * change the bytes any more. */
tryst_status* tryst_send(tryst_server* server, int64_t step, const char* key,
                         const tryst_tensor* tensor);
/* The same of a copy, made before it returns: the bytes may be changed at once. */
tryst_status* tryst_send_copy(tryst_server* server, int64_t step, const char* key,
                              const tryst_tensor* tensor);

/* Called once, on a thread of the library's or on the one that asked. `status` is null
 * when all is well, and lasts for the call. `tensor` is the callee's to free: null on
 * failure and when what was sent is dead. */
typedef void (*tryst_done)(void* arg, const tryst_status* status, tryst_tensor* tensor,
                           int is_dead);
/* `into`, if not null, is what is filled, and the tensor that comes refers to its memory. It
 * has the type and the shape of what was sent, is not read-only, and holds no strings: else the
 * receive fails with TRYST_INVALID_ARGUMENT. It stays in use until `done` has run. */
void tryst_recv_async(tryst_server* server, int64_t step, const char* key, const tryst_tensor* into,
                      tryst_done done, void* arg);
/* The same, waiting, up to `timeout_ms`; without limit when that is negative. 0: only for
 * what is here already. A dead tensor is null. */
tryst_status* tryst_recv(tryst_server* server, int64_t step, const char* key,
                         const tryst_tensor* into, int64_t timeout_ms, tryst_tensor** tensor);

/* Fails what waits in the step, and what comes later, here. */
tryst_status* tryst_step_abort(tryst_server* server, int64_t step, tryst_code code,
                               const char* message);
/* The step is over here. Its number is not used again. */
void tryst_step_cleanup(tryst_server* server, int64_t step);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TRYST_SERVER_C_TRYST_H_ */
