#ifndef TRYST_SERVER_C_TRYST_V1_H_
#define TRYST_SERVER_C_TRYST_V1_H_

/* Tryst for C, version 1: many tensors in one call, without callbacks.
 *
 * Receives are operations. One is started, and then waited for, or taken from a queue whose
 * descriptor an event loop watches; nothing runs on a thread that is not the caller's. What is
 * said in tryst.h of statuses, threads and timeouts holds here too.
 *
 * After a fork the child has no threads of the server: what it calls of its parent's servers
 * fails with TRYST_FAILED_PRECONDITION, and freeing them does nothing. So it is with operations
 * that its parent had started: they count as ended, and its queues give nothing. */

#include "tryst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses ---- */

/* Whether the failure is the consequence of another one: a receive of a step that somebody
 * aborted, or a cancelled one. The cause is the failure that is not. */
int tryst_status_is_derived(const tryst_status* status);

/* ---- Tensors ---- */

/* 1: its memory is somebody else's too, and must not be written. */
int tryst_tensor_is_read_only(const tryst_tensor* tensor);
/* Where its bytes are: -1 for the host, else the number of the CUDA device. */
int32_t tryst_tensor_gpu(const tryst_tensor* tensor);
const char* tryst_dtype_name(int32_t dtype); /* "float", "bfloat16"; "invalid" */

/* `count` strings in the shape `dims`: copied. */
tryst_status* tryst_tensor_strings(const char* const* texts, const size_t* sizes,
                                   const int64_t* dims, size_t rank, tryst_tensor** tensor);
/* The i-th string, the tensor's own. TRYST_INVALID_ARGUMENT: no strings, TRYST_OUT_OF_RANGE. */
tryst_status* tryst_tensor_string(const tryst_tensor* tensor, size_t i, const char** text,
                                  size_t* size);

/* DLPack, in both layouts that are about: 1.x, and 0.x as a plain DLManagedTensor. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Takes the tensor over, without a copy: its deleter runs when nobody refers to the bytes any
 * more, on any thread. On failure it is still the caller's. Host and CUDA memory; strides must
 * be those of a compact tensor. A read-only one can be sent, and no receive fills it. */
tryst_status* tryst_tensor_from_dlpack(struct DLManagedTensorVersioned* managed,
                                       tryst_tensor** tensor);
tryst_status* tryst_tensor_from_dlpack0(struct DLManagedTensor* managed, tryst_tensor** tensor);
/* The same bytes for another library, which calls the deleter once. It is marked read-only where
 * the tensor is; the old layout cannot say so, and is refused then: TRYST_FAILED_PRECONDITION.
 * Strings have no DLPack: TRYST_INVALID_ARGUMENT. */
tryst_status* tryst_tensor_to_dlpack(const tryst_tensor* tensor,
                                     struct DLManagedTensorVersioned** managed);
tryst_status* tryst_tensor_to_dlpack0(const tryst_tensor* tensor, struct DLManagedTensor** managed);

/* ---- Queues ---- */

/* Where finished operations wait to be taken. Thread-safe but for what frees. */
typedef struct tryst_queue tryst_queue;
typedef struct tryst_op tryst_op; /* Receives under way, started together. */

tryst_status* tryst_queue_create(tryst_queue** queue);
/* No operation of the queue may be left. */
void tryst_queue_free(tryst_queue* queue);
/* For poll, epoll, asyncio: readable as long as something can be taken. The queue's own: it is
 * neither read nor closed. */
int tryst_queue_fd(const tryst_queue* queue);
/* Up to `max` operations that have finished, the first first; how many. Waits for the first one
 * up to `timeout_ms`. */
size_t tryst_queue_take(tryst_queue* queue, tryst_op** ops, size_t max, int64_t timeout_ms);

/* ---- Sends ---- */

/* What a call may say beside its keys. Zero is a good default for all of it. */
typedef struct {
  uint32_t flags;     /* Of TRYST_SEND_... or TRYST_RECV_...; others are refused. */
  int32_t has_stream; /* 1: of the GPU `gpu` of this server, in the order of `stream`. */
  int32_t gpu;
  int32_t reserved; /* 0. */
  void* stream;     /* A CUstream; null is the default stream. */
} tryst_options;

