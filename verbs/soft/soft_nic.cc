#include "verbs/soft/soft_nic.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "verbs/soft/soft_completion_queue.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_landing.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

constexpr int kMaxSocketsPerQueuePair = 65;  // The first, and eight to each of eight addresses.
constexpr int kMostSocketsWithCrew = 7;
static_assert(2 * SoftLanding::kMostPlaces <= SoftBatch::kMaxPieces);

class SoftRegion final : public Region {
 public:
  SoftRegion(SoftContext* context, uint64_t address, uint64_t bytes, uint32_t access)
      : context_(context) {
    record_.address = address;
    record_.bytes = bytes;
    record_.access = access & ~uint32_t{kRelaxedOrdering};
    context_->regions.Add(&record_);
  }
  ~SoftRegion() override { context_->regions.Remove(&record_); }
  // A channel registers a region for each transfer, so their memory is reused. Before each object
  // lies its context, the only thing that is still known when it is deleted.
  static void* operator new(size_t bytes, SoftContext* context) {
    char* block = static_cast<char*>(context->region_blocks.Take(kFrontBytes + bytes));
    *reinterpret_cast<SoftContext**>(block) = context;
    return block + kFrontBytes;
  }
  static void operator delete(void* region) {
    char* block = static_cast<char*>(region) - kFrontBytes;
    (*reinterpret_cast<SoftContext**>(block))->region_blocks.Give(block);
  }
  static void operator delete(void* region, SoftContext*) { operator delete(region); }
  uint64_t address() const override { return record_.address; }
  uint64_t bytes() const override { return record_.bytes; }
  uint32_t local_key() const override { return record_.local_key; }
  uint32_t remote_key() const override { return record_.remote_key; }
  bool RenewRemoteKey() override {
    if (!context_->options.limits.renews_keys) return false;
    context_->regions.Renew(&record_);
    return true;
  }

 private:
  static constexpr size_t kFrontBytes = alignof(std::max_align_t);

  SoftContext* const context_;
  SoftRegionRecord record_;
};

absl::Status CheckOptions(const SoftNicOptions& options) {
  const auto listen = SocketAddress::ParseAll(options.listen_address);
  if (!listen.ok()) return listen.status();
  const bool wildcard = std::any_of(listen->begin(), listen->end(),
                                    [](const SocketAddress& one) { return one.is_wildcard(); });
  if (wildcard && options.advertised_host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.listen_address,
        " stands for every interface: set advertised_host to the address that peers connect to"));
  }
  if (listen->size() > 1 && !options.advertised_host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("peers cannot reach ", options.listen_address, " by one host, ",
                     options.advertised_host, ": name the addresses by which they are reached"));
  }
  const size_t most_flows = (kMaxSocketsPerQueuePair - 1) / std::max<size_t>(listen->size(), 1);
  if (options.flows < 1 || static_cast<size_t>(options.flows) > most_flows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a soft NIC cannot have ", options.flows, " flows to each address: it may have 1 to ",
        most_flows, " where it has ", listen->size(), " addresses"));
  }
  if (options.sockets_per_queue_pair < 1 ||
      options.sockets_per_queue_pair > kMaxSocketsPerQueuePair) {
    return absl::InvalidArgumentError(
        absl::StrCat("a queue pair cannot have ", options.sockets_per_queue_pair,
                     " sockets: it may have 1 to ", kMaxSocketsPerQueuePair));
  }
  if (options.pipes != nullptr && (options.tls || options.crew != nullptr)) {
    return absl::InvalidArgumentError(
        "a soft NIC over pipes has no TLS and no helpers: leave tls and crew unset");
  }
  if (options.max_pending_handshakes < 1 || options.limits.max_entries < 1 ||
      options.limits.max_entries > SoftLanding::kMostPlaces) {
    return absl::InvalidArgumentError(
        "a soft NIC must allow at least one connection that is being opened, and 1 to 64 pieces of "
        "memory per transfer");
  }
  return absl::OkStatus();
}

class SoftNicImpl final : public SoftNic {
 public:
  explicit SoftNicImpl(SoftNicOptions options) : context_(std::move(options)) {}

