#ifndef TRYST_SERVER_PROCESS_LEAN_HEAP_H_
#define TRYST_SERVER_PROCESS_LEAN_HEAP_H_

#include <thread>

#include "base/mutex.h"

namespace tryst {

// For programs that run for weeks: while one of these lives, glibc's heap stays about as large as
// what is allocated in it. Make it before any other thread starts, with signals blocked.
//
// gRPC starts and ends threads all the time, and tensors come and go. Long-lived allocations end up
// scattered over the heaps of many threads, between large holes, and no heap shrinks again. A
// server grew by a quarter of a MiB with each restart of a peer; with two heaps instead of eight
// for each processor it still grew by half a MiB a minute, all of it free memory. So memory that
// was free at two looks in a row, a minute apart, also goes back to the system.
//
// Leaves the number of heaps alone where MALLOC_ARENA_MAX is set. Does nothing where malloc is not
// glibc's.
//
// A server in another program does less: it gives free memory back once after each large burst of
// its own (GiveFreeHeapBack()).
class LeanHeap {
 public:
  LeanHeap();
  ~LeanHeap();
  LeanHeap(const LeanHeap&) = delete;
  LeanHeap& operator=(const LeanHeap&) = delete;

  // Runs every minute. True: much memory was free now and at the last look, and was given back.
  bool Look();

 private:
  void Run();

  bool was_loose_ = false;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Gives the heap's free pages back to the system. Takes some tens of milliseconds where hundreds of
// MiB are free, in which other threads may wait for the heap. Does nothing where malloc is not
// glibc's.
void GiveFreeHeapBack();

// From here on the heap keeps free blocks of a few MiB for the next ones, as that of a program does
// that has freed such a block once. Otherwise each of gRPC's buffers for reading comes from the
// system, page by page, and is given back: a fifth of the processor time of large tensors over
// gRPC. Does nothing where malloc is not glibc's.
void KeepLargeBlocks();

}  // namespace tryst

#endif  // TRYST_SERVER_PROCESS_LEAN_HEAP_H_