enum {
  TRYST_SEND_COPY = 1,    /* Of a copy, made before the call returns. */
  TRYST_SEND_DIGESTS = 2, /* tryst_send_selected: for a gather with TRYST_RECV_DIGESTS. */

  /* May come as a view of the producer's memory, to be read only. An `into` is filled all the
   * same. */
  TRYST_RECV_BY_REFERENCE = 1,
  TRYST_RECV_RECURRING = 2, /* The same keys are wanted in step after step: ask ahead. */

  /* Of a gather. Spans have digests, and are checked: those that come right land, and others make
   * it fail with TRYST_DATA_LOSS, or with TRYST_RECV_PARTIAL are told by tryst_op_failed_spans. */
  TRYST_RECV_DIGESTS = 4,
  TRYST_RECV_PARTIAL = 8
};

typedef struct {
  const char* key;
  const tryst_tensor* tensor; /* Null: a dead one. */
} tryst_send_item;

/* As tryst_send for each, in one call. On a failure none was sent. Device tensors are read once
 * the stream is where it is now. `options` may be null. */
tryst_status* tryst_send_many(tryst_server* server, int64_t step, const tryst_send_item* items,
                              size_t count, const tryst_options* options);

/* ---- Receives ---- */

typedef struct {
  const char* key;
  const tryst_tensor* into; /* Null, or what is filled; see tryst_recv_async. */
} tryst_recv_item;

/* Starts a receive for each item. `timeout_ms` as everywhere: below 0 is none. The operation is
 * the caller's to free; its `into` tensors keep their memory until it has finished. When it has,
 * it can be taken from `queue`, if that is not null. Device tensors are written once the
 * stream is where it is now, and are there when the operation has finished. */
tryst_status* tryst_recv_start(tryst_server* server, int64_t step, const tryst_recv_item* items,
                               size_t count, const tryst_options* options, int64_t timeout_ms,
                               tryst_queue* queue, void* tag, tryst_op** op);
void* tryst_op_tag(const tryst_op* op);
/* 1: every receive of it has ended. Waits up to `timeout_ms` for that. */
int tryst_op_wait(tryst_op* op, int64_t timeout_ms);
/* What is still under way ends with TRYST_CANCELLED. Returns at once. */
void tryst_op_cancel(tryst_op* op);
/* What became of the i-th receive; the tensor is the caller's from then on, null for a dead one.
 * TRYST_FAILED_PRECONDITION: it has not finished. */
tryst_status* tryst_op_result(tryst_op* op, size_t i, tryst_tensor** tensor, int* is_dead);
/* Cancels it if it is under way, takes it out of its queue and waits for nothing. */
void tryst_op_free(tryst_op* op);

/* ---- Plans: names that recur ---- */

/* The keys of tensors that go from one device to another in step after step: parsed once, so that
 * a step costs one call and no text. Thread-safe but for what frees. */
typedef struct tryst_plan tryst_plan;

/* Of the keys "src_device;src_incarnation;dst_device;EDGE;0:0". When the source's worker has
 * restarted it has another incarnation, and needs another plan. The server must outlive it. */
tryst_status* tryst_plan_create(tryst_server* server, const char* src_device,
                                uint64_t src_incarnation, const char* dst_device,
                                const char* const* edges, size_t count, tryst_plan** plan);
/* As tryst_send_many, of `count` tensors in the order of the edges; null is a dead one. */
tryst_status* tryst_plan_send(tryst_plan* plan, int64_t step, const tryst_tensor* const* tensors,
                              const tryst_options* options);
/* As tryst_recv_start. `intos` is null, or has one for each edge, which may be null. */
tryst_status* tryst_plan_recv_start(tryst_plan* plan, int64_t step,
                                    const tryst_tensor* const* intos, const tryst_options* options,
                                    int64_t timeout_ms, tryst_queue* queue, void* tag,
                                    tryst_op** op);
/* What it has started goes on. */
void tryst_plan_free(tryst_plan* plan);

/* ---- Steps of a peer ---- */

/* As a job's chief does. The peer answers within `timeout_ms`, or the call fails with
 * TRYST_UNAVAILABLE or TRYST_DEADLINE_EXCEEDED; a peer that is not up is waited for as long.
 * TRYST_PERMISSION_DENIED: its setting `control` does not let us. */
tryst_status* tryst_peer_step_begin(tryst_server* server, const char* peer, int64_t step,
                                    int64_t timeout_ms);
