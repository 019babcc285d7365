#ifndef TRYST_RENDEZVOUS_RENDEZVOUS_H_
#define TRYST_RENDEZVOUS_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/executor.h"
#include "rendezvous/selected_landing.h"
#include "rendezvous/selection.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/waiter.h"

namespace tryst {

struct AllocatorAttributes {
  bool on_host = false;  // In host memory although the device of the key is not the CPU.
  bool nic_compatible = false;
  bool gpu_compatible = false;
  int32_t scope_id = 0;
};

class SelectionCopier;

// What a caller knows of a device tensor's surroundings: its device and its stream.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;
  // Memory of this device (of the host for on_host), for a receive without destination.
  virtual absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                          const AllocatorAttributes& attributes) = 0;
  // Copies between this device and the host or itself, after the work already queued on
  // its stream. Both tensors are kept until `done` has run: exactly once, never in here.
  virtual void StartCopy(const Tensor& from, const Tensor& into,
                         absl::AnyInvocable<void(absl::Status) &&> done) = 0;
  // For a send: runs `fn` once the bytes of its tensor are there, perhaps in here. `receiver` may
  // be null; if its work may use them before that, it is made to wait for them.
  virtual void WhenSent(const DeviceContext* receiver,
                        absl::AnyInvocable<void(absl::Status) &&> fn) {
    static_cast<void>(receiver);
    std::move(fn)(absl::OkStatus());
  }
  // Null: of this device's memory nothing is selected. It lasts as long as this.
  virtual SelectionCopier* selection_copier() { return nullptr; }
};

// Copies selected bytes of a device's memory. REQUIRES: the selection was checked with the tensor.
class SelectionCopier {
 public:
  // A row of kUint8, and the context by which it is sent; null of host memory.
  struct Gathered {
    Tensor tensor;
    std::shared_ptr<DeviceContext> context = nullptr;
  };
  virtual ~SelectionCopier() = default;
  // The `bytes` that are selected, in memory of the device. They are copied behind the work that is
  // on the context's stream, and before what is queued there later; nothing waits for that.
  // kInvalidArgument: another device's memory, or too many spans. kResourceExhausted.
  virtual absl::StatusOr<Gathered> Gather(const Tensor& tensor, const Selection& selection,
                                          uint64_t bytes) = 0;
  // Copies the bytes of `dense`, on the host or a device, to where they are selected in `into`,
  // behind the work that uses it. All three last until `done` has run: once, perhaps in here. Where
  // it fails, nothing was written, unless the device itself failed.
  virtual void StartScatter(const Tensor& dense, const Tensor& into, const Selection& selection,
                            absl::AnyInvocable<void(absl::Status) &&> done) = 0;
};

// What a sender may say beside the key.
struct SendArgs {
  std::shared_ptr<DeviceContext> device_context;
  AllocatorAttributes alloc_attrs;
  // The caller changes the bytes once Send has returned. Send then copies host memory before it
  // returns, on the caller's thread: an allocation, and the time and the memory bandwidth of
  // reading and writing it once (about 0.1 ms a MiB). Without it a tensor must stay as it is until
  // it is released: what is sent is read when it is sent, perhaps twice.
  bool copy_on_send = false;
  // SendSelected(): with digests, for a receiver that asks for them (SelectedLanding), and no
  // other.
  bool digests = false;
};

// What a receiver may say beside the key. What it points to outlives `done`.
struct RecvArgs {
  std::shared_ptr<DeviceContext> device_context;
  AllocatorAttributes alloc_attrs;
  // Caller's memory of the right type and shape to fill, for a remote tensor or a copy. A local
  // host tensor is shared.
  Tensor destination;
  // RecvManyAsync: the destination of each key, an invalid one for none. Read during the call.
  absl::Span<const Tensor> destinations;
  CancellationRef cancellation;  // May be destroyed before `done`: it cancels.
  Deadline deadline;
  // Where `done` runs; null: in place, on whichever thread ends the receive.
  Executor* executor = nullptr;
  // For another worker's tensor: the same key is wanted in step after step, at one distance. From
  // the third on the channel asks for the next before it is received, so that it comes as soon as
  // it is sent. This may create the producer's step. What is then never received stays with the
  // producer. No use with `destination`.
  bool recurring = false;
  // A remote tensor may come as a view of the producer's memory, to be read only, where that costs
  // no copy. A `destination` is filled all the same, on every path.
  bool by_reference = false;
  // For the data plane itself: a view of the producer's memory is taken in place of filling
  // `destination`.
  bool prefers_view = false;
  // And: one that is cancelled, late or aborted is reported at once, where nobody writes its
  // memory, without waiting for the last word of its peer, which may stand still. A tensor that is
  // sent after that may come for it, and then goes back to its place.
  bool leaves_at_once = false;
  // And: a remote tensor without `destination` comes into memory of `device_context`'s device,
  // whatever the key says.
  bool on_device = false;

