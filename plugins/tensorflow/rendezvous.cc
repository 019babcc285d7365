#include "plugins/tensorflow/rendezvous.h"

#include <atomic>
#include <utility>

#include "plugins/tensorflow/tensors.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/lib/random/random.h"
#include "tensorflow/core/platform/env.h"

namespace tryst_tensorflow {
namespace {

using tensorflow::BaseRemoteRendezvous;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// A worker without the plug-in never answers a greeting.
constexpr int64_t kGreetWithinUs = 10 * 1000 * 1000;

}  // namespace

// A fetch by Tryst, which TensorFlow may abort or cancel. It ends once: with the tensor or the
// abort, whichever comes first.
class StepRendezvous::Call final : public tensorflow::BaseRecvTensorCall {
 public:
  Call(StepRendezvous* step, std::shared_ptr<ProducerLink> link, Counts* counts,
       const Rendezvous::ParsedKey& key, const Rendezvous::Args& args, DoneCallback done)
      : step_(step),
        library_(step->steps_->bridge()->worker().library()),
        link_(std::move(link)),
        counts_(counts),
        key_(key),
        args_(args),
        done_(std::move(done)) {}

  // Keeps `self` until the call has ended.
  void Begin(std::shared_ptr<Call> self);

  void Start(std::function<void()>) override {}
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override {
    const std::lock_guard<std::mutex> lock(mu_);
    return aborted_;
  }

 private:
  void OnTensor(const tryst_status* failed, tryst_tensor* received, bool is_dead);
  void OnReceived(tryst_tensor* received);
  void GoOnByGrpc(Why why);
  absl::Status Failed(const tryst_status* failed) const;
  // True for the one caller that ends it.
  bool Claim() { return !ended_.exchange(true); }
  void End(const absl::Status& status, const Tensor& tensor, bool is_dead);
  void LetGo();

  StepRendezvous* const step_;  // TensorFlow keeps it until `done_` has run, and no longer.
  const Library& library_;
  const std::shared_ptr<ProducerLink> link_;
  Counts* const counts_;
  const Rendezvous::ParsedKey key_;
  const Rendezvous::Args args_;
  const DoneCallback done_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mu_;
  absl::Status aborted_;
  // Until the call has ended, because TensorFlow's table holds a plain pointer.
  std::shared_ptr<Call> self_;
};

void StepRendezvous::Call::Begin(std::shared_ptr<Call> self) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    self_ = self;
  }
  step_->RegisterCall(this, args_);
  if (!status().ok()) return;  // The abort ends it.
  const bool asked =
      link_->Fetch(step_->step_id_, key_.FullKey(),
                   [self](const tryst_status* failed, tryst_tensor* received, bool is_dead) {
                     self->OnTensor(failed, received, is_dead);
                   });
  if (!asked && Claim()) GoOnByGrpc(Why::kKey);
}

// TensorFlow holds locks during this call.
void StepRendezvous::Call::StartAbort(const absl::Status& status) {
  std::shared_ptr<Call> self;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!aborted_.ok() || !Claim()) return;
    aborted_ = status;
    self = self_;
  }
  step_->env_->env->SchedClosure([self] {
    self->link_->Cancel(self->step_->step_id_);
    self->End(self->status(), Tensor(), false);
  });
}

absl::Status StepRendezvous::Call::Failed(const tryst_status* failed) const {
  auto code = static_cast<absl::StatusCode>(library_.tryst_status_code(failed));
  // To TensorFlow, a producer that returns with another incarnation is one that went away.
  if (code == absl::StatusCode::kCancelled) code = absl::StatusCode::kUnavailable;
  // TensorFlow's coordinators look for these words to find out whose fault it was.
  return absl::Status(code, std::string("Tryst: ") + library_.tryst_status_message(failed) +
                                "\nAdditional GRPC error information from remote target " +
                                link_->producer().name + " while fetching by Tryst");
}

void StepRendezvous::Call::OnTensor(const tryst_status* failed, tryst_tensor* received,
                                    bool is_dead) {
  if (failed == nullptr && !is_dead) return OnReceived(received);
  if (!Claim()) return;
  if (failed != nullptr) {
    ++counts_->failed;
    End(Failed(failed), Tensor(), false);
  } else {
    ++counts_->dead;
    End(absl::OkStatus(), Tensor(), true);
  }
}

