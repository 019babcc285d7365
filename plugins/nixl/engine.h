#ifndef TRYST_PLUGINS_NIXL_ENGINE_H_
#define TRYST_PLUGINS_NIXL_ENGINE_H_

#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/memory.h"
#include "plugins/nixl/notes.h"
#include "plugins/nixl/target.h"
#include "plugins/nixl/transfer.h"
#include "plugins/nixl/worker.h"

namespace tryst::nixl {

// The back end "TRYST" of one agent (docs/KV.md). Each failure is logged with what to do, once.
class TrystEngine final : public abi::Engine {
 public:
  explicit TrystEngine(const abi::EngineOptions& options);
  ~TrystEngine() override;

  // The settings that get_backend_options() shows. Others of docs/CONFIG.md are taken, too.
  static abi::Parameters Options();
  // What a server is started with. kInvalidArgument: a name that cannot be a setting's.
  static absl::StatusOr<std::vector<std::string>> SettingsOf(const abi::Parameters& parameters);

  bool SupportsRemote() const override { return true; }
  bool SupportsLocal() const override { return true; }
  bool SupportsNotifications() const override { return true; }
  abi::Memories SupportedMemories() const override { return {abi::kDram}; }
  abi::Status Register(const abi::Blob& memory, const abi::Memory& kind,
                       abi::MemoryHandle*& handle) override;
  abi::Status Deregister(abi::MemoryHandle* handle) override;
  abi::Status Connect(const std::string& agent) override;
  abi::Status Disconnect(const std::string& agent) override;
  abi::Status Unload(abi::MemoryHandle* handle) override;
  abi::Status Prepare(const abi::Operation& operation, const abi::Spans& mine,
                      const abi::Spans& theirs, const std::string& agent,
                      abi::RequestHandle*& handle, const abi::PostOptions* options) const override;
  abi::Status Post(const abi::Operation& operation, const abi::Spans& mine,
                   const abi::Spans& theirs, const std::string& agent, abi::RequestHandle*& handle,
                   const abi::PostOptions* options) const override;
  abi::Status Check(abi::RequestHandle* handle) const override;
  abi::Status Release(abi::RequestHandle* handle) const override;
  abi::Status PrepareRemoteView(const abi::List<abi::RemoteSpan>& memory, void*& view,
                                const abi::PostOptions* options) const override;
  abi::Status PrepareView(const abi::Spans& memory, void*& view,
                          const abi::PostOptions* options) const override;
  void ReleaseView(void* view) const override;
  abi::Status PublicData(const abi::MemoryHandle* handle, std::string& text) const override;
  abi::Status ConnectionInfo(std::string& text) const override;
  abi::Status LoadConnectionInfo(const std::string& agent, const std::string& text) override;
  abi::Status LoadRemote(const abi::Blob& memory, const abi::Memory& kind, const std::string& agent,
                         abi::MemoryHandle*& handle) override;
  abi::Status LoadOwn(abi::MemoryHandle* handle, abi::MemoryHandle*& same) override;
  abi::Status TakeNotifications(abi::Notifications& taken) override;
  abi::Status Notify(const std::string& agent, const std::string& message) const override;
  abi::Status Query(const abi::List<abi::Blob>& memory,
                    std::vector<std::optional<abi::Parameters>>& answers) const override;
  abi::Status EstimateCost(const abi::Operation& operation, const abi::Spans& mine,
                           const abi::Spans& theirs, const std::string& agent,
                           abi::RequestHandle* const& handle, std::chrono::microseconds& duration,
                           std::chrono::microseconds& margin, abi::CostMethod& method,
                           const abi::AgentOptions* options) const override;

 private:
  absl::StatusOr<PeerName> Find(const std::string& agent) const;
  // Whether the same request was asked about a moment ago, and no other since.
  bool AskedAgain(const Transfer* transfer) const;

  const pid_t process_ = getpid();
  Memories memories_;
  Inbox inbox_;
  Target target_{&memories_, &inbox_};
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Outbox> outbox_;
  Agent self_;
  mutable Mutex mu_;
  std::map<std::string, PeerName> peers_ ABSL_GUARDED_BY(mu_);  // By agent.
  // What was checked last, and when.
  mutable std::atomic<const Transfer*> last_checked_{nullptr};
  mutable std::atomic<int64_t> last_checked_ns_{0};
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_ENGINE_H_
