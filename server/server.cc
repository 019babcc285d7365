#include "server/server.h"

#include <system_error>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "server/server_core.h"
#include "server/server_parts.h"

namespace tryst {
namespace {

// Starts and stops a ServerCore once, and answers for it before and after.
class ServerImpl final : public Server {
 public:
  explicit ServerImpl(ServerParts parts) : core_(std::make_unique<ServerCore>(std::move(parts))) {}
  ~ServerImpl() override;

  absl::Status Start() override;
  absl::Status Stop(absl::Duration deadline) override;
  void Reload() override;
  void Join() override;

  const std::string& worker() const override { return core_->parts().worker; }
  uint64_t incarnation() const override { return core_->incarnation(); }
  const std::string& address() const override { return core_->address(); }
  int port() const override { return core_->port(); }
  StepRegistry* steps() override { return core_->steps(); }
  Executor* executor() override { return core_->executor(); }
  Executor* own_executor() override { return core_->own_executor(); }
  Membership* members() override { return core_->members(); }
  PeerCalls* calls() override { return core_->calls(); }
  const ServerConfig& config() const override { return core_->parts().config; }
  const EtcdAccess* etcd() const override {
    const EtcdAccess& access = core_->parts().etcd;
    return access.endpoints.empty() ? nullptr : &access;
  }
  Allocator* allocator() override { return core_->allocator(); }
  DeviceEngine* gpu(int ordinal) override { return core_->gpu(ordinal); }
  std::string Explain(const std::string& peer) override {
    if (insight() == nullptr) return absl::StrCat(worker(), " has not started\n");
    return insight()->PathsText(peer);
  }
  std::map<std::string, int64_t> Stats() override {
    return insight() == nullptr ? std::map<std::string, int64_t>() : insight()->Stats();
  }
  const Insight* insight() const override { return core_->insight(); }
  WeightViews* weight_views() override { return core_->weight_views(); }
  RegionGrants* grants() override { return core_->grants(); }
  std::string status_address() const override { return core_->status_address(); }

 private:
  enum class State { kNew, kStarting, kServing, kStopping, kStopped };

  std::unique_ptr<ServerCore> core_;
  Mutex mu_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNew;
  absl::Status start_status_ ABSL_GUARDED_BY(mu_);
  absl::Status stop_status_ ABSL_GUARDED_BY(mu_);
};

void Destroy(std::unique_ptr<ServerCore> core, bool serves) {
  if (serves) (void)core->End(core->parts().config.stop_deadline);
  if (!core->drained()) (void)core.release();
}

ServerImpl::~ServerImpl() {
  bool serves = false;
  {
    MutexLock lock(&mu_);
    serves = state_ == State::kServing;
  }
  if (!core_->OnOwnThread()) {
    Destroy(std::move(core_), serves);
    return;
  }
  // A thread that nobody joins destroys it: docs/decisions/0028-destroyed-in-a-callback.md.
  TRYST_LOG(Warning)
      << worker() << " is destroyed in one of its own callbacks: another thread stops it when that "
      << "callback has returned";
  ServerCore* const core = core_.release();
  try {
    std::thread([core, serves] { Destroy(std::unique_ptr<ServerCore>(core), serves); }).detach();
  } catch (const std::system_error& error) {
    TRYST_LOG(Error) << core->parts().worker
                     << " runs on, and keeps its memory: no thread can be started that stops it: "
                     << error.what();
  }
}

absl::Status ServerImpl::Start() {
  {
    MutexLock lock(&mu_);
    if (!start_status_.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a server can be started once, and this one has failed to start: make another server (",
          start_status_.message(), ")"));
    }
    if (state_ != State::kNew) {
      return absl::FailedPreconditionError(
          absl::StrCat("a server can be started once, and ", worker(),
                       state_ == State::kStopping || state_ == State::kStopped
                           ? " was stopped: make another server"
                           : " has started already"));
    }
    state_ = State::kStarting;
  }
  absl::Status started = core_->Open();
  MutexLock lock(&mu_);
  start_status_ = started;
  state_ = started.ok() ? State::kServing : State::kStopped;
  changed_.NotifyAll();
  return started;
}

absl::Status ServerImpl::Stop(absl::Duration deadline) {
  const bool in_callback = core_->OnOwnThread();
  {
    MutexLock lock(&mu_);
    if (in_callback && state_ != State::kStopped) {
      return absl::FailedPreconditionError(
          absl::StrCat("Stop() waits for the callbacks of ", worker(),
                       " and was called in one of them: call it on another thread"));
    }
    while (state_ == State::kStarting || state_ == State::kStopping) changed_.Wait(&mu_);
    if (state_ == State::kStopped) return stop_status_;
    if (state_ == State::kNew) {
      state_ = State::kStopped;
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    state_ = State::kStopping;
  }
  absl::Status status = core_->End(deadline);
  MutexLock lock(&mu_);
  stop_status_ = status;
  state_ = State::kStopped;
  changed_.NotifyAll();
  return status;
}

void ServerImpl::Reload() {
  MutexLock lock(&mu_);
  if (state_ == State::kServing) core_->Reload();
}

void ServerImpl::Join() {
  const bool in_callback = core_->OnOwnThread();
  MutexLock lock(&mu_);
  if (in_callback && state_ != State::kStopped) {
    TRYST_LOG(Error) << "Join() was called in a callback of " << worker()
                     << ", which would wait for its own end: Join() returns at once";
    return;
  }
  while (state_ != State::kStopped) changed_.Wait(&mu_);
}

}  // namespace

uint64_t RandomIncarnation() {
  absl::BitGen random;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, UINT64_MAX);
}

std::unique_ptr<Server> MakeServer(ServerParts parts) {
  return std::make_unique<ServerImpl>(std::move(parts));
}

}  // namespace tryst
