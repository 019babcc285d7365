/* Workers push gradients; the parameter server takes each as it comes, by one descriptor. */
#include <poll.h>

#include "pair.h"

#define WORKERS 3

int main(void) {
  tryst_server* const ps = Serve("ps", NULL);
  const char* const jobs[WORKERS] = {"red", "green", "blue"};
  tryst_server* workers[WORKERS];
  tryst_queue* queue;
  float sum = 0;
  int i, taken = 0;

  Check(tryst_queue_create(&queue));
  for (i = 0; i < WORKERS; ++i) {
    tryst_recv_item item = {NULL, NULL};
    tryst_op* op;
    char* key;
    workers[i] = Serve(jobs[i], ps);
    key = Key(workers[i], ps, "gradient");
    item.key = key;
    Check(tryst_recv_start(ps, 1, &item, 1, NULL, 10000, queue, workers[i], &op));
    tryst_string_free(key);
  }
  for (i = WORKERS; i-- > 0;) { /* The last one is first. */
    char* const key = Key(workers[i], ps, "gradient");
    tryst_tensor* const gradient = Floats(10, (float)(i + 1));
    Check(tryst_send(workers[i], 1, key, gradient));
    tryst_tensor_free(gradient); /* The send keeps it. */
    tryst_string_free(key);
  }
  while (taken < WORKERS) {
    struct pollfd ready = {0, POLLIN, 0};
    tryst_op* ops[WORKERS];
    size_t count, n;
    ready.fd = tryst_queue_fd(queue);
    if (poll(&ready, 1, 10000) != 1) return 1;
    count = tryst_queue_take(queue, ops, WORKERS, 0);
    for (n = 0; n < count; ++n, ++taken) {
      tryst_tensor* gradient;
      int is_dead;
      Check(tryst_op_result(ops[n], 0, &gradient, &is_dead));
      sum += ((float*)tryst_tensor_data(gradient))[0];
      printf("from %s\n", tryst_server_worker((tryst_server*)tryst_op_tag(ops[n])));
      tryst_tensor_free(gradient);
      tryst_op_free(ops[n]);
    }
  }
  tryst_queue_free(queue);
  for (i = 0; i < WORKERS; ++i) tryst_server_free(workers[i]);
  tryst_server_free(ps);
  return sum == 6 ? 0 : 1;
}
