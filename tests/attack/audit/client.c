/* A worker for the audit, in C on the archive of `./run sdk`: client LIFE FOLDER SETTING=VALUE...
 *
 * It does what client.py does, by the calls that C has: it obeys the same lines and writes the same
 * history. */
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tryst_v1.h>
#include <unistd.h>

#define POOL_BYTES (1 << 20)
#define MOST_KEYS 16
#define AHEAD 6
#define LATER_US 2000000
#define MOST_LATER 200

typedef struct { /* Before the bytes of each tensor, with nothing between. */
  uint64_t stream;
  uint32_t key, seq;
  uint64_t bytes, salt;
} head_t;

static const size_t kSizes[] = {32,    100,    500,    4096,   8400,   8500,
                                30000, 100000, 262144, 262145, 700000, 1100000};
static const int kWeights[] = {4, 4, 8, 8, 4, 4, 4, 3, 2, 2, 1, 1};

static const char* life;
static tryst_server* server;
static unsigned char* pool;
static uint64_t salt;
static int history;
static atomic_llong calls = 1;
static uint32_t crc_table[256];
static pthread_mutex_t saying = PTHREAD_MUTEX_INITIALIZER;

static long long Now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000LL + at.tv_nsec / 1000;
}

static void Sleep(double seconds) {
  struct timespec time;
  time.tv_sec = (time_t)seconds;
  time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
  nanosleep(&time, NULL);
}

static void Die(const char* what) {
  fprintf(stderr, "%s: %s\n", life, what);
  exit(70);
}

/* The log says where it was, as the machine may keep no core. */
static void Crash(int number) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  signal(number, SIG_DFL);
  raise(number);
}

/* As zlib's crc32 and adler32. */
static void MakeTable(void) {
  uint32_t i, k, x;
  for (i = 0; i < 256; ++i) {
    for (x = i, k = 0; k < 8; ++k) x = x & 1 ? 0xedb88320u ^ (x >> 1) : x >> 1;
    crc_table[i] = x;
  }
}

static void SumOf(const unsigned char* data, size_t size, char text[17]) {
  uint32_t crc = 0xffffffffu, a = 1, b = 0;
  size_t i;
  for (i = 0; i < size; ++i) {
    crc = crc_table[(crc ^ data[i]) & 255] ^ (crc >> 8);
    a += data[i];
    b += a;
    if ((i & 2047) == 2047) a %= 65521, b %= 65521;
  }
  snprintf(text, 17, "%08x%08x", crc ^ 0xffffffffu, (b % 65521) << 16 | a % 65521);
}

/* One write a line: lines of threads do not mix, and a kill takes none back. */
static void Write(const char* format, ...) {
  char line[512];
  va_list words;
  int size;
  va_start(words, format);
  size = vsnprintf(line, sizeof(line), format, words);
  va_end(words);
  if (size >= (int)sizeof(line) || write(history, line, (size_t)size) != size) {
    Die("the history cannot be written");
  }
}

static void Say(const char* what, const char* stream) {
  pthread_mutex_lock(&saying);
  printf("%s %s\n", what, stream);
  fflush(stdout);
  pthread_mutex_unlock(&saying);
}

/* ---- A stream ---- */

typedef struct {
  char name[32], peer[128], way[16];
  uint64_t incarnation; /* The producer's. */
  int64_t first;
  int keys, count, sizes;
  double pause;
  uint64_t chance;
  atomic_int over;
  int produces;
  pthread_t thread;
  char* key_texts[MOST_KEYS];
  int left[MOST_KEYS]; /* Of each key: how many are still to come. */
} stream_t;

static uint64_t Chance(stream_t* stream) {
  stream->chance ^= stream->chance << 13;
  stream->chance ^= stream->chance >> 7;
  return stream->chance ^= stream->chance << 17;
}
static int OneIn(stream_t* stream, int count) { return Chance(stream) % (uint64_t)count == 0; }

/* A part of the time at once, so that a stream that is over does not linger. */
static void Pause(stream_t* stream, double seconds) {
  while (seconds > 0 && !stream->over) {
    Sleep(seconds < 0.05 ? seconds : 0.05);
    seconds -= 0.05;
  }
}