void StepRendezvous::Call::OnReceived(tryst_tensor* received) {
  if (!Claim()) return library_.tryst_tensor_free(received);
  Answer answer;
  if (IsAnswer(library_, received, &answer)) {
    library_.tryst_tensor_free(received);
    if (answer.kind == Answer::kByGrpc) return GoOnByGrpc(Why::kNotBytes);
    ++counts_->failed;
    return End(absl::Status(static_cast<absl::StatusCode>(answer.code), answer.message), Tensor(),
               false);
  }
  tensorflow::Device* device = nullptr;
  absl::Status status = step_->session()->device_mgr()->LookupDevice(key_.dst_device, &device);
  if (!status.ok()) {
    library_.tryst_tensor_free(received);
    return End(status, Tensor(), false);
  }
  tensorflow::AllocatorAttributes on_host = args_.alloc_attrs;
  on_host.set_on_host(true);
  Tensor tensor;
  bool copied = false;
  if (!Wrap(library_, received, device->GetAllocator(on_host), &tensor, &copied)) {
    return End(absl::InternalError("Tryst brought a tensor that TensorFlow cannot hold"), Tensor(),
               false);
  }
  ++counts_->tensors;
  counts_->bytes += static_cast<int64_t>(tensor.TotalBytes());
  if (copied) ++counts_->copied;
  End(status, tensor, false);
}

// REQUIRES: Claim() returned true.
void StepRendezvous::Call::GoOnByGrpc(Why why) {
  ++counts_->by_grpc[static_cast<int>(why)];
  step_->DeregisterCall(this, args_);
  step_->ByGrpc(key_, args_, done_);
  LetGo();
}

void StepRendezvous::Call::LetGo() {
  std::shared_ptr<Call> self;  // Destroyed last: the caller may hold the only other reference.
  const std::lock_guard<std::mutex> lock(mu_);
  self.swap(self_);
}

void StepRendezvous::Call::End(const absl::Status& status, const Tensor& tensor, bool is_dead) {
  step_->DeregisterCall(this, args_);
  done_(status, Rendezvous::Args(), args_, tensor, is_dead);
  LetGo();
}

StepRendezvous::StepRendezvous(Steps* steps, const tensorflow::WorkerEnv* env, int64_t step)
    : BaseRemoteRendezvous(env, step), steps_(steps) {}

void StepRendezvous::StartAbort(const absl::Status& status) {
  BaseRemoteRendezvous* stock = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (aborted_.ok()) aborted_ = status;
    stock = stock_.get();
  }
  BaseRemoteRendezvous::StartAbort(status);
  if (stock != nullptr) stock->StartAbort(status);
}

void StepRendezvous::RecvFromRemoteAsync(const Rendezvous::ParsedKey& key,
                                         const Rendezvous::Args& args, DoneCallback done) {
  Bridge::Producer* producer = nullptr;
  Why why = Why::kNotYet;
  std::shared_ptr<ProducerLink> link =
      steps_->bridge()->LinkTo(key, GreetOver(key), &producer, &why);
  const bool to_host = key.dst.type == "CPU" || args.alloc_attrs.on_host();
  if (link != nullptr && to_host) {
    return ByTryst(std::move(link), &producer->counts, key, args, std::move(done));
  }
  ++producer->counts.by_grpc[static_cast<int>(to_host ? why : Why::kOurMemory)];
  ByGrpc(key, args, std::move(done));
}

void StepRendezvous::ByTryst(std::shared_ptr<ProducerLink> link, Counts* counts,
                             const Rendezvous::ParsedKey& key, const Rendezvous::Args& args,
                             DoneCallback done) {
  auto call = std::make_shared<Call>(this, std::move(link), counts, key, args, std::move(done));
  Call* raw = call.get();
  // An abort may end the call, and with it the last reference to this step, before Begin() returns.
  Ref();
  raw->Begin(std::move(call));
  Unref();
}

void StepRendezvous::ByGrpc(const Rendezvous::ParsedKey& key, const Rendezvous::Args& args,
                            DoneCallback done) {
  BaseRemoteRendezvous* stock = nullptr;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    status = aborted_;  // A stock rendezvous that is made now would not know of the abort.
    if (status.ok() && stock_ == nullptr) {
      stock_ = steps_->MakeStock(step_id_);
      status = stock_->Initialize(session());
    }
    stock = stock_.get();
  }
  if (!status.ok()) return done(status, Rendezvous::Args(), args, Tensor(), false);
  stock->RecvAsync(key, args, std::move(done));
}

