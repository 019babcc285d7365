#include "server/data_plane/data_plane.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_transport.h"
#include "channel/transports.h"
#include "server/config/pollers.h"
#include "server/data_plane/open_nics.h"
#include "server/security/loopback.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

// Streams of gRPC are slower than sockets, and another thread carries them.
constexpr absl::Duration kHandshake = absl::Seconds(5);
constexpr uint8_t kAckTimeout = 16;
constexpr absl::Duration kAckDelay = absl::Milliseconds(2);

// How many of the max_peers peers one poller may get. A hash of their names spreads them evenly
// only on average, hence the margin.
uint32_t PeersOfOne(const ServerConfig& config, size_t pollers) {
  const uint64_t most = static_cast<uint64_t>(config.max_peers);
  return static_cast<uint32_t>(std::min(most, (2 * most + pollers - 1) / pollers));
}

// How many completions one poller's links can have waiting, as a sum over its peers. Each queue
// pair may have our sends, one part of each slot's tensor and a run of receives, besides the peer's
// messages and ack.
uint32_t CompletionDepth(uint32_t peers, const LinkOptions& link) {
  const uint64_t of_link =
      uint64_t{link.queue_pairs} * (link.send_depth + link.slots + kReceivesInARun) +
      link.ring_slots + 1;
  const uint64_t sum = 2 * uint64_t{peers} * of_link;
  return static_cast<uint32_t>(std::min<uint64_t>(sum, UINT32_MAX));
}

// The options of the transports as the settings change them.
TransportsOptions TransportsFrom(const ServerParts& server, const LinkOptions& link,
                                 size_t pollers) {
  const ServerConfig& config = server.config;
  const uint32_t peers = PeersOfOne(config, pollers);
  TransportsOptions options = server.inner.transports;
  options.self = server.worker;
  options.max_tensor_bytes = config.max_tensor_bytes;
  options.more = server.transports;

  options.link = link;
  options.eager_bytes = link.message_bytes;  // What fits in a message travels inside it.
  options.completion_depth = CompletionDepth(peers, link);
  options.max_consumers = peers;
  options.landing_bytes = config.landing_bytes;
  options.retain_ms = absl::ToInt64Milliseconds(KeepFor(config));
  options.patience_ms = absl::ToInt64Milliseconds(config.patience);

  options.shm.stage_bytes = config.shm_bytes / 2;
  options.shm.apart = !config.allow.empty();
  static_cast<SessionOptions&>(options.shm) = options;
  return options;
}

}  // namespace

DataPlane::DataPlane(Parts parts) : parts_(std::move(parts)) {}

DataPlane::~DataPlane() {
  EndServing();
  devices_.reset();
}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Open(Parts parts) {
  std::unique_ptr<DataPlane> plane(new DataPlane(std::move(parts)));
  const absl::Status opened = plane->Open();
  if (!opened.ok()) return opened;
  return plane;
}