static int Steps(const stream_t* stream) {
  return strcmp(stream->way, "steps") == 0 ? stream->count : 1;
}

static size_t SizeOf(const stream_t* stream, int key) {
  return kSizes[(size_t)(atoll(stream->name) + key) % (size_t)stream->sizes];
}

static void MakeKeys(stream_t* stream) {
  char own[256], other[256];
  int i;
  snprintf(own, sizeof(own), "%s/device:CPU:0", tryst_server_worker(server));
  snprintf(other, sizeof(other), "%s/device:CPU:0", stream->peer);
  for (i = 0; i < stream->keys; ++i) {
    char edge[16];
    snprintf(edge, sizeof(edge), "k%d", i);
    if (tryst_key(stream->produces ? own : other,
                  stream->produces ? tryst_server_incarnation(server) : stream->incarnation,
                  stream->produces ? other : own, edge, 0, 0, &stream->key_texts[i]) != NULL) {
      Die("no key");
    }
  }
}

/* ---- Sends ---- */

static tryst_tensor* Make(stream_t* stream, int key, uint32_t number, uint32_t seq, int how) {
  const int fixed = strcmp(stream->way, "into") == 0 || strcmp(stream->way, "steps") == 0;
  head_t head;
  tryst_tensor* tensor;
  tryst_status* status;
  unsigned char* data;
  int64_t size;
  int i = 0, sum = 0, at;
  if (fixed) {
    size = (int64_t)SizeOf(stream, key);
  } else {
    for (i = 0; i < stream->sizes; ++i) sum += kWeights[i];
    at = (int)(Chance(stream) % (uint64_t)sum);
    for (i = 0; at >= kWeights[i]; ++i) at -= kWeights[i];
    size = (int64_t)kSizes[i];
  }
  status = how == 2 ? tryst_server_allocate(server, TRYST_UINT8, &size, 1, &tensor)
                    : tryst_tensor_allocate(TRYST_UINT8, &size, 1, &tensor);
  if (status != NULL) { /* The memory that is shared is used up. */
    tryst_status_free(status);
    if (tryst_tensor_allocate(TRYST_UINT8, &size, 1, &tensor) != NULL) Die("no memory");
  }
  head.stream = strtoull(stream->name, NULL, 10);
  head.key = number;
  head.seq = seq;
  head.bytes = (uint64_t)size;
  head.salt = salt;
  data = tryst_tensor_data(tensor);
  memcpy(data, &head, sizeof(head));
  memcpy(data + sizeof(head), pool + Chance(stream) % 4096, (size_t)size - sizeof(head));
  return tensor;
}

/* Until it is sent: where the memory is full it is tried again. */
static void Send(stream_t* stream, int64_t step, int key, uint32_t number, uint32_t seq) {
  const int how = (int)(Chance(stream) % 3);
  tryst_tensor* tensor = Make(stream, key, number, seq, how);
  char sum[17];
  const size_t size = (size_t)tryst_tensor_bytes(tensor);
  SumOf(tryst_tensor_data(tensor), size, sum);
  while (!stream->over) {
    const long long call = calls++;
    tryst_status* status;
    tryst_code code;
    Write("S %lld %s %u %u %zu %s %lld\n", call, stream->name, number, seq, size, sum, Now());
    if (how == 1) {
      status = tryst_send_copy(server, step, stream->key_texts[key], tensor);
    } else {
      status = tryst_send(server, step, stream->key_texts[key], tensor);
    }
    code = tryst_status_code(status);
    Write("s %lld %d %lld\n", call, (int)code, Now());
    tryst_status_free(status);
    if (code == TRYST_OK) {
      if (how == 1) memset(tryst_tensor_data(tensor), 0xee, size); /* It was copied. */
      break;
    }
    Pause(stream, 0.02 + (double)(Chance(stream) % 50) / 1000);
  }
  tryst_tensor_free(tensor);
}

