#include "tests/contract/toy/toy_transport.h"

#include <atomic>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr char kName[] = "toy";

// Where the tensors of each worker are.
struct Sources {
  Mutex mu;
  std::map<std::string, TensorSource*> by_worker ABSL_GUARDED_BY(mu);
};

class ToyChannel final : public Channel {
 public:
  ToyChannel(const TransportContext& context, Sources* sources, std::string peer, ChannelUser* user,
             uint64_t* fetches)
      : context_(context), sources_(sources), peer_(peer), user_(user), fetches_(fetches) {
    if (context_.trace != nullptr) track_ = context_.trace->Track(TraceRole::kFetch, peer_, kName);
  }

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override {
    auto made = std::make_unique<Op>(this, ++*fetches_);
    Op* const op = ops_.emplace(made->id, std::move(made)).first->second.get();
    op->fetch = {step_id, key, args, std::move(done)};
    op->span.Begin(WaitsFor::kConnection, now_ns());
    const auto cancel = [this, id = op->id] {
      LeaveSoon(id, MarkDerived(absl::CancelledError("cancelled")));
    };
    if (args.cancellation != nullptr) {
      op->token = op->fetch.args.cancellation->Register(cancel);
      if (op->token == Cancellation::kNoToken) cancel();
    }
    if (!closed_.ok()) return LeaveSoon(op->id, closed_);
    if (!args.deadline.is_never()) context_.poller->SetTimer(op, args.deadline.at_ns());
    source_ != nullptr ? Take(op) : Probe();
  }
  void AbortStep(int64_t step_id, const absl::Status& why) override {
    for (const auto& [id, op] : ops_) {
      if (op->fetch.step == step_id) LeaveSoon(id, MarkDerived(why));
    }
  }
  void Close(absl::Status why) override {
    closed_ = why;
    for (const auto& [id, op] : ops_) LeaveSoon(id, why);
  }
  bool Drained() const override { return !closed_.ok() && ops_.empty() && posted_ == 0; }

  size_t fetches_out() const override { return ops_.size(); }
  std::string Explain() const override {
    return absl::StrCat(peer_, source_ == nullptr ? " not in this process, " : " over toy, ",
                        ops_.size(), " fetches out");
  }
  void ListOps(LiveOps* ops) const override {
    for (const auto& [id, op] : ops_) {
      ops->Add({TraceRole::kFetch, peer_, kName, op->fetch.step, op->fetch.key, op->span, 0, ""});
    }
  }

  std::vector<WaitingFetch> TakeWaiting() override {
    std::vector<WaitingFetch> taken;
    for (auto at = ops_.begin(); at != ops_.end();) {
      Op* const op = (at++)->second.get();
      if (op->asked || !Unregister(op)) continue;
      taken.push_back(std::move(op->fetch));
      ops_.erase(op->id);
    }
    return taken;
  }
  void Probe() override {
    if (source_ == nullptr) Soon([this] { Connect(); });
  }

 private:
  struct Op final : PollerTimer {
    Op(ToyChannel* channel, uint64_t id) : channel(channel), id(id) {}
    void OnTimer() override { channel->Leave(id, absl::DeadlineExceededError("not sent in time")); }
    ToyChannel* const channel;
    const uint64_t id;
    WaitingFetch fetch;
    bool asked = false;
    absl::Status left;  // Why the fetch was ended early.
    Cancellation take;
    Received taken;
    Cancellation::Token token = Cancellation::kNoToken;
    TraceSpan span;
  };

  int64_t now_ns() const { return context_.poller->now_ns(); }
  void Soon(std::function<void()> fn) {  // May be called on any thread.
    ++posted_;
    context_.poller->PostFn([this, fn = std::move(fn)] {
      fn();
      --posted_;
    });
  }