absl::Status DataPlane::Open() {
  const ServerConfig& config = parts_.server->config;
  const ServerParts& server = *parts_.server;
  const auto crew = std::make_shared<Crew>(HelperCount(UsableCpus()));
  absl::StatusOr<std::vector<NicPath>> nics =
      server.protocol->open_nics(config, {HostOf(server.listen), HostOf(server.advertise),
                                          server.environment, crew, server.security.token});
  if (!nics.ok()) return nics.status();
  absl::StatusOr<LinkOptions> link =
      LinkFrom(server.inner.transports.link, config, server.environment);
  if (!link.ok()) return link.status();
  const size_t pollers = parts_.pollers.size();
  std::vector<Trace*> traces;
  TraceOptions trace = server.inner.trace;
  trace.sample_every = static_cast<uint32_t>(config.trace_sample_every);
  trace.records = (trace.records + pollers - 1) / pollers;
  for (size_t i = 0; i < pollers; ++i) {
    poller_traces_.push_back(std::make_unique<Trace>(trace));
    traces.push_back(poller_traces_.back().get());
  }
  trace.records = server.inner.trace.records;
  trace.name = "other grpc";
  calls_trace_ = std::make_unique<Trace>(trace);

  TransportsOptions options = TransportsFrom(server, *link, pollers);
  options.incarnation = parts_.incarnation;
  options.seed = parts_.incarnation;
  if (UsesShm(config)) {
    ArenaOptions arena;
    arena.cap_bytes = config.shm_bytes;
    arena.seed = parts_.incarnation;
    arena_ = Arena::Make(arena);
    options.shm_arena = arena_;
    options.shm.crew = crew;
  }
  const absl::Status devices = OpenDevices(&*nics);
  if (!devices.ok()) return devices;
  const absl::Status streams = OpenStreams(&*nics);
  if (!streams.ok()) return streams;
  for (size_t i = 1; i < nics->size(); ++i) (*nics)[i].landing_divisor = kLandingPartOfOthers;
  MakeCalls();
  GrpcParts grpc{parts_.members, parts_.signer, parts_.events, calls_.get(), calls_trace_.get()};
  GrpcChannelOptions channel = server.inner.grpc;
  channel.max_tensor_bytes = config.max_tensor_bytes;
  channel.patience = config.patience;
  channel.answer_within = KeepaliveFor(config.patience).answer_within;
  channel.digests = DigestsInCalls();
  channel.seals = SealsCalls();
  pools_ = MakeChannelPools(
      parts_.pollers, traces, parts_.bootstrap, source(), *std::move(nics),
      [grpc, channel](const TransportContext& context) {
        return std::make_unique<GrpcTransport>(context, grpc, channel);
      },
      options);
  host_fetcher_ = std::make_unique<HostFetcher>(pools_.get());
  if (devices_ != nullptr) devices_->proxy()->SetChannels(pools_.get());
  return pools_->Open();
}

// A soft NIC whose bytes travel in streams of gRPC: for peers that nothing else reaches.
absl::Status DataPlane::OpenStreams(std::vector<NicPath>* nics) {
  if (!UsesStreams(parts_.server->config)) return absl::OkStatus();
  GrpcPipes::Parts parts;
  parts.peers = parts_.members;
  parts.signer = parts_.signer;
  parts.events = parts_.events;
  parts.authorize = [authorize = parts_.authorize](const grpc::ServerContextBase& context,
                                                   absl::string_view request) {
    return authorize(context, kConverseMethod, request);
  };
  parts.heard = parts_.heard;
  parts.seals = SealsCalls();
  pipes_ = std::make_shared<GrpcPipes>(std::move(parts));
  SoftNicOptions options;
  options.name = "grpc";
  options.pipes = pipes_;
  if (SealsCalls()) options.secret = parts_.signer->token();
  options.handshake_timeout = kHandshake;
  options.ack_delay = kAckDelay;
  absl::StatusOr<std::unique_ptr<SoftNic>> nic = OpenSoftNic(std::move(options));
  if (!nic.ok()) return nic.status();
  NicPath path;
  // An end that seals and one that does not have no path in common.
  path.path = SealsCalls() ? "grpc/sealed" : "grpc/stream";
  path.nic = *std::move(nic);
  path.digests = DigestsInCalls();
  path.polled_once_used = true;
  path.ack_timeout = kAckTimeout;
  nics->push_back(std::move(path));
  return absl::OkStatus();
}

bool DataPlane::DigestsInCalls() const {
  return !parts_.has_tls && !SealsCalls() && !IsLoopback(parts_.server->listen);
}

// Without certificates the token encrypts and proves what gRPC carries.
bool DataPlane::SealsCalls() const {
  return Encrypts(parts_.server->config) && !parts_.signer->token().empty();
}

// Call it before anything uses the NICs: it replaces those that can reach devices.
absl::Status DataPlane::OpenDevices(std::vector<NicPath>* nics) {
  const ServerParts& server = *parts_.server;
  if (!ServerDevices::Wanted(server.config, server.gpus)) {
    DeviceSourceOptions options = server.inner.devices.source;
    options.seed = parts_.incarnation;
    source_without_gpus_ = std::make_unique<DeviceSource>(parts_.pollers[0], parts_.source,
                                                          std::vector<DeviceEngine*>(), options);
    return absl::OkStatus();
  }
  ServerDevices::Parts parts;
  parts.config = &server.config;
  parts.gpus = server.gpus;
  parts.poller = parts_.pollers[0];  // A server with GPUs has exactly one poller.
  parts.source = parts_.source;
  parts.arena = arena_;
  parts.seed = parts_.incarnation;
  parts.paths = nics;
  parts.options = server.inner.devices;
  auto devices = ServerDevices::Open(parts);
  if (devices.ok()) devices_ = *std::move(devices);
  return devices.status();
}