static void SendMany(stream_t* stream, int64_t step, uint32_t seq) {
  tryst_send_item items[MOST_KEYS];
  long long call[MOST_KEYS];
  tryst_tensor* tensors[MOST_KEYS];
  char sums[MOST_KEYS][17];
  int i;
  for (i = 0; i < stream->keys; ++i) {
    tensors[i] = Make(stream, i, (uint32_t)i, seq, 0);
    SumOf(tryst_tensor_data(tensors[i]), (size_t)tryst_tensor_bytes(tensors[i]), sums[i]);
    items[i].key = stream->key_texts[i];
    items[i].tensor = tensors[i];
  }
  while (!stream->over) {
    tryst_status* status;
    tryst_code code;
    for (i = 0; i < stream->keys; ++i) {
      call[i] = calls++;
      Write("S %lld %s %d %u %llu %s %lld\n", call[i], stream->name, i, seq,
            (unsigned long long)tryst_tensor_bytes(tensors[i]), sums[i], Now());
    }
    status = tryst_send_many(server, step, items, (size_t)stream->keys, NULL);
    code = tryst_status_code(status);
    for (i = 0; i < stream->keys; ++i) Write("s %lld %d %lld\n", call[i], (int)code, Now());
    tryst_status_free(status);
    if (code == TRYST_OK) break;
    Pause(stream, 0.02 + (double)(Chance(stream) % 50) / 1000);
  }
  for (i = 0; i < stream->keys; ++i) tryst_tensor_free(tensors[i]);
}

static void Produce(stream_t* stream) {
  int i, k;
  for (i = 0; i < stream->count && !stream->over; ++i) {
    if (Steps(stream) > 1) {
      for (k = 0; k < stream->keys; ++k) {
        Send(stream, stream->first + i, k, (uint32_t)(i * stream->keys + k), 0);
      }
    } else if (OneIn(stream, 3)) {
      SendMany(stream, stream->first, (uint32_t)i);
    } else {
      const int first = (int)(Chance(stream) % (uint64_t)stream->keys);
      for (k = 0; k < stream->keys; ++k) {
        const int key = (first + k) % stream->keys;
        Send(stream, stream->first, key, (uint32_t)key, (uint32_t)i);
        Pause(stream, stream->pause / 2);
      }
    }
    Pause(stream, stream->pause * stream->keys / 2);
  }
  if (!stream->over) Say("sent", stream->name);
}

/* ---- Receives ---- */

static int64_t Timeout(stream_t* stream) {
  static const int64_t kTimes[] = {20, 100, 500, 2000, 5000};
  return OneIn(stream, 4) ? -1 : kTimes[Chance(stream) % 5];
}

static long long BeginReceive(const stream_t* stream, uint32_t number, int64_t timeout,
                              const char* way) {
  const long long call = calls++;
  Write("R %lld %s %u %lld %s %lld\n", call, stream->name, number, (long long)timeout, way, Now());
  return call;
}

/* One has failed. Returns with what; the words are for who reads the history. */
static tryst_code EndFailed(long long call, const tryst_status* status) {
  const tryst_code code = tryst_status_code(status);
  char words[201], *c;
  Write("r %lld %d %lld\n", call, (int)code, Now());
  if (code == TRYST_CANCELLED || code == TRYST_DEADLINE_EXCEEDED) return code;
  snprintf(words, sizeof(words), "%s", tryst_status_message(status));
  for (c = words; *c != '\0'; ++c) {
    if (*c < ' ' || *c > '~') *c = '?';
  }
  Write("M %lld %s\n", call, words);
  return code;
}

/* One has come. Returns its number. */
static int64_t EndReceived(long long call, const unsigned char* data, size_t size) {
  const long long at = Now();
  head_t head;
  char sum[17];
  SumOf(data, size, sum);
  if (size < sizeof(head)) {
    Write("r %lld 0 %lld short ? -1 %zu %s\n", call, at, size, sum);
    return -1;
  }
  memcpy(&head, data, sizeof(head));
  if (head.bytes != size) {
    Write("r %lld 0 %lld %llu of-%llu-bytes %u %zu %s\n", call, at, (unsigned long long)head.stream,
          (unsigned long long)head.bytes, head.seq, size, sum);
  } else {
    Write("r %lld 0 %lld %llu %u %u %zu %s\n", call, at, (unsigned long long)head.stream, head.key,
          head.seq, size, sum);
  }
  return head.seq;
}