/* Fails what waits in the step at the peer, and what comes later. */
tryst_status* tryst_peer_step_abort(tryst_server* server, const char* peer, int64_t step,
                                    tryst_code code, const char* message, int64_t timeout_ms);
/* The step is over at the peer. */
tryst_status* tryst_peer_step_cleanup(tryst_server* server, const char* peer, int64_t step,
                                      int64_t timeout_ms);

/* ---- Memory that the host's workers share ---- */

/* Not cleared. What is sent in it reaches the workers of this host without a copy where they
 * receive by reference. TRYST_RESOURCE_EXHAUSTED: shm_bytes are used up. Where no memory is shared
 * it is memory as any other. TRYST_INVALID_ARGUMENT: strings, which have no fixed size. */
tryst_status* tryst_server_allocate(tryst_server* server, int32_t dtype, const int64_t* dims,
                                    size_t rank, tryst_tensor** tensor);

/* ---- Memory of GPUs ---- */

/* For a program whose allocator has given memory of a GPU back to the driver. Lets go at once of
 * what this server keeps mapped of its peers' memory and no tensor uses, so that theirs becomes
 * free; they do so with ours when they next fetch out of it. How many mappings went. Of a server
 * that serves; without GPUs it does nothing. */
size_t tryst_server_release_gpu_memory(tryst_server* server);

/* ---- Selections: many spans under one key (docs/KV.md) ---- */

/* Spans of one tensor's bytes, in the order in which they travel. Each end has its own; they need
 * not agree but in their bytes together. Null is the whole tensor. */
typedef struct {
  int32_t kind; /* Of TRYST_SELECT_... */
  uint32_t reserved;
  uint64_t unit; /* TRYST_SELECT_INDICES: the bytes of a block. */
  const void* items;
  size_t count;
} tryst_selection;
enum {
  TRYST_SELECT_WHOLE = 0,
  TRYST_SELECT_INDICES = 1, /* uint32_t i: the bytes [i * unit, (i + 1) * unit). */
  TRYST_SELECT_RUNS = 2,    /* tryst_run */
  TRYST_SELECT_SPANS = 3,   /* tryst_span */
  TRYST_SELECT_BOXES = 4    /* tryst_box */
};
typedef struct {
  uint64_t offset;
  uint64_t bytes;
} tryst_span;
typedef struct { /* `count` spans of `bytes`, each `stride` bytes behind the one before. */
  uint64_t offset;
  uint64_t bytes;
  uint64_t stride;
  uint64_t count;
} tryst_run;
typedef struct {   /* Elements of a tensor whose dimensions have strides, in row-major order. */
  uint64_t offset; /* Of the first one. Bytes, as all of these but the extent. */
  uint64_t element_bytes;
  const uint64_t* extent; /* How many there are in each dimension, the outermost first. */
  const uint64_t* strides;
  size_t rank;
} tryst_box;

/* Sends the selected bytes, copied: `tensor` is the caller's again when it returns. Who receives
 * without a selection gets a row of bytes. Of a GPU's memory `options` has the stream: what is
 * queued there from now on may write the memory; and not TRYST_SEND_DIGESTS, which the gather then
 * must have, too. `options` may be null. */
tryst_status* tryst_send_selected(tryst_server* server, int64_t step, const char* key,
                                  const tryst_tensor* tensor, const tryst_selection* selection,
                                  const tryst_options* options);

/* Receives that are cancelled together. Thread-safe but for what frees. */
typedef struct tryst_group tryst_group;
tryst_status* tryst_group_create(tryst_group** group);
/* What is under way ends with TRYST_CANCELLED, and what is started later is refused. At once. */
void tryst_group_cancel(tryst_group* group);
/* 1: it was cancelled, and nothing lands any more in any `into` of it. Waits up to `timeout_ms`. */
int tryst_group_fenced(tryst_group* group, int64_t timeout_ms);
size_t tryst_group_under_way(const tryst_group* group);
/* {"ended_ok":3,"cancelled":1,"failed":0,"bytes_landed":4096,"slowest_peer":"...","waited_ns":5}.
 * Null before it is fenced. */
char* tryst_group_report_json(const tryst_group* group);
/* Cancels what is under way, and does not wait. */
void tryst_group_free(tryst_group* group);