TensorSource* DataPlane::source() {
  return devices_ == nullptr ? static_cast<TensorSource*>(source_without_gpus_.get())
                             : devices_->proxy()->source();
}

TensorFetcher* DataPlane::fetcher() {
  return devices_ == nullptr ? static_cast<TensorFetcher*>(host_fetcher_.get())
                             : devices_->proxy()->fetcher();
}

void DataPlane::MakeCalls() {
  const ServerConfig& config = parts_.server->config;
  FetchServerOptions options;
  options.keep_for = KeepFor(config);
  options.max_kept_bytes = config.max_kept_bytes;
  options.trace = calls_trace_.get();
  options.digests = DigestsInCalls();
  options.token = parts_.signer->token();
  options.seals = SealsCalls();
  calls_ = std::make_unique<FetchServer>(
      source(), parts_.alarms, parts_.incarnation,
      [authorize = parts_.authorize](const grpc::ServerContextBase& context,
                                     absl::string_view request) {
        return authorize(context, kFetchMethod, request);
      },
      [guard = parts_.source](const Caller& caller, const TensorKey& key) {
        return guard->allow().Check(caller.worker, key);
      },
      options);
}

std::vector<const Trace*> DataPlane::traces() const {
  std::vector<const Trace*> traces;
  for (const auto& trace : poller_traces_) traces.push_back(trace.get());
  traces.push_back(calls_trace_.get());
  return traces;
}

std::vector<int> DataPlane::device_ordinals() const {
  return devices_ == nullptr ? std::vector<int>() : devices_->ordinals();
}

DeviceEngine* DataPlane::gpu(int ordinal) const {
  return devices_ == nullptr ? nullptr : devices_->proxy()->engine(ordinal);
}

std::string DataPlane::ExplainDevices() const {
  return devices_ == nullptr ? "" : devices_->Explain();
}

void DataPlane::AddDeviceStats(std::map<std::string, int64_t>* stats) const {
  if (devices_ != nullptr) devices_->AddStats(stats);
}

size_t DataPlane::EndLending() { return devices_ == nullptr ? 0 : devices_->proxy()->EndLending(); }

size_t DataPlane::copying() const {
  return devices_ == nullptr ? source_without_gpus_->copying() + host_fetcher_->copying()
                             : devices_->proxy()->copying();
}

void DataPlane::AwaitCopies(std::chrono::steady_clock::time_point until) const {
  while (copying() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

size_t DataPlane::AwaitSends(std::chrono::steady_clock::time_point until) {
  for (;;) {
    // First, because what a copy brings goes on its way before the copy has ended.
    const size_t copies = copying();
    const size_t coming = copies + pools_->Coming();
    if (coming == 0 || std::chrono::steady_clock::now() >= until) return coming;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

absl::Status DataPlane::Stop(std::chrono::steady_clock::time_point until) {
  const auto left = [until] {
    return std::max(absl::FromChrono(until - std::chrono::steady_clock::now()),
                    absl::Milliseconds(100));
  };
  AwaitCopies(until);  // Whoever wanted what they bring is told by the channels.
  absl::Status drained = pools_->Stop(absl::UnavailableError("this worker has stopped"), left());
  AwaitCopies(until);  // What had come meanwhile is copied, too.
  if (drained.ok() && devices_ != nullptr) drained = devices_->proxy()->Stop(left());
  if (drained.ok() && devices_ == nullptr) {
    parts_.pollers[0]->RunAndWait([this] { source_without_gpus_->Close(); });
  }
  if (drained.ok() && copying() > 0) {
    drained = absl::DeadlineExceededError("a GPU still copies tensors of or for other workers");
  }
  return drained;
}

}  // namespace tryst
