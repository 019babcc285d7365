/* Two workers in one process, by the C interface alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tryst.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

static void Ok(tryst_status* status) {
  if (status != NULL) {
    fprintf(stderr, "%d: %s\n", tryst_status_code(status), tryst_status_message(status));
    exit(1);
  }
}

static void Fails(tryst_status* status, tryst_code code, const char* with) {
  CHECK(tryst_status_code(status) == code);
  CHECK(strstr(tryst_status_message(status), with) != NULL);
  tryst_status_free(status);
}

static tryst_server* Start(const char* job, const char* join) {
  const char* settings[] = {
      job, "--listen=127.0.0.1:0", "--insecure", "--open_cluster", "--nic=soft", join};
  tryst_server* server = NULL;
  Ok(tryst_server_create(settings, join == NULL ? 5 : 6, &server));
  Ok(tryst_server_start(server));
  return server;
}

static char* Key(tryst_server* producer, tryst_server* consumer, const char* edge) {
  char src[256];
  char dst[256];
  char* key = NULL;
  snprintf(src, sizeof(src), "%s/device:CPU:0", tryst_server_worker(producer));
  snprintf(dst, sizeof(dst), "%s/device:CPU:0", tryst_server_worker(consumer));
  Ok(tryst_key(src, tryst_server_incarnation(producer), dst, edge, 0, 0, &key));
  return key;
}

static int released = 0;
static void Release(void* arg) {
  free(arg);
  ++released;
}

/* Written by the callback, read after a receive that came later. */
static int calls = 0;
static void OnDone(void* arg, const tryst_status* status, tryst_tensor* tensor, int is_dead) {
  CHECK(arg == &calls);
  CHECK(status == NULL && tensor == NULL && is_dead);
  ++calls;
}
static void OnBadKey(void* arg, const tryst_status* status, tryst_tensor* tensor, int is_dead) {
  CHECK(tryst_status_code(status) == TRYST_INVALID_ARGUMENT && tensor == NULL && !is_dead);
  ++*(int*)arg;
}

int main(void) {
  const int64_t dims[] = {2, 512};
  char join[512];
  char* key;
  char* path;
  float* values;
  uint64_t incarnation = 0;
  int bad = 0;
  tryst_server* producer;
  tryst_server* consumer;
  tryst_server* none = NULL;
  tryst_tensor* sent = NULL;
  tryst_tensor* into = NULL;
  tryst_tensor* got = NULL;
  const char* wrong[] = {"--no_such_setting=1"};

  CHECK(tryst_abi_version() == TRYST_ABI_VERSION);
  Fails(tryst_server_create(wrong, 1, &none), TRYST_INVALID_ARGUMENT, "no_such_setting");
  CHECK(none == NULL);
  Fails(tryst_tensor_allocate((tryst_dtype)7, dims, 2, &got), TRYST_INVALID_ARGUMENT, "7");

  producer = Start("--job=producer", NULL);
  snprintf(join, sizeof(join), "--join=%s@%s", tryst_server_worker(producer),
           tryst_server_address(producer));
  consumer = Start("--job=consumer", join);
  Ok(tryst_server_peer_incarnation(consumer, tryst_server_worker(producer), 10000, &incarnation));
  CHECK(incarnation == tryst_server_incarnation(producer));

  values = malloc(1024 * sizeof(float));
  for (int i = 0; i < 1024; ++i) values[i] = (float)i;
  Ok(tryst_tensor_adopt(values, TRYST_FLOAT, dims, 2, Release, values, &sent));
  key = Key(producer, consumer, "weights");
  Ok(tryst_send(producer, 1, key, sent));
  tryst_tensor_free(sent);
  Ok(tryst_tensor_allocate(TRYST_FLOAT, dims, 2, &into));
  Ok(tryst_recv(consumer, 1, key, into, 10000, &got));
  tryst_string_free(key);
  CHECK(tryst_tensor_dtype(got) == TRYST_FLOAT && tryst_tensor_rank(got) == 2);
  CHECK(tryst_tensor_dim(got, 1) == 512 && tryst_tensor_bytes(got) == 4096);
  CHECK(tryst_tensor_data(got) == tryst_tensor_data(into));
  CHECK(((float*)tryst_tensor_data(got))[1023] == 1023.0f);
  tryst_tensor_free(got);
  tryst_tensor_free(into);

  key = Key(producer, consumer, "copied");
  Ok(tryst_tensor_allocate(TRYST_FLOAT, dims, 2, &sent));
  values = tryst_tensor_data(sent);
  values[0] = values[1023] = 7.0f;
  Ok(tryst_send_copy(producer, 1, key, sent));
  values[0] = values[1023] = 8.0f; /* Before anybody has asked for it. */
  Ok(tryst_recv(consumer, 1, key, NULL, 10000, &got));
  tryst_string_free(key);
  CHECK(((float*)tryst_tensor_data(got))[0] == 7.0f);
  CHECK(((float*)tryst_tensor_data(got))[1023] == 7.0f);
  tryst_tensor_free(got);
  tryst_tensor_free(sent);

  key = Key(producer, consumer, "dead");
  tryst_recv_async(consumer, 1, key, NULL, OnDone, &calls);
  Ok(tryst_send(producer, 1, key, NULL));
  tryst_string_free(key);
  tryst_recv_async(consumer, 1, "no key", NULL, OnBadKey, &bad);
  CHECK(bad == 1);

  path = tryst_server_explain(consumer, tryst_server_worker(producer));
  CHECK(strstr(path, "rdma/soft") != NULL);
  printf("%s", path);
  tryst_string_free(path);

  key = Key(producer, consumer, "never");
  Fails(tryst_recv(consumer, 1, key, NULL, 50, &got), TRYST_DEADLINE_EXCEEDED, "");
  CHECK(got == NULL);
  Ok(tryst_step_abort(consumer, 2, TRYST_DATA_LOSS, "bad rows"));
  Fails(tryst_recv(consumer, 2, key, NULL, 1000, &got), TRYST_DATA_LOSS, "bad rows");
  tryst_string_free(key);

  tryst_step_cleanup(consumer, 1);
  tryst_step_cleanup(producer, 1);
  Ok(tryst_server_stop(consumer, 5000));
  CHECK(calls == 1);
  Ok(tryst_server_stop(producer, 5000));
  tryst_server_free(consumer);
  tryst_server_free(producer);
  CHECK(released == 1);
  puts("ok");
  return 0;
}
