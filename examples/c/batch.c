/* A hundred tensors in one call each way, with a deadline; and one that is never sent. */
#include "pair.h"

#define COUNT 100

int main(void) {
  tryst_server* const ps = Serve("ps", NULL);
  tryst_server* const worker = Serve("worker", ps);
  char* keys[COUNT];
  tryst_send_item sends[COUNT];
  tryst_recv_item receives[COUNT];
  tryst_status* status;
  tryst_tensor* got;
  tryst_op* op;
  float sum = 0;
  int i, is_dead;

  for (i = 0; i < COUNT; ++i) {
    char edge[32];
    snprintf(edge, sizeof(edge), "layer%d", i);
    keys[i] = Key(ps, worker, edge);
    sends[i].key = receives[i].key = keys[i];
    sends[i].tensor = Floats(64, (float)i);
    receives[i].into = NULL;
  }
  Check(tryst_recv_start(worker, 1, receives, COUNT, NULL, 10000, NULL, NULL, &op));
  Check(tryst_send_many(ps, 1, sends, COUNT, NULL));
  if (!tryst_op_wait(op, -1)) return 1;
  for (i = 0; i < COUNT; ++i) {
    Check(tryst_op_result(op, (size_t)i, &got, &is_dead));
    sum += ((float*)tryst_tensor_data(got))[63];
    tryst_tensor_free(got);
    tryst_tensor_free((tryst_tensor*)sends[i].tensor);
  }
  tryst_op_free(op);
  printf("%d tensors, sum %g\n", COUNT, sum);

  Check(tryst_recv_start(worker, 2, receives, 1, NULL, 100, NULL, NULL, &op));
  tryst_op_wait(op, -1);
  status = tryst_op_result(op, 0, &got, &is_dead);
  printf("the other one: %s\n", tryst_status_message(status));
  if (tryst_status_code(status) != TRYST_DEADLINE_EXCEEDED) return 1;
  tryst_status_free(status);
  tryst_op_free(op);

  for (i = 0; i < COUNT; ++i) tryst_string_free(keys[i]);
  tryst_server_free(worker);
  tryst_server_free(ps);
  return sum == 4950 ? 0 : 1;
}