/* Starts a receive whose bytes fill `landing` of `into`; the rest of it stays as it is. With
 * `wanted` the key's edge is "|region|NAME", and those bytes of that region are fetched, which
 * nobody sends. One that fails has written nothing but, of a region or with digests, perhaps a part
 * of `landing`; when it has finished nothing is written any more. The lists are the caller's when
 * it returns. TRYST_INVALID_ARGUMENT: a list does not fit, `landing` has bytes twice, or the two
 * ends' bytes differ, or one alone has digests. Into a GPU's memory `options` has the stream, and
 * no digests, and `wanted` is null. `group`, `landing`, `options` and `queue` may be null. */
tryst_status* tryst_gather_start(tryst_server* server, int64_t step, const char* key,
                                 const tryst_selection* wanted, const tryst_tensor* into,
                                 const tryst_selection* landing, const tryst_options* options,
                                 int64_t timeout_ms, tryst_group* group, tryst_queue* queue,
                                 void* tag, tryst_op** op);
/* Of a gather that has finished: how many spans of `landing` are not there as a whole, or have a
 * wrong digest, and the numbers of the first `max` of them, ascending. They count the spans of the
 * list from 0, each of a run or a box for itself; what lies without a gap there is one. */
size_t tryst_op_failed_spans(const tryst_op* op, uint32_t* spans, size_t max);
/* How many CRC-32C there are, one for each span, and the first `max`; 0 of one that failed. */
size_t tryst_op_span_digests(const tryst_op* op, uint32_t* digests, size_t max);

/* Memory that peers may fetch of, any number of times, until it is closed. It may be written
 * meanwhile; what is fetched then may be torn. `readers` are workers' names, or their beginnings up
 * to a '/'; none: whoever may receive from this worker. The server outlives it. */
typedef struct tryst_region tryst_region;
tryst_status* tryst_region_open(tryst_server* server, const char* name, const tryst_tensor* memory,
                                const char* const* readers, size_t reader_count,
                                tryst_region** region);
/* Nobody is answered any more (TRYST_UNAVAILABLE). 1: nothing reads the memory, or what is read
 * counts for nothing. Waits up to `timeout_ms` for that, which no peer can delay. */
int tryst_region_close(tryst_region* region, int64_t timeout_ms);
/* That peers were answered with; who copies by himself (grants, docs/SECURITY.md) does not count,
 * and who wants digests always asks. */
uint64_t tryst_region_bytes_sent(const tryst_region* region);
/* As tryst_region_close() without a limit. No call uses it any more. */
void tryst_region_free(tryst_region* region);

/* ---- Answers: tensors that are made when a peer asks ---- */

/* Of an open cluster: this server reaches the peer "/job:J/replica:0/task:T@host:port" from now
 * on, though nobody has announced it. Nobody else is told. It does not connect. One that is known
 * keeps its address. TRYST_FAILED_PRECONDITION: the cluster is closed. */
tryst_status* tryst_server_add_peer(tryst_server* server, const char* peer);

/* A peer's receive of "|NAME|TEXT", which nobody sends. It waits until it is answered, or until the
 * peer gives it up. A peer whose path fails may ask the same again. */
typedef struct tryst_ask tryst_ask;
/* Called for each, on a thread of the library's; what takes long is done elsewhere. `peer` is the
 * worker that asks and `text` what stands behind "|NAME|"; they last until the ask is answered. */
typedef void (*tryst_asked)(void* arg, tryst_ask* ask, const char* peer, const char* text);
/* Ends the ask and frees it: with `tensor`, or where `code` is that of a failure with that. To be
 * called once for each, from any thread, at any time; in `asked` too. */
void tryst_ask_answer(tryst_ask* ask, const tryst_tensor* tensor, tryst_code code,
                      const char* message);

/* NAME is as a region's, and not "region". The server outlives it. TRYST_ALREADY_EXISTS. */
typedef struct tryst_answers tryst_answers;
tryst_status* tryst_answers_open(tryst_server* server, const char* name, tryst_asked asked,
                                 void* arg, tryst_answers** answers);
/* When it returns, `asked` is called no more and no call of it is under way; so not in `asked`. */
void tryst_answers_free(tryst_answers* answers);

/* ---- Weights: sharded tensors that get versions ---- */