/* The last one of the key, or it is one of fewer that are left. Returns whether any key has some.
 */
static void Take(stream_t* stream, int key, int64_t seq) {
  if (seq == stream->count - 1) {
    stream->left[key] = 0;
  } else if (stream->left[key] > 0) {
    --stream->left[key];
  }
}
static int AnyLeft(const stream_t* stream) {
  int i;
  for (i = 0; i < stream->keys; ++i) {
    if (stream->left[i] > 0) return 1;
  }
  return 0;
}

/* A key of those that have most left: none gets far ahead, since the producer's memory must hold
 * what the others lack. */
static int MostLeft(stream_t* stream) {
  int key = (int)(Chance(stream) % (uint64_t)stream->keys), best = key, i;
  for (i = 0; i < stream->keys; ++i, key = (key + 1) % stream->keys) {
    if (stream->left[key] > stream->left[best]) best = key;
  }
  return best;
}

static void AfterFailure(stream_t* stream, tryst_code code) {
  if (code != TRYST_CANCELLED && code != TRYST_DEADLINE_EXCEEDED) {
    Pause(stream, 0.02 + (double)(Chance(stream) % 200) / 1000);
  }
}

/* Memory of receives that failed, to be looked at again. */
static struct {
  long long call, at;
  tryst_tensor* tensor;
  char sum[17];
} later[MOST_LATER];
static int later_count;
static pthread_mutex_t later_lock = PTHREAD_MUTEX_INITIALIZER;

static void RecheckLater(long long call, tryst_tensor* tensor) {
  pthread_mutex_lock(&later_lock);
  if (later_count < MOST_LATER) {
    later[later_count].call = call;
    later[later_count].at = Now() + LATER_US;
    later[later_count].tensor = tensor;
    SumOf(tryst_tensor_data(tensor), (size_t)tryst_tensor_bytes(tensor), later[later_count].sum);
    ++later_count;
    tensor = NULL;
  }
  pthread_mutex_unlock(&later_lock);
  tryst_tensor_free(tensor);
}

static void Recheck(int everything) {
  pthread_mutex_lock(&later_lock);
  while (later_count > 0 && (everything || later[0].at <= Now())) {
    char sum[17];
    SumOf(tryst_tensor_data(later[0].tensor), (size_t)tryst_tensor_bytes(later[0].tensor), sum);
    Write("B %lld %s %s\n", later[0].call, later[0].sum, sum);
    tryst_tensor_free(later[0].tensor);
    memmove(later, later + 1, sizeof(later[0]) * (size_t)--later_count);
  }
  pthread_mutex_unlock(&later_lock);
}

static void OneByOne(stream_t* stream) {
  const int into = strcmp(stream->way, "into") == 0, view = strcmp(stream->way, "view") == 0;
  while (AnyLeft(stream) && !stream->over) {
    const int64_t timeout = Timeout(stream);
    tryst_tensor *own = NULL, *got = NULL;
    tryst_status* status;
    long long call;
    const int key = MostLeft(stream);
    if (into) {
      const int64_t size = (int64_t)SizeOf(stream, key);
      if (tryst_tensor_allocate(TRYST_UINT8, &size, 1, &own) != NULL) Die("no memory");
      memset(tryst_tensor_data(own), 0xcc, (size_t)size);
    }
    call = BeginReceive(stream, (uint32_t)key, timeout, stream->way);
    if (view) {
      const tryst_options options = {TRYST_RECV_BY_REFERENCE, 0, 0, 0, NULL};
      const tryst_recv_item item = {stream->key_texts[key], NULL};
      tryst_op* op;
      int is_dead;
      status =
          tryst_recv_start(server, stream->first, &item, 1, &options, timeout, NULL, NULL, &op);
      if (status == NULL) {
        if (!tryst_op_wait(op, -1)) Die("a wait without limit has ended");
        status = tryst_op_result(op, 0, &got, &is_dead);
        tryst_op_free(op);
      }
    } else {
      status = tryst_recv(server, stream->first, stream->key_texts[key], own, timeout, &got);
    }
    if (status != NULL) {
      const tryst_code code = EndFailed(call, status);
      tryst_status_free(status);
      if (own != NULL) RecheckLater(call, own);
      AfterFailure(stream, code);
      continue;
    }
    if (own != NULL) {
      Take(stream, key, EndReceived(call, tryst_tensor_data(own), (size_t)tryst_tensor_bytes(own)));
    } else if (got == NULL) { /* A dead one, which nobody sends. */
      Write("r %lld 0 %lld dead ? -1 0 ?\n", call, Now());
    } else {
      Take(stream, key, EndReceived(call, tryst_tensor_data(got), (size_t)tryst_tensor_bytes(got)));
    }
    tryst_tensor_free(got);
    tryst_tensor_free(own);
  }
}

