#include "server/c/operations.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "channel/device/device_engine.h"
#include "rendezvous/executor.h"

using tryst::c::Give;
using tryst::c::RefuseNull;
using tryst::c::Text;
using tryst::c::Timeout;

namespace {

// Waits for `ready` under `mu`; returns whether it became true.
template <typename Ready>
bool WaitFor(tryst::Mutex* mu, tryst::CondVar* changed, absl::Duration timeout, Ready ready)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  if (ready() || timeout <= absl::ZeroDuration()) return ready();
  // A timeout of more than a year means for ever; it could overflow a time point.
  const bool forever = timeout > absl::Hours(24 * 365);
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(forever ? 0 : absl::ToInt64Nanoseconds(timeout));
  while (!ready()) {
    if (forever) {
      changed->Wait(mu);
    } else if (changed->WaitUntil(mu, until)) {
      return ready();
    }
  }
  return true;
}

}  // namespace

absl::Status tryst::c::AddOptions(tryst_server* server, const tryst_options* options,
                                  uint32_t known, std::shared_ptr<DeviceContext>* context) {
  if (options == nullptr) return absl::OkStatus();
  if ((options->flags & ~known) != 0 || options->reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the call's options have the flags ", options->flags, " and reserved ", options->reserved,
        ": this call knows the flags ", known, " alone, and reserved must be 0"));
  }
  if (options->has_stream == 0) return absl::OkStatus();
  tryst::DeviceEngine* const engine = server->server->gpu(options->gpu);
  if (engine == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(server->server->worker(), " does not use GPU ", options->gpu,
                     ": add that number to the setting gpus (docs/CONFIG.md)"));
  }
  auto made = tryst::GpuContext::Make(engine, static_cast<tryst::cuda::Stream>(options->stream));
  if (!made.ok()) return made.status();
  *context = *std::move(made);
  return absl::OkStatus();
}

size_t tryst_server_release_gpu_memory(tryst_server* server) {
  constexpr int kMostGpus = 64;  // A machine has no more.
  size_t released = 0;
  if (server == nullptr || !server->Usable().ok() || server->server->steps() == nullptr) {
    return released;
  }
  for (int i = 0; i < kMostGpus; ++i) {
    tryst::DeviceEngine* const engine = server->server->gpu(i);
    if (engine != nullptr) released += engine->ReleaseMappings();
  }
  return released;
}

// ---- Queues ----

tryst_queue::~tryst_queue() { close(fd); }

void tryst_queue::Push(tryst_op* op) {
  tryst::MutexLock lock(&mu);
  op->in_queue = finished.insert(finished.end(), op);
  op->queued = true;
  if (finished.size() == 1) {
    const uint64_t one = 1;
    (void)!write(fd, &one, sizeof(one));  // The counter is 0, so the write cannot fail.
    changed.NotifyOne();
  }
}

void tryst_queue::Remove(tryst_op* op) {
  tryst::MutexLock lock(&mu);
  if (!op->queued) return;
  op->queued = false;
  finished.erase(op->in_queue);
  if (finished.empty()) Clear();
}

void tryst_queue::Clear() {
  uint64_t count;
  (void)!read(fd, &count, sizeof(count));
}

size_t tryst_queue::Take(tryst_op** ops, size_t max, absl::Duration timeout) {
  // A child shares the descriptor's count with its parent, to whom it stays.
  if (max == 0 || !tryst::c::InTheProcessOf(forks).ok()) return 0;
  tryst::MutexLock lock(&mu);
  const bool some = WaitFor(&mu, &changed, timeout,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !finished.empty(); });
  if (!some) return 0;
  size_t count = 0;
  for (; count < max && !finished.empty(); ++count) {
    ops[count] = finished.front();
    ops[count]->queued = false;
    finished.pop_front();
  }
  if (finished.empty()) {
    Clear();
  } else {
    changed.NotifyOne();  // Another thread may wait for an operation, too.
  }
  return count;
}

tryst_status* tryst_queue_create(tryst_queue** queue) {
  if (tryst_status* const refused = RefuseNull(queue)) return refused;
  *queue = nullptr;
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return Give(absl::ResourceExhaustedError(absl::StrCat(
        "cannot make a queue, as the system gives no eventfd: ", std::strerror(errno))));
  }
  *queue = new tryst_queue(fd);
  return nullptr;
}

void tryst_queue_free(tryst_queue* queue) { delete queue; }

int tryst_queue_fd(const tryst_queue* queue) { return queue == nullptr ? -1 : queue->fd; }

