/* A worker pulls weights from a parameter server, into memory of its own. */
#include "pair.h"

int main(void) {
  tryst_server* const ps = Serve("ps", NULL);
  tryst_server* const worker = Serve("worker", ps);
  char* const key = Key(ps, worker, "weights");
  tryst_tensor* const weights = Floats(1000, 0.5f);
  tryst_tensor* const into = Floats(1000, 0);
  tryst_tensor* got;
  int64_t step;

  for (step = 1; step <= 3; ++step) {
    Check(tryst_send(ps, step, key, weights)); /* By now or later: it waits to be received. */
    Check(tryst_recv(worker, step, key, into, 10000, &got));
    printf("step %d: %g\n", (int)step, ((float*)tryst_tensor_data(got))[999]);
    if (((float*)tryst_tensor_data(into))[999] != 0.5f) return 1;
    tryst_tensor_free(got); /* A second reference to `into`. */
    tryst_step_cleanup(worker, step);
    tryst_step_cleanup(ps, step);
  }

  tryst_tensor_free(into);
  tryst_tensor_free(weights);
  tryst_string_free(key);
  tryst_server_free(worker);
  tryst_server_free(ps);
  return 0;
}
