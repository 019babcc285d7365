#ifndef TRYST_CHANNEL_COMPAT_GRPC_TRANSPORT_H_
#define TRYST_CHANNEL_COMPAT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "channel/compat/fetch_server.h"
#include "channel/compat/grpc_channel.h"
#include "channel/transport.h"

namespace tryst {

// What GrpcTransport uses; all of it outlives it.
struct GrpcParts {
  PeerDirectory* peers = nullptr;
  CallSigner* signer = nullptr;
  EventThread* events = nullptr;
  FetchServer* served = nullptr;        // Null: peers cannot fetch from us by gRPC.
  const Trace* served_trace = nullptr;  // The trace of `served`; may be null.
};

// gRPC, the path that always works. It needs no hello: fetches are calls of the service
// that also answers hellos, so the owner of that service starts and ends `served`.
class GrpcTransport final : public Transport {
 public:
  GrpcTransport(const TransportContext& context, const GrpcParts& parts,
                GrpcChannelOptions options);

  const std::string& name() const override { return name_; }
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, ChannelUser* user) override;
  void View(const std::string& peer, std::vector<PathView>* views) const override;
  void ListOps(LiveOps* ops) const override;
  void AddCounters(Counters* counters) const override;

 private:
  const std::string name_ = "grpc";
  Poller* const poller_;
  const GrpcParts parts_;  // `served` is set on the first poller only.
  const GrpcChannelOptions options_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_TRANSPORT_H_
