#include "channel/rdma/rdma_transport.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "channel/rdma/fetch_link.h"
#include "channel/rdma/serve_link.h"

namespace tryst {

RdmaTransport::RdmaTransport(const TransportContext& context, std::shared_ptr<SharedNic> nic,
                             RdmaOptions options)
    : SessionTransport(context, options), nic_(std::move(nic)), options_(options) {
  options_.link.digests &= nic_->path().digests;
  if (nic_->path().one_queue_pair) options_.link.queue_pairs = 1;
  options_.link.ack_timeout = std::max(options_.link.ack_timeout, nic_->path().ack_timeout);
}

RdmaTransport::~RdmaTransport() {
  DropSessions();
  nic_->Remove(this);
  if (hub_ != nullptr) hub_->Detach();
}

absl::Status RdmaTransport::Open() {
  Nic* nic = nic_->nic();
  const uint32_t depth = std::min(options_.completion_depth, nic->limits().max_completion_depth);
  auto hub = QueueHub::Create(nic, context_.poller, depth);
  if (!hub.ok()) return hub.status();
  hub_ = *std::move(hub);
  if (nic_->path().polled_once_used) {
    hub_->AttachOnceUsed();
  } else {
    hub_->Attach();
  }
  SetKinds(RdmaFetchLink::Kind(name(), hub_.get(), nic_->landings(), options_),
           RdmaServeLink::Kind(name(), hub_.get(), options_));
  return nic_->Add(this);
}

// ---- Room to land in ----

void RdmaTransport::RoomTask::Post() {
  if (!posted.exchange(true)) transport->context_.poller->Post(this);
}

void RdmaTransport::RoomTask::RunOnPoller() {
  posted.store(false);
  (transport->*run)();
}

void RdmaTransport::OnRoom() {
  // Takes one tensor for each peer in turn, beginning where the last round ended, so that no peer
  // takes all the room and none is always last.
  // No session comes or goes meanwhile.
  const std::vector<FetchSession*>& all = fetching();
  const size_t count = all.size();
  for (size_t idle = 0; idle < count;) {
    const bool took = LinkOf(all[room_first_ % count])->TakeRoom();
    idle = took ? 0 : idle + 1;
    room_first_ = (room_first_ + 1) % count;
  }
  // Real fetches outrank standing receives, of any peer.
  if (std::none_of(all.begin(), all.end(),
                   [](const FetchSession* session) { return LinkOf(session)->waits_for_room(); })) {
    return;
  }
  DropStanding();
  nic_->WantRoom(this);
}

void RdmaTransport::DropStanding() {
  for (const FetchSession* session : fetching()) LinkOf(session)->DropOneStanding();
}

// ---- Events of the NIC ----

void RdmaTransport::TellEvent(const NicEvent& event) {
  context_.poller->PostFn([this, event] { OnNicEvent(event); });
}

void RdmaTransport::OnNicEvent(const NicEvent& event) {
  if (closed()) return;
  hub_->OnEvent(event);
  if (event.kind != NicEvent::Kind::kPortUp && event.kind != NicEvent::Kind::kAddressChanged) {
    return;
  }
  if (context_.network_changed) context_.network_changed();
}

void RdmaTransport::Maintain() {
  OnRoom();  // A registration that failed may work now, and no other event would tell.
  nic_->PollEvents();
  SessionTransport::Maintain();
}

// ---- Serving ----

absl::StatusOr<absl::optional<std::string>> RdmaTransport::FarewellIn(const Hello& hello) const {
  if (hello.queue_pairs.empty()) return absl::make_optional(hello.parameters);
  return absl::optional<std::string>();
}

void RdmaTransport::Close(const absl::Status& why) {
  nic_->Remove(this);  // A task that it has posted runs before Drained() can become true.
  SessionTransport::Close(why);
}

// ---- Explaining ----

void RdmaTransport::AddCounters(Counters* counters) const {
  const FetchCounters fetched = fetch_counters();
  counters->Count("rdma_fetches", fetched.fetches);
  counters->Count("rdma_fetched_bytes", fetched.bytes);
  counters->Count("rdma_runs", fetched.runs);
  counters->Count("rdma_in_runs", fetched.in_runs);
  counters->Count("rdma_epochs", fetched.links);
  counters->Count("rdma_breaks", fetched.breaks);
  counters->Count("rdma_replays", fetched.replays);
  counters->Count("rdma_digests_wrong", fetched.digests_wrong);
  const SourceRegionsCounters sources = hub_->sources()->counters();
  counters->Count("rdma_sources_found", sources.found);
  counters->Count("rdma_source_registrations", sources.kept_ever + sources.single_use);
  counters->Gauge("rdma_sources_kept_bytes", sources.kept_bytes);
  if (context_.place != 0) return;
  counters->Gauge("pinned_bytes", nic_->landings()->pinned_bytes());
  counters->Gauge("pinned_bytes_most", nic_->landings()->pinned_bytes_most());
}

const LandingPool* RdmaTransport::AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const {
  for (const FetchSession* session : fetching()) {
    LinkOf(session)->AddLent(lent_bytes, waiting_bytes);
  }
  return nic_->landings();
}

}  // namespace tryst
