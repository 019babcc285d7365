#include "server/peer_client.h"

#include <grpcpp/channel.h>

#include <utility>

#include "channel/signing/caller.h"
#include "server/security/why_unreachable.h"
#include "server/server_parts.h"

namespace tryst {
namespace {

class PeerClientImpl final : public PeerClient {
 public:
  explicit PeerClientImpl(const ServerParts& parts)
      : security_(parts.security, parts.config.cluster),
        unreachable_(parts.security, parts.config.cluster),
        members_(
            true,
            [this](const std::string& worker, const std::string& address) {
              return security_.Connect(worker, address);
            },
            [this](const std::string& worker, const std::string& address) {
              return unreachable_.Why(worker, address);
            }),
        signer_({parts.config.cluster, parts.worker, RandomIncarnation()}, security_.token(),
                UnixMs),
        calls_(&members_, &signer_) {
    for (const auto& [worker, address] : parts.cluster.Workers()) members_.Set(worker, address);
  }
  Membership* members() override { return &members_; }
  PeerCalls* calls() override { return &calls_; }

 private:
  const Security security_;
  UnreachablePeers unreachable_;
  Membership members_;
  CallSigner signer_;
  PeerCalls calls_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerClient>> PeerClient::Make(const ServerConfig& config) {
  ServerConfig own = config;
  if (own.job.empty()) own.job = "cli";
  own.open_cluster = true;
  own.listen = "127.0.0.1:0";  // Nobody listens on it.
  absl::StatusOr<ServerParts> parts = MakeServerParts(own, ProcessEnvironment());
  if (!parts.ok()) return parts.status();
  return std::make_unique<PeerClientImpl>(*parts);
}

}  // namespace tryst