typedef struct {
  stream_t* stream;
  long long call;
  int key;
  tryst_op* op;
} out_t;

/* Several receives of each key are out, and end in a queue; some are cancelled. */
static void Ahead(stream_t* stream) {
  out_t outs[MOST_KEYS * AHEAD];
  int out_of[MOST_KEYS] = {0}, total = 0, i, k;
  long long begin_at = 0;
  tryst_queue* queue;
  if (tryst_queue_create(&queue) != NULL) Die("no queue");
  memset(outs, 0, sizeof(outs));
  while ((AnyLeft(stream) && !stream->over) || total > 0) {
    const int ends = !AnyLeft(stream) || stream->over;
    tryst_op* ops[AHEAD];
    tryst_code worst;
    size_t count, n;
    for (k = 0; k < stream->keys && !ends && Now() >= begin_at; ++k) {
      while (out_of[k] < AHEAD && out_of[k] < stream->left[k]) {
        const int64_t timeout = Timeout(stream);
        const tryst_recv_item item = {stream->key_texts[k], NULL};
        tryst_status* status;
        out_t* out = outs;
        while (out->stream != NULL) ++out;
        out->key = k;
        out->call = BeginReceive(stream, (uint32_t)k, timeout, "fresh");
        out->stream = stream;
        status =
            tryst_recv_start(server, stream->first, &item, 1, NULL, timeout, queue, out, &out->op);
        if (status != NULL) { /* The step was cleaned up just now. */
          EndFailed(out->call, status);
          tryst_status_free(status);
          out->stream = NULL;
          break;
        }
        ++out_of[k];
        ++total;
      }
    }
    if (ends || OneIn(stream, 20)) {
      const int only = (int)(Chance(stream) % (MOST_KEYS * AHEAD));
      for (i = 0; i < MOST_KEYS * AHEAD; ++i) {
        if (outs[i].stream == NULL || (!ends && i != only)) continue;
        Write("K %lld %lld\n", outs[i].call, Now());
        tryst_op_cancel(outs[i].op);
      }
    }
    worst = TRYST_OK;
    count = tryst_queue_take(queue, ops, AHEAD, 100);
    for (n = 0; n < count; ++n) {
      out_t* const out = tryst_op_tag(ops[n]);
      tryst_tensor* got = NULL;
      int is_dead;
      tryst_status* const status = tryst_op_result(ops[n], 0, &got, &is_dead);
      if (status == NULL && got != NULL) {
        Take(stream, out->key,
             EndReceived(out->call, tryst_tensor_data(got), (size_t)tryst_tensor_bytes(got)));
      } else {
        worst = EndFailed(out->call, status);
      }
      tryst_status_free(status);
      tryst_tensor_free(got);
      tryst_op_free(ops[n]);
      --out_of[out->key];
      --total;
      out->stream = NULL;
    }
    /* The next ones begin a little later; the ends of those that are out are looked for all the
     * same. */
    if (worst != TRYST_OK && worst != TRYST_CANCELLED && worst != TRYST_DEADLINE_EXCEEDED) {
      begin_at = Now() + 200000;
    }
  }
  tryst_queue_free(queue);
}

