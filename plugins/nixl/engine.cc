#include "plugins/nixl/engine.h"

#include <cstdlib>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/log.h"

namespace tryst::nixl {
namespace {

constexpr int64_t kDrainMs = 1000;
// Whoever asks again so soon does nothing else. He waits in the call, where he can do the work that
// his transfer needs, and does not keep its thread from a processor.
constexpr int64_t kAgainNs = 20'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

abi::Status Fail(absl::string_view what, const absl::Status& status) {
  TRYST_LOG(Error) << "NIXL's back end TRYST: " << what << ": " << status.message();
  return NixlStatus(status);
}

bool IsSet(const abi::Parameters& parameters, const char* name, const char* variable) {
  const auto found = parameters.find(name);
  const char* const value = getenv(variable);
  return (found != parameters.end() && !found->second.empty()) ||
         (value != nullptr && *value != '\0');
}

}  // namespace

abi::Parameters TrystEngine::Options() {
  return {{"listen", ""}, {"token_file", ""}, {"patience", "10s"}};
}

absl::StatusOr<std::vector<std::string>> TrystEngine::SettingsOf(
    const abi::Parameters& parameters) {
  absl::BitGen random;
  // No two lives of agents have a name in common, so none is taken for another.
  std::vector<std::string> settings = {
      absl::StrFormat("--job=nixl_%016x", absl::Uniform<uint64_t>(random)), "--open_cluster"};
  if (!IsSet(parameters, "token_file", "TRYST_TOKEN_FILE") &&
      !IsSet(parameters, "certificate_file", "TRYST_CERTIFICATE_FILE") &&
      !IsSet(parameters, "insecure", "TRYST_INSECURE") &&
      !IsSet(parameters, "config", "TRYST_CONFIG")) {
    settings.push_back("--insecure");
  }
  if (!IsSet(parameters, "listen", "TRYST_LISTEN")) settings.push_back("--listen=127.0.0.1:0");
  if (!IsSet(parameters, "patience", "TRYST_PATIENCE")) settings.push_back("--patience=10s");
  for (const auto& [name, value] : parameters) {
    if (name.empty() || name.find_first_of("= ") != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is no setting: docs/CONFIG.md has those there are"));
    }
    if (!value.empty()) settings.push_back(absl::StrCat("--", name, "=", value));
  }
  return settings;
}

TrystEngine::TrystEngine(const abi::EngineOptions& options) : Engine(options) {
  absl::Status status;
  if (agent_.size() > kMaxAgentName) {
    status = absl::InvalidArgumentError(absl::StrCat("the agent's name has ", agent_.size(),
                                                     " bytes, and may have ", kMaxAgentName));
  }
  auto settings =
      SettingsOf(options.parameters == nullptr ? abi::Parameters() : *options.parameters);
  if (status.ok()) status = settings.status();
  if (status.ok()) {
    auto worker = Worker::Start(*settings, [this](auto&&... question) {
      target_.Hear(std::forward<decltype(question)>(question)...);
    });
    status = worker.status();
    if (worker.ok()) worker_ = *std::move(worker);
  }
  if (!status.ok()) {
    failed_ = true;
    Fail("it cannot start", status);
    return;
  }

  outbox_ = std::make_unique<Outbox>(worker_.get(), agent_);
  self_ = {agent_, worker_.get(), outbox_.get(), &inbox_};
}

TrystEngine::~TrystEngine() {
  if (worker_ == nullptr) return;
  if (getpid() != process_) {  // The threads are those of the process that forked.
    static_cast<void>(worker_.release());
    return;
  }
  outbox_->Drain(kDrainMs);
  worker_->Stop();
  inbox_.Clear();
  memories_.CloseAll();
}

abi::Status TrystEngine::Register(const abi::Blob& memory, const abi::Memory& kind,
                                  abi::MemoryHandle*& handle) {
  if (kind != abi::kDram) {
    return Fail("memory was not registered",
                absl::UnimplementedError("it knows only memory of the host so far: copy there, or "
                                         "register memory of GPUs with another back end"));
  }
  auto opened = memories_.Open(worker_->server(), memory.address, memory.bytes);
  if (!opened.ok()) return Fail("memory was not registered", opened.status());
  handle = new OwnMemoryHandle(*std::move(opened));
  return abi::kSuccess;
}

abi::Status TrystEngine::Deregister(abi::MemoryHandle* handle) {
  const auto* const own = dynamic_cast<const OwnMemoryHandle*>(handle);
  if (own == nullptr) return abi::kInvalidParameter;
  memories_.Close(own->memory->id());
  delete own;
  return abi::kSuccess;
}

abi::Status TrystEngine::Unload(abi::MemoryHandle* handle) {
  delete handle;
  return abi::kSuccess;
}

abi::Status TrystEngine::Connect(const std::string& agent) {
  return Find(agent).ok() ? abi::kSuccess : abi::kNotFound;
}

abi::Status TrystEngine::Disconnect(const std::string& agent) {
  MutexLock lock(&mu_);
  peers_.erase(agent);
  return abi::kSuccess;
}

absl::StatusOr<PeerName> TrystEngine::Find(const std::string& agent) const {
  MutexLock lock(&mu_);
  if (agent == agent_) return worker_->name();
  const auto found = peers_.find(agent);
  if (found != peers_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("the metadata of the agent ", agent, " was not loaded, or was invalidated"));
}

abi::Status TrystEngine::Prepare(const abi::Operation& operation, const abi::Spans& mine,
                                 const abi::Spans& theirs, const std::string& agent,
                                 abi::RequestHandle*& handle,
                                 const abi::PostOptions* /*options*/) const {
  const absl::StatusOr<PeerName> peer = Find(agent);
  if (!peer.ok()) return Fail("no transfer was prepared", peer.status());
  auto transfer = Transfer::Prepare(&self_, operation, mine, theirs, *peer);
  if (!transfer.ok()) return Fail("no transfer was prepared", transfer.status());
  handle = transfer->release();
  return abi::kSuccess;
}

abi::Status TrystEngine::Post(const abi::Operation& /*operation*/, const abi::Spans& /*mine*/,
                              const abi::Spans& /*theirs*/, const std::string& /*agent*/,
                              abi::RequestHandle*& handle, const abi::PostOptions* options) const {
  const bool tells = options != nullptr && options->has_notification;
  return static_cast<Transfer*>(handle)->Post(tells ? &options->notification : nullptr);
}

abi::Status TrystEngine::Check(abi::RequestHandle* handle) const {
  auto* const transfer = static_cast<Transfer*>(handle);
  const abi::Status status = transfer->Check(AskedAgain(transfer));
  last_checked_ns_.store(NowNs(), std::memory_order_relaxed);
  return status;
}

bool TrystEngine::AskedAgain(const Transfer* transfer) const {
  return last_checked_.exchange(transfer, std::memory_order_relaxed) == transfer &&
         NowNs() - last_checked_ns_.load(std::memory_order_relaxed) < kAgainNs;
}

abi::Status TrystEngine::Release(abi::RequestHandle* handle) const {
  auto* const transfer = static_cast<Transfer*>(handle);
  if (!transfer->Quiet()) return abi::kStillActive;
  delete transfer;
  return abi::kSuccess;
}

abi::Status TrystEngine::PrepareRemoteView(const abi::List<abi::RemoteSpan>& /*memory*/,
                                           void*& /*view*/,
                                           const abi::PostOptions* /*options*/) const {
  return abi::kNotSupported;
}

abi::Status TrystEngine::PrepareView(const abi::Spans& /*memory*/, void*& /*view*/,
                                     const abi::PostOptions* /*options*/) const {
  return abi::kNotSupported;
}

void TrystEngine::ReleaseView(void* /*view*/) const {}

abi::Status TrystEngine::PublicData(const abi::MemoryHandle* handle, std::string& text) const {
  const auto* const own = dynamic_cast<const OwnMemoryHandle*>(handle);
  if (own == nullptr) return abi::kInvalidParameter;
  text = WriteRegionId(own->memory->id());
  return abi::kSuccess;
}

abi::Status TrystEngine::ConnectionInfo(std::string& text) const {
  text = WritePeerName(worker_->name());
  return abi::kSuccess;
}

abi::Status TrystEngine::LoadConnectionInfo(const std::string& agent, const std::string& text) {
  absl::StatusOr<PeerName> peer = ReadPeerName(text);
  absl::Status status = peer.status();
  if (status.ok()) status = worker_->AddPeer(*peer);
  if (!status.ok()) return Fail(absl::StrCat("the agent ", agent, " was not loaded"), status);
  MutexLock lock(&mu_);
  peers_[agent] = *std::move(peer);
  return abi::kSuccess;
}

abi::Status TrystEngine::LoadRemote(const abi::Blob& memory, const abi::Memory& kind,
                                    const std::string& agent, abi::MemoryHandle*& handle) {
  const absl::StatusOr<uint64_t> id = ReadRegionId(memory.text);
  if (!id.ok()) return Fail(absl::StrCat("memory of ", agent, " was not loaded"), id.status());
  if (kind != abi::kDram || memory.address + memory.bytes < memory.address) {
    return Fail(absl::StrCat("memory of ", agent, " was not loaded"),
                absl::InvalidArgumentError("it is no memory of a host"));
  }
  handle = new RemoteMemoryHandle(*id, memory.address, memory.bytes);
  return abi::kSuccess;
}

abi::Status TrystEngine::LoadOwn(abi::MemoryHandle* handle, abi::MemoryHandle*& same) {
  const auto* const own = dynamic_cast<const OwnMemoryHandle*>(handle);
  if (own == nullptr) return abi::kInvalidParameter;
  // The agent unloads it and deregisters the other, in an order of its own.
  same = new OwnMemoryHandle(own->memory);
  return abi::kSuccess;
}

abi::Status TrystEngine::TakeNotifications(abi::Notifications& taken) {
  inbox_.TakeAll(&taken);
  return abi::kSuccess;
}

abi::Status TrystEngine::Notify(const std::string& agent, const std::string& message) const {
  const absl::StatusOr<PeerName> peer = Find(agent);
  if (!peer.ok()) return Fail("a notification was not sent", peer.status());
  if (agent == agent_) {
    self_.inbox->Add(agent_, {message}, [] {});
    return abi::kSuccess;
  }
  const absl::Status sent = outbox_->Send(*peer, message, nullptr);
  return sent.ok() ? abi::kSuccess : Fail("a notification was not sent", sent);
}

abi::Status TrystEngine::Query(const abi::List<abi::Blob>& /*memory*/,
                               std::vector<std::optional<abi::Parameters>>& /*answers*/) const {
  return abi::kNotSupported;
}

abi::Status TrystEngine::EstimateCost(
    const abi::Operation& /*operation*/, const abi::Spans& /*mine*/, const abi::Spans& /*theirs*/,
    const std::string& /*agent*/, abi::RequestHandle* const& /*handle*/,
    std::chrono::microseconds& /*duration*/, std::chrono::microseconds& /*margin*/,
    abi::CostMethod& /*method*/, const abi::AgentOptions* /*options*/) const {
  return abi::kNotSupported;
}

}  // namespace tryst::nixl
