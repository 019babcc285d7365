#include "python/extension/deferred.h"

#include <atomic>

namespace tryst_python {
namespace {

std::atomic<Deferred*> first{nullptr};
std::atomic<bool> stopped{false};
thread_local int scopes = 0;  // How many GivesBack this thread is in.

int GiveBackPending(void*) {
  GiveBackDeferred();
  return 0;
}

}  // namespace

void Defer(Deferred* item) {
  Deferred* head = first.load(std::memory_order_relaxed);
  do {
    item->next = head;
  } while (!first.compare_exchange_weak(head, item, std::memory_order_acq_rel));
  // The main thread runs it soon, unless another thread comes first. If its list is full, the next
  // call of the module runs it. Who joins a list that is not empty need not ask: somebody has.
  if (head == nullptr && scopes == 0 && !stopped.load(std::memory_order_acquire)) {
    (void)Py_AddPendingCall(GiveBackPending, nullptr);
  }
}

void GiveBackDeferred() {
  if (first.load(std::memory_order_relaxed) == nullptr) return;
  // The caller may be about to raise an exception, and what is given back may run Python.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Deferred* item = first.exchange(nullptr, std::memory_order_acq_rel);
  while (item != nullptr) {
    Deferred* const next = item->next;
    item->GiveBack();
    delete item;
    item = next;
  }
  PyErr_Restore(type, value, traceback);
}

GivesBack::GivesBack() { ++scopes; }

GivesBack::~GivesBack() {
  --scopes;
  GiveBackDeferred();
}

void StopDeferring() {
  GiveBackDeferred();
  stopped.store(true, std::memory_order_release);
}

}  // namespace tryst_python