  // An assignment that costs little where neither shares anything with others, which is usual.
  void Assign(const RecvArgs& other) {
    if (device_context != nullptr || other.device_context != nullptr) {
      device_context = other.device_context;
    }
    alloc_attrs = other.alloc_attrs;
    if (other.destination.valid()) {
      destination = other.destination;
    } else if (destination.valid()) {
      destination.Reset();
    }
    destinations = other.destinations;
    if (cancellation != nullptr || other.cancellation != nullptr) cancellation = other.cancellation;
    deadline = other.deadline;
    executor = other.executor;
    recurring = other.recurring;
    by_reference = other.by_reference;
    prefers_view = other.prefers_view;
    leaves_at_once = other.leaves_at_once;
    on_device = other.on_device;
  }
  // Lets go of what it shares with others. For one that is filled anew, again and again.
  void DropReferences() {
    if (device_context != nullptr) device_context = nullptr;
    if (destination.valid()) destination.Reset();
    if (cancellation != nullptr) cancellation = nullptr;
  }
};

// In 0.2.0 one type served both Send and receives. This one goes after 0.3.
struct ArgsOfBoth : RecvArgs {
  bool copy_on_send = false;

  operator SendArgs() const {  // NOLINT(google-explicit-constructor)
    return {device_context, alloc_attrs, copy_on_send, /*digests=*/false};
  }
};
using Args [[deprecated("give SendArgs to sends and RecvArgs to receives: CHANGELOG.md")]] =
    ArgsOfBoth;

// Makes the args of each receive of a RecvMany of those of all.
class ArgsOfEach {
 public:
  explicit ArgsOfEach(const RecvArgs& all) : one_(all), destinations_(all.destinations) {
    one_.destinations = {};
  }
  // They last until the next call.
  const RecvArgs& At(size_t i) {
    if (!destinations_.empty()) one_.destination = destinations_[i];
    return one_;
  }

 private:
  RecvArgs one_;
  const absl::Span<const Tensor> destinations_;
};

// What a receive ends with.
struct Received {
  absl::Status status;
  Tensor tensor = {};  // Invalid unless the status is OK and it is not dead.
  bool is_dead = false;
  // What the sender said beside the key. Empty of a remote tensor, and of a receive that failed.
  std::shared_ptr<DeviceContext> send_context = nullptr;
  AllocatorAttributes send_attrs = {};
  uint64_t turn = 0;  // Its place in the order of its key, for GiveBack(). 0 of a remote tensor.
};

// Called exactly once, never with a lock held. If it throws, it still counts as called: its tensor
// is lost, and the other callbacks of the call still run. The exception leaves the call that ran it
// in place (Send, RecvAsync, StartCancel, StartAbort); of several exceptions the first does. On a
// thread of the executor, of the data plane or of the alarms an exception ends the process. The
// rendezvous is not touched after the call, so `done` may drop the last reference to it. What it
// does not move out of its argument is dropped when it returns.
using DoneFn = absl::AnyInvocable<void(Received&&) &&>;

// Ends a receive, on `executor` if there is one.
void EndReceive(Executor* executor, Received&& received, DoneFn done);
void FailReceive(absl::Status status, Executor* executor, DoneFn done);

// The DoneFn of 0.2.0. Goes after 0.3.
using FiveArgumentDoneFn =
    absl::AnyInvocable<void(absl::Status status, const ArgsOfBoth& send_args,
                            const ArgsOfBoth& recv_args, Tensor tensor, bool is_dead) &&>;

// Called as DoneFn is, with the first failure of all and one result for each key in the
// order of the keys. The results last for the call and may be moved from.
using ManyDoneFn =
    absl::AnyInvocable<void(absl::Status first_error, absl::Span<Received> results) &&>;

struct SendItem {
  TensorKey key;
  Tensor tensor;
  bool is_dead = false;
};