/* The same by callbacks, without deadlines. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int out, failed;
} backs_t;
typedef struct {
  backs_t* backs;
  stream_t* stream;
  long long call;
  int key;
} back_t;

static void Back(void* arg, const tryst_status* status, tryst_tensor* tensor, int is_dead) {
  back_t* const back = arg;
  backs_t* const backs = back->backs;
  (void)is_dead;
  pthread_mutex_lock(&backs->lock);
  if (status == NULL && tensor != NULL) {
    Take(back->stream, back->key,
         EndReceived(back->call, tryst_tensor_data(tensor), (size_t)tryst_tensor_bytes(tensor)));
  } else {
    EndFailed(back->call, status);
    ++backs->failed;
  }
  --backs->out;
  pthread_cond_signal(&backs->changed);
  pthread_mutex_unlock(&backs->lock);
  tryst_tensor_free(tensor);
  free(back);
}

static void Backs(stream_t* stream) {
  backs_t backs = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
  int key, i, failed;
  while (AnyLeft(stream) &&
         !stream->over) { /* All that is left, and once that has ended, the rest. */
    int wanted[MOST_KEYS];
    backs.failed = 0;
    for (key = 0; key < stream->keys; ++key) backs.out += wanted[key] = stream->left[key];
    for (key = 0; key < stream->keys; ++key) {
      for (i = 0; i < wanted[key]; ++i) {
        back_t* const back = malloc(sizeof(*back));
        if (back == NULL) Die("no memory");
        back->backs = &backs;
        back->stream = stream;
        back->key = key;
        back->call = BeginReceive(stream, (uint32_t)key, -1, "fresh");
        tryst_recv_async(server, stream->first, stream->key_texts[key], NULL, Back, back);
      }
    }
    pthread_mutex_lock(&backs.lock);
    while (backs.out > 0) pthread_cond_wait(&backs.changed, &backs.lock);
    failed = backs.failed;
    pthread_mutex_unlock(&backs.lock);
    if (failed > 0) Pause(stream, 0.2);
  }
}

/* A plan, in step after step. */
static void BySteps(stream_t* stream) {
  const tryst_options recurring = {TRYST_RECV_RECURRING, 0, 0, 0, NULL};
  const tryst_options* const options = OneIn(stream, 2) ? &recurring : NULL;
  const char* edges[MOST_KEYS];
  char texts[MOST_KEYS][16], own[256], other[256];
  tryst_plan* plan;
  int i, k, tries;
  for (k = 0; k < stream->keys; ++k) {
    snprintf(texts[k], sizeof(texts[k]), "k%d", k);
    edges[k] = texts[k];
  }
  snprintf(own, sizeof(own), "%s/device:CPU:0", tryst_server_worker(server));
  snprintf(other, sizeof(other), "%s/device:CPU:0", stream->peer);
  if (tryst_plan_create(server, other, stream->incarnation, own, edges, (size_t)stream->keys,
                        &plan) != NULL)
    Die("no plan");
  for (i = 0; i < stream->count && !stream->over; ++i) {
    int missing[MOST_KEYS], any = 1;
    for (k = 0; k < stream->keys; ++k) missing[k] = 1;
    for (tries = 0; tries < 3 && any && !stream->over; ++tries) {
      const int64_t timeout = OneIn(stream, 2) ? -1 : 10000;
      long long call[MOST_KEYS];
      tryst_code worst = TRYST_OK;
      tryst_op* op;
      any = 0;
      /* What came before is not asked for again: the others are, one by one. */
      if (tries == 0) {
        for (k = 0; k < stream->keys; ++k) {
          call[k] = BeginReceive(stream, (uint32_t)(i * stream->keys + k), timeout, "each");
        }
        tryst_status* const status =
            tryst_plan_recv_start(plan, stream->first + i, NULL, options, timeout, NULL, NULL, &op);
        if (status != NULL) { /* The step was cleaned up just now. */
          for (k = 0; k < stream->keys; ++k) worst = EndFailed(call[k], status);
          tryst_status_free(status);
          AfterFailure(stream, worst);
          break;
        }
        tryst_op_wait(op, -1);
      }
      for (k = 0; k < stream->keys; ++k) {
        tryst_tensor* got = NULL;
        tryst_status* status;
        int is_dead;
        if (!missing[k]) continue;
        if (tries == 0) {
          status = tryst_op_result(op, (size_t)k, &got, &is_dead);
        } else {
          call[k] = BeginReceive(stream, (uint32_t)(i * stream->keys + k), timeout, "fresh");
          status = tryst_recv(server, stream->first + i, stream->key_texts[k], NULL, timeout, &got);
        }
        if (status == NULL && got != NULL) {
          EndReceived(call[k], tryst_tensor_data(got), (size_t)tryst_tensor_bytes(got));
          missing[k] = 0;
        } else {
          worst = EndFailed(call[k], status);
          any = 1;
        }
        tryst_status_free(status);
        tryst_tensor_free(got);
      }
      if (any) AfterFailure(stream, worst);
      if (tries == 0) tryst_op_free(op);
      if (tries > 0 && worst == TRYST_UNAVAILABLE) --tries; /* Nobody took it: it is still there. */
    }
  }
  tryst_plan_free(plan);
}