size_t tryst_queue_take(tryst_queue* queue, tryst_op** ops, size_t max, int64_t timeout_ms) {
  if (queue == nullptr || ops == nullptr) return 0;
  return queue->Take(ops, max, Timeout(timeout_ms));
}

// ---- Operations ----

void tryst_op::Start(tryst::Rendezvous* rendezvous, tryst::RecvArgs args) {
  if (queue != nullptr) return Receive(rendezvous, std::move(args));
  // The caller waits for it later. It takes the one turn that sends the request, so that no thread
  // must be woken for that.
  tryst::WaitScope scope(&end);
  Receive(rendezvous, std::move(args));
  scope.Until(0);
}

void tryst_op::StartOne(
    tryst::RecvArgs args,
    absl::FunctionRef<void(const tryst::RecvArgs& args, tryst::DoneFn done)> start) {
  args.cancellation = &cancellation;
  left = 1;
  const auto go = [&] {
    start(args, [this](tryst::Received&& got) { End(&items[0], std::move(got)); });
  };
  if (queue != nullptr) return go();
  tryst::WaitScope scope(&end);
  go();
  scope.Until(0);
}

void tryst_op::Receive(tryst::Rendezvous* rendezvous, tryst::RecvArgs args) {
  args.cancellation = &cancellation;
  left = items.size();
  bool any_into = false, any_filled_here = false;
  for (const Item& item : items) {
    any_into |= item.receive.into.valid();
    any_filled_here |= item.receive.into.valid() && item.receive.is_own;
  }
  // What is filled here, and does not fit, goes back to its turn, which many have not.
  if (!any_filled_here && items.size() > 1) {
    std::vector<tryst::TensorKey> keys;
    std::vector<tryst::Tensor> destinations;
    keys.reserve(items.size());
    for (const Item& item : items) keys.push_back(item.receive.key);
    if (any_into) {
      destinations.reserve(items.size());
      for (const Item& item : items) destinations.push_back(item.receive.into);
      args.destinations = destinations;
    }
    rendezvous->RecvManyAsync(keys, args,
                              [this](const absl::Status&, absl::Span<tryst::Received> results) {
                                for (size_t i = 0; i < results.size(); ++i) {
                                  End(&items[i], std::move(results[i]));
                                }
                              });
    return;
  }
  // The last item may finish here. The operation then lives only as long as the user's reference.
  const size_t count = items.size();
  for (size_t i = 0; i < count; ++i) {
    Item* const item = &items[i];
    args.destination = item->receive.into;
    rendezvous->RecvAsync(item->receive.key, args,
                          [this, item](tryst::Received&& got) { End(item, std::move(got)); });
  }
}

void tryst_op::End(Item* item, tryst::Received got) {
  item->status = std::move(got.status);
  item->is_dead = got.is_dead;
  if (item->status.ok() && !got.is_dead) {
    auto filled = item->receive.Fill(std::move(got));
    item->status = filled.status();
    if (filled.ok()) item->tensor = *std::move(filled);
    item->shared = item->receive.SharesMemory() || (by_reference && !item->receive.into.valid());
  }
  item->receive.into = tryst::Tensor();
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish();
}

void tryst_op::Finish() {
  end.End();  // Who takes it out of the queue finds it ended.
  if (queue != nullptr) {
    tryst::MutexLock lock(&mu);
    if (!freed) queue->Push(this);
  }
  Unref();
}

bool tryst_op::Wait(absl::Duration timeout) {
  if (!Usable().ok() || end.ended()) return true;
  if (timeout <= absl::ZeroDuration()) return false;
  return end.Wait(tryst::Deadline::After(tryst::SteadyClock(), timeout).at_ns());
}

void tryst_op::Cancel() {
  if (Usable().ok()) cancellation.StartCancel();
}

// After a fork the threads that would end it are missing, so it is leaked.
void tryst_op::Free() {
  if (!Usable().ok()) return;
  {
    tryst::MutexLock lock(&mu);
    freed = true;
    if (queue != nullptr) queue->Remove(this);
  }
  if (!end.ended()) cancellation.StartCancel();
  Unref();
}