/* Owners publish and seal versions of the tensors of a set; members fetch boxes of them, and serve
 * the version that all of them agree on (docs/WEIGHTS.md). Calls that say `timeout_ms` wait on the
 * caller's thread: below 0 without limit. They end with TRYST_CANCELLED when their cancellation,
 * which may be null, is cancelled. */
typedef struct tryst_cancellation tryst_cancellation;
tryst_status* tryst_cancellation_create(tryst_cancellation** cancellation);
void tryst_cancellation_cancel(tryst_cancellation* cancellation); /* For good; from any thread. */
void tryst_cancellation_free(tryst_cancellation* cancellation);   /* No call uses it any more. */

typedef struct tryst_weights tryst_weights;                 /* One end of a set. Thread-safe. */
typedef struct tryst_weights_version tryst_weights_version; /* Constant. */

/* `owners` are workers' names, by rank. Settings are "role=owner", "member" or "observer"; of an
 * owner "rank=", "keep=" (versions, 2), and of the first one "min_members=" (1) and
 * "decider=worker" or "etcd" (who keeps the log; with "etcd" both are also of the second and third
 * one, which may lead, too); of a member "on_headless=stop" or "keep" and
 * "hold_bytes=" (0: so much of what it fetches it has for other members, in memory of its own), and
 * of an observer, too, "bytes_per_second=" (0: no limit; what it fetches comes no faster); and
 * "permit_ms=" (1000), the same for all. The server serves, and outlives it. */
tryst_status* tryst_weights_open(tryst_server* server, const char* set, const char* const* owners,
                                 size_t owner_count, const char* const* settings, size_t count,
                                 tryst_weights** weights);
/* No call uses it any more. */
void tryst_weights_free(tryst_weights* weights);
char* tryst_weights_explain(tryst_weights* weights);

typedef struct {
  uint32_t owner;
  const int64_t* begin; /* As many as the tensor has dimensions. */
  const int64_t* extent;
} tryst_weights_box;
/* Who owns what of a tensor. Owner `owners[i]` (without owners: i) is the i-th of a mesh, outer
 * axis first, along each axis of which the tensor is split in the dimension `placements[axis]`, as
 * torch.chunk does, or replicated where that is -1. Or `boxes` say it, and the rest is empty. */
typedef struct {
  const char* name;
  int32_t dtype;
  const int64_t* dims;
  size_t rank;
  const uint32_t* owners;
  size_t owner_count;
  const int64_t* mesh;
  const int32_t* placements;
  size_t mesh_rank;
  const tryst_weights_box* boxes;
  size_t box_count;
} tryst_weights_layout;

/* The boxes of one owner: begin and extent of each, one after the other, up to `max` numbers in
 * `numbers`. `count` is how many boxes there are. */
tryst_status* tryst_weights_boxes(const tryst_weights_layout* layout, uint32_t owners,
                                  uint32_t owner, int64_t* numbers, size_t max, size_t* count);
tryst_status* tryst_weights_declare(tryst_weights* weights, const tryst_weights_layout* layouts,
                                    size_t count);

/* A box of a tensor, and where it lies in the memory of `tensor`, whose shape does not count: its
 * first element at `offset`, each next one of dimension i `strides[i]` elements further. */
typedef struct {
  const char* name;
  const int64_t* begin;
  const int64_t* extent;
  size_t rank;
  const tryst_tensor* tensor;
  int64_t offset;
  const int64_t* strides;
  uint64_t has; /* Fetching: the same box of this version lies there already, so that only what has
                   changed need come; 0: of none. A wrong word costs time, and no byte is wrong. */
  const tryst_options* options; /* Of a GPU's memory: the stream; it is read or written once the
                                   stream is where it is now. Else it may be null. */
} tryst_weights_item;

/* Copies it; a cast where its type is another one of floats. */
tryst_status* tryst_weights_publish(tryst_weights* weights, uint64_t number,
                                    const tryst_weights_item* item);
tryst_status* tryst_weights_seal(tryst_weights* weights, uint64_t number, const char* label,
                                 int64_t timeout_ms, tryst_cancellation* cancellation);
void tryst_weights_drop(tryst_weights* weights, uint64_t number); /* One that is not sealed. */
/* Publishes without a copy: the box lies dense in the memory of `tensor`, is of the tensor's type,
 * and must not be written before tryst_weights_release() has returned. */
tryst_status* tryst_weights_borrow(tryst_weights* weights, uint64_t number,
                                   const tryst_weights_item* item);