  // Whether the peer is in this process can be seen without a hello.
  void Connect() {
    {
      MutexLock lock(&sources_->mu);
      source_ = sources_->by_worker[peer_];
    }
    if (source_ == nullptr) return user_->OnRefused();
    user_->OnUsable();
    for (auto& [id, op] : ops_) Take(op.get());
  }
  void Take(Op* op) {
    if (std::exchange(op->asked, true)) return;
    op->span.Enter(WaitsFor::kPeerSend, now_ns());
    RecvArgs args;
    args.cancellation = &op->take;
    source_->Take(op->fetch.step, op->fetch.key, args, [this, op](Received&& received) {
      op->taken = std::move(received);
      Soon([this, op] { OnTaken(op, op->taken.status); });
    });
  }
  void OnTaken(Op* op, absl::Status status) {
    const bool taken = status.ok();
    if (taken) status = op->left.ok() ? Fill(op) : op->left;
    if (taken && !status.ok()) {
      source_->GiveBack(op->fetch.step, op->fetch.key, std::exchange(op->taken, Received()));
    }
    End(op, op->left.ok() ? status : op->left);
  }
  static absl::Status Fill(Op* op) {
    const Tensor& into = op->fetch.args.destination;
    Tensor* const tensor = &op->taken.tensor;
    if (!into.valid() || op->taken.is_dead || tensor->dtype() == DType::kString) return {};
    if (into.dtype() != tensor->dtype() || into.shape() != tensor->shape()) {
      return absl::InvalidArgumentError("the destination is of another shape");
    }
    memcpy(into.mutable_data(), tensor->data(), tensor->bytes());
    *tensor = into;
    return absl::OkStatus();
  }

  // Ends a fetch early. If it was requested, the producer's answer ends it.
  void LeaveSoon(uint64_t id, const absl::Status& why) {
    Soon([this, id, why] { Leave(id, why); });
  }
  void Leave(uint64_t id, const absl::Status& why) {
    auto found = ops_.find(id);
    if (found == ops_.end() || !found->second->left.ok()) return;
    Op* const op = found->second.get();
    op->left = why;
    op->asked ? op->take.StartCancel() : End(op, why);
  }
  bool Unregister(Op* op) {
    context_.poller->CancelTimer(op);
    if (op->token == Cancellation::kNoToken) return true;
    return op->fetch.args.cancellation->Deregister(std::exchange(op->token, 0));
  }
  void End(Op* op, const absl::Status& status) {
    (void)Unregister(op);
    if (track_ != nullptr) {
      context_.trace->End(op->span, track_, op->fetch.step, op->fetch.key, op->taken.tensor.bytes(),
                          status.code(), now_ns());
    }
    Executor* const executor = op->fetch.args.executor;
    auto run = [fetch = std::move(op->fetch), taken = std::move(op->taken), status]() mutable {
      std::move(fetch.done)({status, std::move(taken.tensor), taken.is_dead});
    };
    ops_.erase(op->id);
    executor == nullptr ? run() : executor->RunWithoutWaiting(std::move(run));
  }

  const TransportContext context_;
  Sources* const sources_;
  const std::string peer_;
  ChannelUser* const user_;
  uint64_t* const fetches_;  // Counts the fetches of all channels.
  TraceTrack* track_ = nullptr;
  TensorSource* source_ = nullptr;  // The producer's, once it has answered.
  absl::Status closed_;
  std::map<uint64_t, std::unique_ptr<Op>> ops_;  // In the order of fetches.
  std::atomic<int> posted_{0};
};

class ToyTransport final : public Transport {
 public:
  ToyTransport(const TransportContext& context, std::shared_ptr<Sources> sources)
      : context_(context), sources_(std::move(sources)) {
    MutexLock lock(&sources_->mu);
    sources_->by_worker[context_.self] = context_.source;
  }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, ChannelUser* user) override {
    return std::make_unique<ToyChannel>(context_, sources_.get(), peer, user, &fetches_);
  }
  void AddCounters(Counters* counters) const override { counters->Count("toy_fetches", fetches_); }

 private:
  const std::string name_ = kName;
  const TransportContext context_;
  const std::shared_ptr<Sources> sources_;
  uint64_t fetches_ = 0;
};

}  // namespace

TransportFactory ToyFactory() {
  return [sources = std::make_shared<Sources>()](const TransportContext& context) {
    return std::make_unique<ToyTransport>(context, sources);
  };
}

}  // namespace tryst