static void Consume(stream_t* stream) {
  int k;
  for (k = 0; k < stream->keys; ++k) stream->left[k] = stream->count;
  if (strcmp(stream->way, "ahead") == 0) {
    Ahead(stream);
  } else if (strcmp(stream->way, "many") == 0) {
    Backs(stream);
  } else if (strcmp(stream->way, "steps") == 0) {
    BySteps(stream);
  } else {
    OneByOne(stream);
  }
  if (!stream->over) Say("got", stream->name);
}

static void* Run(void* arg) {
  stream_t* const stream = arg;
  if (stream->produces) {
    Produce(stream);
  } else {
    Consume(stream);
  }
  return NULL;
}

/* ---- Orders ---- */

#define MOST_STREAMS 64
static stream_t* streams[MOST_STREAMS];

static void WritePath(const stream_t* stream) {
  char* const text = tryst_server_explain_json(server, stream->peer);
  const char* at = text;
  char path[64] = "none", *c;
  while ((at = strstr(at, "\"role\":\"fetch\"")) != NULL) {
    const char* const next = strstr(at + 1, "\"role\":");
    const char* const used = strstr(at, "\"in_use\":true");
    const char* const name = strstr(at, "\"path\":\"");
    if (used != NULL && name != NULL && (next == NULL || used < next)) {
      snprintf(path, sizeof(path), "%s", name + 8);
      if ((c = strchr(path, '"')) != NULL) *c = '\0';
    }
    ++at;
  }
  for (c = path; *c != '\0'; ++c) {
    if (*c == ' ') *c = '_';
  }
  Write("P %s %s\n", stream->name, path);
  tryst_string_free(text);
}

static void* Close(void* arg) {
  stream_t* const stream = arg;
  int i;
  stream->over = 1;
  for (i = 0; i < Steps(stream); ++i) {
    Write("C %s %lld\n", stream->name, Now());
    tryst_step_cleanup(server, stream->first + i);
  }
  pthread_join(stream->thread, NULL);
  Say("closed", stream->name);
  for (i = 0; i < stream->keys; ++i) tryst_string_free(stream->key_texts[i]);
  free(stream);
  return NULL;
}

static void Begin(char** words, int produces) {
  stream_t* const stream = calloc(1, sizeof(*stream));
  int i, largest = atoi(words[7]);
  snprintf(stream->name, sizeof(stream->name), "%s", words[1]);
  snprintf(stream->peer, sizeof(stream->peer), "%s", words[2]);
  stream->incarnation = strtoull(words[3], NULL, 16);
  stream->first = atoll(words[4]);
  stream->keys = atoi(words[5]);
  stream->count = atoi(words[6]);
  stream->pause = atoi(words[8]) / 1000.0;
  snprintf(stream->way, sizeof(stream->way), "%s", words[9]);
  stream->produces = produces;
  stream->chance = (salt ^ (uint64_t)atoll(words[1])) | 1;
  while (stream->sizes < 12 && kSizes[stream->sizes] <= (size_t)largest) ++stream->sizes;
  if (stream->keys > MOST_KEYS) Die("too many keys");
  MakeKeys(stream);
  for (i = 0; i < MOST_STREAMS && streams[i] != NULL; ++i) continue;
  if (i == MOST_STREAMS) Die("too many streams");
  streams[i] = stream;
  if (pthread_create(&stream->thread, NULL, Run, stream) != 0) Die("no thread");
}