// The step's own session; otherwise the server's, which knows the workers that the server was
// started with.
std::shared_ptr<tensorflow::WorkerSession> StepRendezvous::KeptSession() {
  std::shared_ptr<tensorflow::WorkerSession> kept;
  const absl::Status found =
      env_->session_mgr->WorkerSessionForSession(session()->session_name(), &kept);
  if (found.ok() && kept.get() == session()) return kept;
  return env_->session_mgr->LegacySession();
}

// A RecvTensor call in a step of its own. It reaches the worker wherever TensorFlow can, and one
// without the plug-in never answers it.
Greet StepRendezvous::GreetOver(const Rendezvous::ParsedKey& key) {
  return [this, &key](const std::string& greeting,
                      std::function<void(std::string, std::string)> heard) {
    Rendezvous::ParsedKey greeting_key;
    const std::string text = Rendezvous::CreateKey(std::string(key.src_device), key.src_incarnation,
                                                   std::string(key.dst_device), greeting,
                                                   tensorflow::FrameAndIter(0, 0));
    const absl::Status parsed = Rendezvous::ParseKey(text, &greeting_key);
    if (!parsed.ok()) return heard(std::string(parsed.message()), "");
    auto step = steps_->MakeStock(static_cast<int64_t>(tensorflow::random::New64() >> 1));
    // No step of TensorFlow waits for this call, so we must keep its session alive.
    std::shared_ptr<tensorflow::WorkerSession> kept_session = KeptSession();
    const absl::Status ready = step->Initialize(kept_session.get());
    if (!ready.ok()) return heard(std::string(ready.message()), "");
    auto cancellation = std::make_shared<tensorflow::CancellationManager>();
    Rendezvous::Args args;
    args.alloc_attrs.set_on_host(true);
    args.cancellation_manager = cancellation.get();
    BaseRemoteRendezvous* raw = step.get();
    // Both must live until the call has ended and the timer has fired.
    auto kept = std::make_shared<decltype(step)>(std::move(step));
    env_->env->SchedClosureAfter(kGreetWithinUs,
                                 [cancellation, kept] { cancellation->StartCancel(); });
    raw->RecvAsync(greeting_key, args,
                   [heard, cancellation, kept, kept_session](
                       const absl::Status& status, const Rendezvous::Args&, const Rendezvous::Args&,
                       const Tensor& answer, bool) {
                     if (status.code() == absl::StatusCode::kCancelled) {
                       heard("it did not answer the greeting; it has no plug-in", "");
                     } else if (!status.ok()) {
                       heard(std::string(status.message()), "");
                     } else {
                       heard("", std::string(answer.scalar<tensorflow::tstring>()()));
                     }
                   });
  };
}

Steps::Steps(const tensorflow::WorkerEnv* env, std::unique_ptr<Bridge> bridge,
             std::function<void(Bridge*)> ending)
    : RpcRendezvousMgr(env), env_(env), bridge_(std::move(bridge)), ending_(std::move(ending)) {}

Steps::~Steps() { ending_(bridge_.get()); }

void Steps::RecvLocalAsync(int64_t step, const Rendezvous::ParsedKey& key,
                           Rendezvous::DoneCallback done) {
  if (!Bridge::IsGreeting(key.edge_name)) {
    return RpcRendezvousMgr::RecvLocalAsync(step, key, std::move(done));
  }
  bridge_->AnswerGreeting(key.edge_name, [done](const std::string& text) {
    Tensor answer(tensorflow::DT_STRING, {});
    answer.scalar<tensorflow::tstring>()() = text;
    // The key may name a GPU. Without this TensorFlow would want to copy from its memory.
    Rendezvous::Args send_args;
    send_args.alloc_attrs.set_on_host(true);
    done(absl::OkStatus(), send_args, Rendezvous::Args(), answer, false);
  });
}

tsl::core::RefCountPtr<BaseRemoteRendezvous> Steps::MakeStock(int64_t step) {
  return RpcRendezvousMgr::Create(step, env_);
}

tsl::core::RefCountPtr<BaseRemoteRendezvous> Steps::Create(int64_t step,
                                                           const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<BaseRemoteRendezvous>(new StepRendezvous(this, env, step));
}

}  // namespace tryst_tensorflow