// Where producers and consumers of one step meet. Safe from any thread.
//
// Per key, sends meet receives first come, first served, both ways; each send meets one
// receive. A dead tensor is an ordinary item. Nothing is remembered of a key whose items
// have all met.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Gives `tensor` to the receive of `key` that waits longest, or keeps it for the next.
  // Never blocks: where the receive's executor is full it goes on all the same
  // (Executor::RunWithoutWaiting). A `done` without an executor runs in here. On an error nothing
  // was sent: kInvalidArgument (empty key, not produced here), the abort's status (derived),
  // kResourceExhausted (over a memory cap: WhenRoom).
  [[nodiscard]] virtual absl::Status Send(const TensorKey& key, const SendArgs& args, Tensor tensor,
                                          bool is_dead) = 0;
  // Send() for many items with the same args, with one lock round per shard. It moves the tensors
  // out of `items`. On an error nothing was sent; but if the step is aborted meanwhile, some may
  // have been sent, and the others are dropped.
  [[nodiscard]] virtual absl::Status SendMany(absl::Span<SendItem> items, const SendArgs& args) = 0;

  // Calls `done` with the next tensor of `key`, at once when it is here. Otherwise ends
  // with the abort's status (derived), kCancelled (derived), kDeadlineExceeded,
  // kInvalidArgument. A receive that fails takes no tensor and leaves the order of its
  // neighbours as it was. A tensor of this worker that is here is delivered even after the
  // deadline or the cancel, as TensorFlow does.
  // A null `done` throws the tensor away.
  virtual void RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) = 0;
  // With a callback of 0.2.0, which takes five arguments. Goes after 0.3.
  template <typename Fn, typename = std::enable_if_t<std::is_invocable_v<
                             Fn, absl::Status, const ArgsOfBoth&, const ArgsOfBoth&, Tensor, bool>>>
  [[deprecated("give a callback that takes one Received&&: CHANGELOG.md")]] void RecvAsync(
      const TensorKey& key, const RecvArgs& args, Fn done) {
    RecvAsync(key, args, FromFiveArguments(args, std::move(done)));
  }
  // Like a RecvAsync for each key, with one callback when the last of them has ended.
  // REQUIRES: args.destination is unset; args.destinations is empty or has one for each key.
  virtual void RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                             ManyDoneFn done) = 0;
  // Waits for RecvAsync on this thread; InfiniteDuration() for ever. args.executor is not
  // used. args.deadline holds too. On a thread that delivers for others (delivering.h: a
  // poller's or the alarms', as in a `done` that runs in place) it gives what is here and
  // never waits: kFailedPrecondition.
  //
  // A thread that waits for a peer's tensor may itself run what brings tensors from that peer, and
  // so a `done` of others that runs in place. Hold no lock around Recv that such a `done` takes.
  absl::StatusOr<Received> Recv(const TensorKey& key, const RecvArgs& args, absl::Duration timeout);
  // Send() of selected bytes of `tensor`, in their order: it comes as a row of kUint8. They are
  // copied in here, into memory that is shared with this host's workers where there is any, and so
  // `tensor` is the caller's again when the call returns; of a device, by args.device_context and
  // into memory of the device (SelectionCopier): its context's stream may write there again. kWhole
  // without digests is as Send(), without a copy. Also kInvalidArgument: the selection does not fit
  // (selection.h); strings; digests, or no context that copies selections, with a device's memory.
  [[nodiscard]] virtual absl::Status SendSelected(const TensorKey& key, const SendArgs& args,
                                                  const Tensor& tensor, const Selection& selection);
  // RecvAsync() of a tensor whose bytes fill `landing` of args.destination, in its order, and leave
  // the rest of that as it is. Its type and shape do not count. They are copied right before
  // `done`, where that runs: give an executor if they are many. Into a device's memory
  // args.device_context copies them, and a cancel comes too late by then. A receive that fails has
  // written nothing, but for what came right where a digest is wrong, or a device failed, and
  // afterwards nothing is written.
  // Also kInvalidArgument: the selection does not fit or has bytes twice, or has more or fewer
  // bytes than the tensor, or one end alone has digests; the tensor then is there for the next
  // receive of its key.
  virtual void RecvSelectedAsync(const TensorKey& key, const RecvArgs& args,
                                 const SelectedLanding& landing, DoneFn done);
  // The poller that brings this key's tensor, for a caller of RecvAsync that waits by a Waiter of
  // its own and may turn it. Null: there is none.
  virtual std::shared_ptr<Turns> TurnsFor(const TensorKey& key) {
    static_cast<void>(key);
    return nullptr;
  }

  // Fails all waiting operations and all later ones. The first cause stays. REQUIRES: !status.ok().
  virtual void StartAbort(const absl::Status& status) = 0;
  // Whether it was, for who brings tensors by themselves. False of one that does not know.
  virtual bool aborted() const { return false; }

  // Calls `ready` once when a Send of `bytes` would fit under the memory caps, or with the cause
  // when the step is aborted; perhaps inside this call. It reserves nothing, so another Send may
  // take the room first. `ready` may run inside any caller's call; if it throws, the process ends.
  virtual void WhenRoom(int64_t bytes, absl::AnyInvocable<void(absl::Status) &&> ready) = 0;

 protected:
  static DoneFn FromFiveArguments(const RecvArgs& args, FiveArgumentDoneFn done);
  virtual const Clock& clock() const = 0;
  // Whether RecvAsync may need another thread to end a receive although its tensor is here (a copy,
  // a fetch). Then Recv cannot try without waiting.
  virtual bool EndsElsewhere(const TensorKey& /*key*/, const RecvArgs& /*args*/) const {
    return false;
  }
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_RENDEZVOUS_H_
