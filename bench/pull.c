/* What bench/python_pull.py has Python do, by the C interface: a line asks, a line of nanoseconds
 * answers. own N      N receives of 8 B, one after the other, of what this worker has sent itself
 * already copy MIB   one tensor from a worker of the same process into memory of the receiver's */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../examples/c/pair.h"

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int64_t Receive(tryst_server* server, int64_t step, const tryst_recv_item* item) {
  const tryst_options options = {0};
  tryst_op* op;
  tryst_tensor* got;
  int is_dead;
  const int64_t began = Now();
  int64_t took;
  Check(tryst_recv_start(server, step, item, 1, &options, 60000, NULL, NULL, &op));
  tryst_op_wait(op, -1);
  Check(tryst_op_result(op, 0, &got, &is_dead));
  tryst_op_free(op);
  took = Now() - began;
  tryst_tensor_free(got);
  return took;
}

static int64_t Own(tryst_server* worker, int64_t step, int count) {
  tryst_send_item* const sends = calloc((size_t)count, sizeof(*sends));
  tryst_tensor* const tensor = Floats(2, 1);
  const tryst_options options = {0};
  int64_t began, took;
  int i;
  for (i = 0; i < count; ++i) {
    char edge[32];
    snprintf(edge, sizeof(edge), "k%d", i);
    sends[i].key = Key(worker, worker, edge);
    sends[i].tensor = tensor;
  }
  Check(tryst_send_many(worker, step, sends, (size_t)count, &options));
  began = Now();
  for (i = 0; i < count; ++i) {
    const tryst_recv_item item = {sends[i].key, NULL};
    Receive(worker, step, &item);
  }
  took = Now() - began;
  for (i = 0; i < count; ++i) tryst_string_free((char*)sends[i].key);
  free(sends);
  tryst_tensor_free(tensor);
  return took;
}

int main(void) {
  tryst_server* const ps = Serve("ps", NULL);
  tryst_server* const worker = Serve("worker", ps);
  tryst_tensor *source = NULL, *into = NULL;
  char* const key = Key(ps, worker, "x");
  char what[16];
  int64_t step;
  int number;
  for (step = 1; scanf("%15s %d", what, &number) == 2; ++step) {
    int64_t took;
    if (strcmp(what, "own") == 0) {
      took = Own(worker, step, number);
    } else {
      if (source == NULL) {
        source = Floats((int64_t)number << 18, 7);
        into = Floats((int64_t)number << 18, 0);
      }
      const tryst_recv_item item = {key, into};
      Check(tryst_send(ps, step, key, source));
      took = Receive(worker, step, &item);
    }
    tryst_step_cleanup(worker, step);
    tryst_step_cleanup(ps, step);
    printf("%lld\n", (long long)took);
    fflush(stdout);
  }
  return 0;
}