  absl::Status Open() {
    if (context_.events.fd() < 0) {
      return absl::ResourceExhaustedError(
          "the process has no file descriptor left for a NIC's events: raise the limit of open "
          "files (ulimit -n)");
    }
    if (!context_.options.tls) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<SoftTls>> tls = SoftTls::Create();
    if (tls.ok()) context_.tls = *std::move(tls);
    return tls.status();
  }
  std::string name() const override { return context_.options.name; }
  const NicLimits& limits() const override { return context_.options.limits; }
  std::vector<NicPort> Ports() const override {
    NicPort port;
    port.state = PortState::kActive;
    const bool pipes = context_.options.pipes != nullptr;
    port.address = pipes ? name() : context_.options.listen_address;
    port.description = pipes ? "pipes" : "stream sockets of this host";
    return {port};
  }

  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    const uint64_t begin = reinterpret_cast<uint64_t>(address);
    if (address == nullptr || bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() - begin) {
      return absl::InvalidArgumentError(
          "the memory to register is null, empty, or reaches beyond the end of the address space");
    }
    return std::unique_ptr<Region>(new (&context_) SoftRegion(&context_, begin, bytes, access));
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int, uint64_t, uint64_t, uint64_t,
                                                         uint32_t) override {
    return absl::UnimplementedError("the soft NIC cannot read or write GPU memory");
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    if (depth == 0 || depth > limits().max_completion_depth) {
      return absl::InvalidArgumentError(absl::StrCat("a completion queue cannot have ", depth,
                                                     " entries: it may have 1 to ",
                                                     limits().max_completion_depth));
    }
    auto queue = SoftCompletionQueue::Create(&context_, depth);
    if (!queue.ok()) return queue.status();
    return std::unique_ptr<CompletionQueue>(*std::move(queue));
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;

  absl::optional<NicEvent> NextEvent() override { return context_.events.Take(); }
  int event_fd() const override { return context_.events.fd(); }
  SoftNicCounters counters() const override {
    SoftNicCounters counters;
    counters.connections_accepted = context_.connections_accepted.load();
    counters.tokens_refused = context_.tokens_refused.load();
    counters.handshakes_timed_out = context_.handshakes_timed_out.load();
    counters.protocol_errors = context_.protocol_errors.load();
    return counters;
  }

 private:
  SoftContext context_;
};

absl::StatusOr<std::unique_ptr<QueuePair>> SoftNicImpl::CreateQueuePair(
    const QueuePairOptions& options) {
  const NicLimits& most = limits();
  if (options.completions == nullptr || options.port != 1 || options.send_depth == 0 ||
      options.receive_depth == 0 || options.send_depth > most.max_send_depth ||
      options.receive_depth > most.max_receive_depth || options.max_entries > most.max_entries ||
      options.max_inline_bytes > most.max_inline_bytes || options.ack_timeout > 31) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), " cannot make a queue pair on port ", options.port, " with ", options.send_depth,
        " sends, ", options.receive_depth, " receives, ", options.max_entries,
        " pieces of memory for each work and ", options.max_inline_bytes,
        " inline bytes: ask for no more than its limits(), and for one send and one receive at "
        "least"));
  }
  auto* const completions = static_cast<SoftCompletionQueue*>(options.completions);
  const absl::Status reserved = completions->Reserve(options.send_depth + options.receive_depth);
  if (!reserved.ok()) return reserved;
  uint32_t number = 0;
  while (number == 0) number = context_.next_queue_pair.fetch_add(1);
  QueuePairOptions granted = options;
  if (granted.max_entries == 0) granted.max_entries = 1;
  return std::unique_ptr<QueuePair>(new SoftQueuePair(&context_, completions, granted, number));
}

}  // namespace

void SoftNicOptions::UseCrew(std::shared_ptr<Crew> helpers) {
  crew = std::move(helpers);
  sockets_per_queue_pair =
      std::min(static_cast<int>(crew->most_threads()) + 1, kMostSocketsWithCrew);
}

NicLimits DefaultSoftNicLimits() {
  NicLimits limits;
  limits.max_message_bytes = uint64_t{1} << 30;
  limits.max_entries = 32;
  limits.max_inline_bytes = 1024;
  limits.max_send_depth = 16384;
  limits.max_receive_depth = 16384;
  limits.max_completion_depth = 1 << 22;
  limits.max_reads_in_flight = 16;
  limits.renews_keys = true;
  limits.pins_memory = false;
  return limits;
}

absl::StatusOr<std::unique_ptr<SoftNic>> OpenSoftNic(SoftNicOptions options) {
  const absl::Status checked = CheckOptions(options);
  if (!checked.ok()) return checked;
  const int networks = static_cast<int>(SocketAddress::ParseAll(options.listen_address)->size());
  if (const int flows = networks * options.flows; flows > 1) {
    // The first socket, which is none of them, goes over any network.
    options.sockets_per_queue_pair = std::max(options.sockets_per_queue_pair, flows + 1);
  }
  auto nic = std::make_unique<SoftNicImpl>(std::move(options));
  const absl::Status opened = nic->Open();
  if (!opened.ok()) return opened;
  return std::unique_ptr<SoftNic>(std::move(nic));
}

}  // namespace tryst