static void End(const char* name, int with_path) {
  pthread_t thread;
  int i;
  for (i = 0; i < MOST_STREAMS; ++i) {
    if (streams[i] == NULL || strcmp(streams[i]->name, name) != 0) continue;
    if (with_path && !streams[i]->produces) WritePath(streams[i]);
    if (pthread_create(&thread, NULL, Close, streams[i]) != 0) Die("no thread");
    pthread_detach(thread);
    streams[i] = NULL;
    return;
  }
}

static void* RecheckForEver(void* arg) {
  for (;;) {
    Sleep(0.2);
    Recheck(0);
  }
  return arg;
}

static void Obey(char* line) {
  char* words[10] = {NULL};
  int count = 0;
  char* rest = NULL;
  char* word;
  for (word = strtok_r(line, " \n", &rest); word != NULL && count < 10;
       word = strtok_r(NULL, " \n", &rest)) {
    words[count++] = word;
  }
  if (count == 10) {
    Begin(words, strcmp(words[0], "produce") == 0);
  } else if (count >= 2 && strcmp(words[0], "over") == 0) {
    End(words[1], count > 2);
  } else if (count >= 1 && strcmp(words[0], "show") == 0) {
    char* const paths = tryst_server_explain(server, NULL);
    char* const waiting = tryst_server_waiting_json(server);
    fprintf(stderr, "%s %s %s\n", life, paths, waiting);
    tryst_string_free(paths);
    tryst_string_free(waiting);
  }
}

int main(int argc, char** argv) {
  char path[1024], line[1024], text[64];
  char** settings;
  tryst_status* status;
  pthread_t looker;
  int i, random;
  if (argc < 3) return 2;
  life = argv[1];
  signal(SIGSEGV, Crash);
  signal(SIGBUS, Crash);
  signal(SIGABRT, Crash);
  snprintf(path, sizeof(path), "%s/%s.history", argv[2], life);
  history = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (history < 0) Die("no history");
  Write("L %s %lld\n", life, Now());
  MakeTable();
  pool = malloc(POOL_BYTES + 262144);
  random = open("/dev/urandom", O_RDONLY);
  if (pool == NULL || random < 0 || read(random, &salt, sizeof(salt)) != sizeof(salt))
    Die("no chance");
  memset(pool + POOL_BYTES, 0, 262144);
  for (i = 0; i < POOL_BYTES;) {
    const ssize_t got = read(random, pool + i, (size_t)(POOL_BYTES - i));
    if (got <= 0) Die("no chance");
    i += (int)got;
  }
  close(random);
  settings = calloc((size_t)argc, sizeof(*settings));
  for (i = 3; i < argc; ++i) {
    settings[i - 3] = malloc(strlen(argv[i]) + 3);
    sprintf(settings[i - 3], "--%s", argv[i]);
  }
  status = tryst_server_create((const char* const*)settings, (size_t)(argc - 3), &server);
  if (status == NULL) status = tryst_server_start(server);
  if (status != NULL) Die(tryst_status_message(status));
  snprintf(text, sizeof(text), "%016llx %s", (unsigned long long)tryst_server_incarnation(server),
           tryst_server_address(server));
  Say("ready", text);
  if (pthread_create(&looker, NULL, RecheckForEver, NULL) != 0) Die("no thread");
  while (fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "bye\n") != 0) Obey(line);
  for (i = 0; i < MOST_STREAMS; ++i) {
    if (streams[i] != NULL) Close(streams[i]);
  }
  Recheck(1);
  status = tryst_server_stop(server, 10000);
  tryst_status_free(status);
  Write("E %lld\n", Now());
  tryst_server_free(server);
  return 0;
}
