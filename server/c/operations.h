#ifndef TRYST_SERVER_C_OPERATIONS_H_
#define TRYST_SERVER_C_OPERATIONS_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/fork_count.h"
#include "base/mutex.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/waiter.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"

// Finished operations, the oldest first, and a descriptor that is readable while there are any.
struct tryst_queue {
  explicit tryst_queue(int fd) : fd(fd) {}
  ~tryst_queue();
  void Push(tryst_op* op);
  // Removes the operation if it is in the queue.
  void Remove(tryst_op* op);
  size_t Take(tryst_op** ops, size_t max, absl::Duration timeout);

  const int fd;
  const int forks = tryst::ForkCount();
  tryst::Mutex mu;
  tryst::CondVar changed;
  std::list<tryst_op*> finished ABSL_GUARDED_BY(mu);

 private:
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

// A group of receives. The user and the last callback share it; the later of the two deletes it.
struct tryst_op {
  struct Item {
    tryst::c::Receive receive;
    absl::Status status;
    tryst::Tensor tensor;
    bool is_dead = false;
    bool shared = false;
  };

  tryst_op(tryst_queue* queue, void* tag, std::shared_ptr<tryst::Turns> turns)
      : queue(queue), tag(tag), end(std::move(turns)) {}
  void Start(tryst::Rendezvous* rendezvous, tryst::RecvArgs args);
  // Starts its only item by `start`. REQUIRES: items.size() == 1.
  void StartOne(tryst::RecvArgs args,
                absl::FunctionRef<void(const tryst::RecvArgs& args, tryst::DoneFn done)> start);
  bool Wait(absl::Duration timeout);
  void Cancel();
  void Free();  // The user calls it.
  // OK, unless it was started before a fork: it ends in the parent only.
  absl::Status Usable() const { return tryst::c::InTheProcessOf(forks); }

  const int forks = tryst::ForkCount();
  tryst_queue* const queue;
  void* const tag;
  std::vector<Item> items;
  bool by_reference = false;
  std::unique_ptr<tryst::GatherResult> gathered;  // A gather writes it before it ends.
  tryst::Cancellation cancellation;
  tryst::Waiter end;

 private:
  friend struct tryst_queue;
  void Receive(tryst::Rendezvous* rendezvous, tryst::RecvArgs args);
  void End(Item* item, tryst::Received got);
  void Finish();  // Runs when the last item has ended.
  void Unref();

  std::atomic<size_t> left{0};
  std::atomic<int> refs{2};
  tryst::Mutex mu;
  bool freed ABSL_GUARDED_BY(mu) = false;
  bool queued = false;                      // Guarded by queue->mu.
  std::list<tryst_op*>::iterator in_queue;  // Guarded by queue->mu.
};

namespace tryst {
namespace c {

// Makes the context of the options' stream. kInvalidArgument: flags that the call does not know.
absl::Status AddOptions(tryst_server* server, const tryst_options* options, uint32_t known,
                        std::shared_ptr<DeviceContext>* context);
// What tryst_recv_start() does, with the i-th receive of `make`.
tryst_status* StartReceives(tryst_server* server, int64_t step, size_t count,
                            absl::FunctionRef<absl::StatusOr<Receive>(size_t)> make,
                            const tryst_options* options, int64_t timeout_ms, tryst_queue* queue,
                            void* tag, tryst_op** op);
// What tryst_send_many() does. Moves the tensors out of `sends`.
tryst_status* SendAll(tryst_server* server, int64_t step, absl::Span<SendItem> sends,
                      const tryst_options* options);

}  // namespace c
}  // namespace tryst

#endif  // TRYST_SERVER_C_OPERATIONS_H_
