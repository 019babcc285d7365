#include "channel/compat/grpc_transport.h"

#include <algorithm>
#include <limits>

namespace tryst {

GrpcTransport::GrpcTransport(const TransportContext& context, const GrpcParts& parts,
                             GrpcChannelOptions options)
    : poller_(context.poller),
      parts_([&] {
        GrpcParts own = parts;
        if (context.place != 0) own.served = nullptr;
        return own;
      }()),
      options_([&] {
        options.trace = context.trace;
        return options;
      }()) {}

std::unique_ptr<Channel> GrpcTransport::MakeChannel(const std::string& peer, ChannelUser*) {
  return std::make_unique<GrpcChannel>(peer, parts_.peers, parts_.signer, parts_.events, poller_,
                                       options_);
}

// gRPC has no connection for each consumer; its trace shows which there are.
void GrpcTransport::View(const std::string& peer, std::vector<PathView>* views) const {
  if (parts_.served == nullptr || parts_.served_trace == nullptr) return;
  LiveOps live(std::numeric_limits<size_t>::max());
  parts_.served->ListOps(&live);
  const std::vector<LiveOp> ops = live.Take();
  for (const TraceTrack* track : parts_.served_trace->Tracks()) {
    if (track->role != TraceRole::kServe || track->path != name_) continue;
    if (!peer.empty() && track->peer != peer) continue;
    const auto of_it = std::count_if(ops.begin(), ops.end(),
                                     [&](const LiveOp& op) { return op.peer == track->peer; });
    PathView view;
    view.role = TraceRole::kServe;
    view.peer = track->peer;
    view.path = name_;
    view.in_use = true;
    view.health = PathHealth::kWorking;
    view.state = "in use";
    view.under_way = static_cast<size_t>(of_it);
    views->push_back(std::move(view));
  }
}

void GrpcTransport::ListOps(LiveOps* ops) const {
  if (parts_.served != nullptr) parts_.served->ListOps(ops);
}

void GrpcTransport::AddCounters(Counters* counters) const {
  if (parts_.served == nullptr) return;
  const FetchServer::Counts served = parts_.served->counts();
  counters->Count("grpc_requests", served.requests);
  counters->Count("grpc_repetitions", served.repetitions);
  counters->Count("grpc_tensors", served.tensors);
  counters->Count("grpc_bytes", served.bytes);
  counters->Count("grpc_parcels", served.parcels);
  counters->Count("grpc_refused", served.refused);
  counters->Count("grpc_dropped", served.dropped);
  counters->Gauge("grpc_waiting", served.waiting);
  counters->Gauge("grpc_kept_bytes", served.kept_bytes);
}

}  // namespace tryst
