#include "channel/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

ShmTransport::ShmTransport(const TransportContext& context, std::shared_ptr<Arena> arena,
                           ShmOptions options)
    : SessionTransport(context, options), arena_(std::move(arena)), options_(options) {}

absl::Status ShmTransport::Open() {
  auto hub = ShmHub::Create(context_.poller, arena_,
                            options_.crew != nullptr ? options_.crew : std::make_shared<Crew>(0));
  if (!hub.ok()) return hub.status();
  hub_ = *std::move(hub);
  hub_->Attach();
  ServeKind serve;
  serve.path = name_;
  serve.make = [this](ServeSession* session) {
    ShmServeLink::Bounds bounds;
    bounds.may_open = [this, consumer = session->consumer()] { return MayOpen(consumer); };
    bounds.on_kept = [this, consumer = session->consumer()](
                         const std::shared_ptr<const GivenReferences>& given) {
      kept_.push_back({consumer, given});
    };
    return std::make_unique<ShmServeLink>(session, hub_.get(), options_, std::move(bounds));
  };
  SetKinds(ShmFetchLink::Kind(hub_.get(), options_), std::move(serve));
  return absl::OkStatus();
}

ShmTransport::~ShmTransport() {
  DropSessions();
  arena_->Trim();  // Frees what it has kept for consumers that are gone by now.
  if (hub_ != nullptr) hub_->Detach();
}

absl::StatusOr<absl::optional<std::string>> ShmTransport::FarewellIn(const Hello& hello) const {
  const auto offer = shm_wire::DecodeOffer(hello.parameters);
  if (!offer.ok()) return offer.status();
  if (!offer->farewell.empty()) return absl::make_optional(offer->farewell);
  HostIdentity theirs;
  theirs.boot_id = offer->boot_id;
  theirs.network_space = offer->network_space;
  const absl::Status same = CheckSameHost(hub_->host(), theirs);
  if (!same.ok()) return same;
  return absl::optional<std::string>();
}

absl::Status ShmTransport::MayOpen(const std::string& consumer) {
  if (kept_.size() < std::min<size_t>(kMostKept, options_.max_consumers)) return absl::OkStatus();
  arena_->Trim();  // Looks which of them are over.
  const size_t kept = KeptFor(consumer);
  if (kept < kMostKept && kept_.size() < options_.max_consumers) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(kept, " ended connections with ", consumer, ", and ", kept_.size(),
                   " with all consumers, are still kept, because their programs hold tensors that "
                   "came over them: release tensors that were received in shared memory, or end "
                   "the process that holds them"));
}

void ShmTransport::Maintain() {
  SessionTransport::Maintain();
  if (context_.place == 0) arena_->Trim();
}

size_t ShmTransport::KeptFor(const std::string& consumer) {
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                             [](const KeptLink& link) { return link.given.expired(); }),
              kept_.end());
  return static_cast<size_t>(std::count_if(
      kept_.begin(), kept_.end(), [&](const KeptLink& link) { return link.consumer == consumer; }));
}

void ShmTransport::ExplainServing(const std::string& consumer, std::string* out) const {
  SessionTransport::ExplainServing(consumer, out);
  if (consumer.empty() && context_.place == 0) absl::StrAppend(out, arena_->Explain(), "\n");
}

void ShmTransport::AddCounters(Counters* counters) const {
  const FetchCounters fetched = fetch_counters();
  counters->Count("shm_fetches", fetched.fetches);
  counters->Count("shm_fetched_bytes", fetched.bytes);
  counters->Count("shm_runs", fetched.runs);
  counters->Count("shm_in_runs", fetched.in_runs);
  counters->Count("shm_by_reference", fetched.by_reference);
  counters->Count("shm_in_cells", fetched.in_message);
  counters->Count("shm_copied", fetched.copied);
  counters->Count("shm_pulled", fetched.pulled);
  counters->Count("shm_in_parts", fetched.in_parts);
  counters->Count("shm_links", fetched.links);
  counters->Count("shm_breaks", fetched.breaks);
  counters->Count("shm_replays", fetched.replays);
  counters->Count("shm_digests_wrong", fetched.digests_wrong);
  if (context_.place != 0) return;
  const ArenaCounters arena = arena_->counters();
  counters->Gauge("shm_used_bytes", arena.used_bytes);
  counters->Gauge("shm_segment_bytes", arena.segment_bytes);
  counters->Count("shm_refusals", arena.refusals);
}

}  // namespace tryst