enum {
  TRYST_WEIGHTS_WAIT = 0, /* Until later versions have replaced it, and nobody reads it any more. */
  TRYST_WEIGHTS_COPY = 1, /* Copies it first; it stays. */
  TRYST_WEIGHTS_DROP = 2  /* Who asks for it from now on is told TRYST_ABORTED. */
};
/* When it returns without an error, no byte that the version has borrowed is read any more. */
tryst_status* tryst_weights_release(tryst_weights* weights, uint64_t number, int32_t how,
                                    int64_t timeout_ms, tryst_cancellation* cancellation);
size_t tryst_weights_members(tryst_weights* weights); /* That the owner has heard of. */
enum { TRYST_WEIGHTS_ROLLING = 0, TRYST_WEIGHTS_BARRIER = 1 };
tryst_status* tryst_weights_activate(tryst_weights* weights, uint64_t number, int32_t mode,
                                     int64_t timeout_ms, tryst_cancellation* cancellation);

enum {
  TRYST_WEIGHTS_NUMBER = 0, /* The version of that number, */
  TRYST_WEIGHTS_NEWER = 1,  /* the newest sealed one above it, as soon as there is one, */
  TRYST_WEIGHTS_ACTIVE = 2  /* or the active one. */
};
tryst_status* tryst_weights_find(tryst_weights* weights, int32_t how, uint64_t number,
                                 int64_t timeout_ms, tryst_cancellation* cancellation,
                                 tryst_weights_version** version);
/* {"number":5,"label":"step 5","root":"...","tensors":[{"name":"w","dtype":"float","shape":[4]}]}
 */
tryst_status* tryst_weights_describe(tryst_weights* weights, const tryst_weights_version* version,
                                     int64_t timeout_ms, tryst_cancellation* cancellation,
                                     char** json);
void tryst_weights_version_free(tryst_weights_version* version);
/* Fills all items with that version's bytes, each checked by a digest. */
tryst_status* tryst_weights_fetch(tryst_weights* weights, const tryst_weights_version* version,
                                  const tryst_weights_item* items, size_t count, int64_t timeout_ms,
                                  tryst_cancellation* cancellation);
/* The same of the version that TRYST_WEIGHTS_PREPARE names. */
tryst_status* tryst_weights_stage(tryst_weights* weights, uint64_t number,
                                  const tryst_weights_item* items, size_t count, int64_t timeout_ms,
                                  tryst_cancellation* cancellation);

enum {
  TRYST_WEIGHTS_SEALED = 0,    /* There is a newer version. */
  TRYST_WEIGHTS_PREPARE = 1,   /* Stage it, then vote. */
  TRYST_WEIGHTS_HOLD = 2,      /* Start nothing new; when nothing runs, answer that. */
  TRYST_WEIGHTS_ACTIVATED = 3, /* Serve it from now on, then answer that. */
  TRYST_WEIGHTS_DROPPED = 4,   /* The stage is wanted no more. */
  TRYST_WEIGHTS_HEADLESS = 5   /* The permit has run out. */
};
tryst_status* tryst_weights_next_event(tryst_weights* weights, int64_t timeout_ms,
                                       tryst_cancellation* cancellation, int32_t* kind,
                                       uint64_t* number);
enum {
  TRYST_WEIGHTS_STAGED = 0,
  TRYST_WEIGHTS_NOT_STAGED = 1,
  TRYST_WEIGHTS_HELD = 2,
  TRYST_WEIGHTS_SWITCHED = 3
};
tryst_status* tryst_weights_answer(tryst_weights* weights, uint64_t number, int32_t what);
/* 1: `number` may be served; 2: it is kept without a permit; 0: nothing may be served. */
int tryst_weights_serve(const tryst_weights* weights, uint64_t* number);

/* ---- What a server shows ---- */

char* tryst_server_explain_json(tryst_server* server, const char* peer); /* docs/CLI.md: explain */
char* tryst_server_waiting_json(tryst_server* server);                   /* docs/CLI.md: waiting */
char* tryst_server_stats_json(tryst_server* server);                     /* {"name":number,...} */
/* "64MiB", "true": what a setting of docs/CONFIG.md is here. Null: there is none of that name. */
char* tryst_server_setting(const tryst_server* server, const char* name);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TRYST_SERVER_C_TRYST_V1_H_ */