void tryst_op::Unref() {
  if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

tryst_status* tryst::c::StartReceives(tryst_server* server, int64_t step, size_t count,
                                      absl::FunctionRef<absl::StatusOr<Receive>(size_t)> make,
                                      const tryst_options* options, int64_t timeout_ms,
                                      tryst_queue* queue, void* tag, tryst_op** op) {
  if (tryst_status* const refused = RefuseNull(server, op)) return refused;
  *op = nullptr;
  if (count == 0) return Give(absl::InvalidArgumentError("a receive needs at least one key"));
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  tryst::RecvArgs args;
  const absl::Status added = tryst::c::AddOptions(
      server, options, TRYST_RECV_BY_REFERENCE | TRYST_RECV_RECURRING, &args.device_context);
  if (!added.ok()) return Give(added);
  const uint32_t flags = options == nullptr ? 0 : options->flags;
  args.by_reference = (flags & TRYST_RECV_BY_REFERENCE) != 0;
  args.recurring = (flags & TRYST_RECV_RECURRING) != 0;
  if (timeout_ms >= 0) {
    args.deadline = tryst::Deadline::After(tryst::SteadyClock(), Timeout(timeout_ms));
  }
  std::vector<tryst_op::Item> made(count);
  std::shared_ptr<tryst::Turns> turns;
  for (size_t i = 0; i < count; ++i) {
    auto receive = make(i);
    if (!receive.ok()) return Give(receive.status());
    made[i].receive = *std::move(receive);
    if (turns == nullptr) turns = (*rendezvous)->TurnsFor(made[i].receive.key);
  }
  *op = new tryst_op(queue, tag, std::move(turns));
  (*op)->by_reference = args.by_reference;
  (*op)->items = std::move(made);
  (*op)->Start(rendezvous->get(), std::move(args));
  return nullptr;
}

tryst_status* tryst_recv_start(tryst_server* server, int64_t step, const tryst_recv_item* items,
                               size_t count, const tryst_options* options, int64_t timeout_ms,
                               tryst_queue* queue, void* tag, tryst_op** op) {
  return tryst::c::StartReceives(
      server, step, items == nullptr ? 0 : count,
      [&](size_t i) {
        return tryst::c::Receive::Make(server->server.get(), step, items[i].key, items[i].into);
      },
      options, timeout_ms, queue, tag, op);
}

void* tryst_op_tag(const tryst_op* op) { return op == nullptr ? nullptr : op->tag; }

int tryst_op_wait(tryst_op* op, int64_t timeout_ms) {
  return op == nullptr || op->Wait(Timeout(timeout_ms)) ? 1 : 0;
}

void tryst_op_cancel(tryst_op* op) {
  if (op != nullptr) op->Cancel();
}

tryst_status* tryst_op_result(tryst_op* op, size_t i, tryst_tensor** tensor, int* is_dead) {
  if (tryst_status* const refused = RefuseNull(op, tensor, is_dead)) return refused;
  *tensor = nullptr;
  *is_dead = 0;
  const absl::Status usable = op->Usable();
  if (!usable.ok()) return Give(usable);
  if (!op->Wait(absl::ZeroDuration())) {
    return Give(absl::FailedPreconditionError("the operation is still under way: wait for it"));
  }
  if (i >= op->items.size()) {
    return Give(absl::OutOfRangeError(absl::StrCat("there is no receive number ", i,
                                                   " (counted from 0): the operation has ",
                                                   op->items.size(), " receives")));
  }
  tryst_op::Item& item = op->items[i];
  if (!item.status.ok()) return Give(item.status);
  *is_dead = item.is_dead ? 1 : 0;
  if (item.tensor.valid()) *tensor = new tryst_tensor{std::move(item.tensor), item.shared};
  return nullptr;
}

void tryst_op_free(tryst_op* op) {
  if (op != nullptr) op->Free();
}

// ---- Sends ----

tryst_status* tryst::c::SendAll(tryst_server* server, int64_t step, absl::Span<SendItem> sends,
                                const tryst_options* options) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  tryst::SendArgs args;
  const absl::Status added =
      tryst::c::AddOptions(server, options, TRYST_SEND_COPY, &args.device_context);
  if (!added.ok()) return Give(added);
  args.copy_on_send = options != nullptr && (options->flags & TRYST_SEND_COPY) != 0;
  if (sends.size() == 1) {
    return Give(
        (*rendezvous)->Send(sends[0].key, args, std::move(sends[0].tensor), sends[0].is_dead));
  }
  return Give((*rendezvous)->SendMany(sends, args));
}

tryst_status* tryst_send_many(tryst_server* server, int64_t step, const tryst_send_item* items,
                              size_t count, const tryst_options* options) {
  if (items == nullptr) count = 0;
  std::vector<tryst::SendItem> sends(count);
  for (size_t i = 0; i < count; ++i) {
    auto key = tryst::TensorKey::Parse(Text(items[i].key));
    if (!key.ok()) return Give(key.status());
    sends[i].key = *std::move(key);
    sends[i].is_dead = items[i].tensor == nullptr;
    if (items[i].tensor != nullptr) sends[i].tensor = items[i].tensor->tensor;
  }
  return tryst::c::SendAll(server, step, absl::MakeSpan(sends), options);
}
