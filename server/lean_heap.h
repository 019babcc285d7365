#ifndef TRYST_SERVER_LEAN_HEAP_H_
#define TRYST_SERVER_LEAN_HEAP_H_

#include <thread>

#include "base/mutex.h"

namespace tryst {

// For programs that run for weeks: keeps glibc's heap about as large as what lives in it,
// while one of these lives. To be made before any other thread, with signals blocked.
//
// gRPC starts and ends threads all the time, and tensors come and go: what lives long ends
// up scattered over the heaps of many threads, between large holes, and none of them
// shrinks again. A server grew by a quarter of a MiB with each life of a peer; with two
// heaps in place of eight for each processor still by half a MiB a minute, all of it free.
// So, too, memory that was free twice in a row, a minute apart, goes back to the system.
//
// Leaves the number of heaps to MALLOC_ARENA_MAX where that is set. Does nothing where
// malloc is not glibc's.
class LeanHeap {
 public:
  LeanHeap();
  ~LeanHeap();
  LeanHeap(const LeanHeap&) = delete;
  LeanHeap& operator=(const LeanHeap&) = delete;

  // What happens each minute. True: much was free, was so at the last look, and went back.
  bool Look();

 private:
  void Run();

  bool was_loose_ = false;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_LEAN_HEAP_H_
