/* What the examples share: two workers of one process that know each other. */
#ifndef TRYST_EXAMPLES_C_PAIR_H_
#define TRYST_EXAMPLES_C_PAIR_H_

#include <stdio.h>
#include <stdlib.h>
#include <tryst_v1.h>

/* Ends the program with what went wrong. */
static void Check(tryst_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "error %d: %s\n", (int)tryst_status_code(status), tryst_status_message(status));
  exit(1);
}

/* A worker that takes a free port; `join` is another one that it asks who else there is. */
static tryst_server* Serve(const char* job, const tryst_server* join) {
  char job_setting[64], join_setting[256];
  const char* settings[] = {"--listen=127.0.0.1:0", "--insecure", "--open_cluster", job_setting,
                            join_setting};
  tryst_server* server;
  snprintf(job_setting, sizeof(job_setting), "--job=%s", job);
  if (join != NULL) {
    snprintf(join_setting, sizeof(join_setting), "--join=%s@%s", tryst_server_worker(join),
             tryst_server_address(join));
  }
  Check(tryst_server_create(settings, join != NULL ? 5 : 4, &server));
  Check(tryst_server_start(server));
  return server;
}

/* The key of `edge` from one worker to the other; tryst_string_free() gives it back. */
static char* Key(const tryst_server* from, const tryst_server* to, const char* edge) {
  char source[256], sink[256];
  char* key;
  snprintf(source, sizeof(source), "%s/device:CPU:0", tryst_server_worker(from));
  snprintf(sink, sizeof(sink), "%s/device:CPU:0", tryst_server_worker(to));
  Check(tryst_key(source, tryst_server_incarnation(from), sink, edge, 0, 0, &key));
  return key;
}

static tryst_tensor* Floats(int64_t count, float value) {
  tryst_tensor* tensor;
  float* data;
  int64_t i;
  Check(tryst_tensor_allocate(TRYST_FLOAT, &count, 1, &tensor));
  data = (float*)tryst_tensor_data(tensor);
  for (i = 0; i < count; ++i) data[i] = value;
  return tensor;
}

#endif /* TRYST_EXAMPLES_C_PAIR_H_ */
