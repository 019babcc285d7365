#include "plugins/nixl/target.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace tryst::nixl {
namespace {

constexpr size_t kMaxPeers = 4096;
constexpr size_t kMaxEnded = 4096;  // As many as a peer may have out.
constexpr size_t kMaxStops = 16;    // One WRITE has so many; who is refused asks again.

}  // namespace

void Target::Hear(Worker* worker, const std::string& verb, const PeerName& asker,
                  const std::string& record, Ask ask, std::shared_ptr<void> taken) {
  const std::string& peer = asker.worker;
  if (verb == "put") {
    absl::StatusOr<Put> put = ReadPut(record);
    if (!put.ok()) return ask.End(put.status());
    return Land(worker, asker, *std::move(put), std::move(ask), std::move(taken));
  }
  if (verb == "stop") {
    const absl::StatusOr<uint64_t> id = ReadNumber(record);
    if (!id.ok()) return ask.End(id.status());
    return Stop(peer, *id, std::move(ask));
  }
  if (verb == "note") {
    absl::StatusOr<Notes> notes = ReadNotes(record);
    if (!notes.ok()) return ask.End(notes.status());
    return TakeNotes(peer, *std::move(notes), std::move(ask), std::move(taken));
  }
  if (verb == "here") return ask.End(absl::OkStatus());
  ask.End(absl::UnimplementedError(absl::StrCat(
      "nothing here is called ", verb, ": both agents need the plug-in of one release of Tryst")));
}

Target::Peer& Target::PeerAt(const std::string& name) {
  const auto [found, is_new] = peers_.try_emplace(name);
  if (!is_new) return found->second;
  peer_order_.push_back(name);
  // Those that are busy stay; the questions that may be held bound them.
  for (size_t i = peer_order_.size(); peers_.size() > kMaxPeers && i-- > 1;) {
    const std::string oldest = std::move(peer_order_.front());
    peer_order_.pop_front();
    if (peers_[oldest].landing.empty()) {
      peers_.erase(oldest);
    } else {
      peer_order_.push_back(oldest);
    }
  }
  return found->second;
}

void Target::NoteEnd(Peer* peer, uint64_t id, absl::Status status) {
  if (!peer->ended.emplace(id, std::move(status)).second) return;
  peer->order.push_back(id);
  if (peer->order.size() <= kMaxEnded) return;
  peer->ended.erase(peer->order.front());
  peer->order.pop_front();
}

void Target::Land(Worker* worker, const PeerName& asker, Put put, Ask ask,
                  std::shared_ptr<void> taken) {
  const auto landing = std::make_shared<Landing>();
  landing->peer = asker.worker;
  landing->id = put.id;
  landing->agent = std::move(put.agent);
  landing->has_note = put.has_note;
  landing->note = std::move(put.note);
  landing->taken = std::move(taken);
  absl::StatusOr<Group> group = MakeGroup();
  if (!group.ok()) return ask.End(group.status());
  landing->group = *std::move(group);
  std::optional<absl::Status> end;
  {
    MutexLock lock(&mu_);
    Peer& peer = PeerAt(asker.worker);
    const auto ended = peer.ended.find(put.id);
    if (ended != peer.ended.end()) {
      end = ended->second;
    } else {
      const auto [found, is_new] = peer.landing.emplace(put.id, landing);
      found->second->asks.push_back(std::move(ask));
      if (!is_new) return;
    }
  }
  if (end.has_value()) return ask.End(*end);
  Start(worker, asker, put, landing);
}

void Target::Start(Worker* worker, const PeerName& asker, const Put& put,
                   const LandingRef& landing) {
  absl::Status status;
  for (const PutPart& part : put.parts) {
    status = StartPart(worker, asker, part, landing);
    if (!status.ok()) break;
  }
  EndPart(landing, status);
}

absl::Status Target::StartPart(Worker* worker, const PeerName& asker, const PutPart& part,
                               const LandingRef& landing) {
  const std::shared_ptr<OwnMemory> memory = memories_->Find(part.target);
  if (memory == nullptr || !memory->Enter(landing->group)) {
    return absl::NotFoundError("the target has deregistered the memory, or never had it");
  }
  std::vector<tryst_span> lands, comes;
  lands.reserve(part.spans.size());
  comes.reserve(part.spans.size());
  for (const PutSpan& span : part.spans) {
    lands.push_back({span.lands_at, span.bytes});
    comes.push_back({span.comes_from, span.bytes});
  }
  const tryst_selection landing_at = {TRYST_SELECT_SPANS, 0, 0, lands.data(), lands.size()};
  const tryst_selection wanted = {TRYST_SELECT_SPANS, 0, 0, comes.data(), comes.size()};
  const std::string key =
      worker->Key(asker, absl::StrCat("|region|", RegionName(part.source), "|"));
  {
    MutexLock lock(&mu_);
    ++landing->left;
  }
  const absl::Status started = worker->StartOp(
      [&](tryst_queue* queue, void* tag, tryst_op** op) {
        return tryst_gather_start(worker->server(), kStep, key.c_str(), &wanted, memory->tensor(),
                                  &landing_at, nullptr, -1, landing->group.get(), queue, tag, op);
      },
      [this, memory, landing](tryst_op* op) {
        memory->Leave(landing->group);
        EndPart(landing, EndOf(op));
      });
  if (started.ok()) return started;
  memory->Leave(landing->group);
  MutexLock lock(&mu_);
  --landing->left;
  return started;
}

void Target::EndPart(const LandingRef& landing, const absl::Status& status) {
  absl::Status end;
  std::vector<Ask> asks, stops;
  bool last = false, first_failure = false;
  {
    MutexLock lock(&mu_);
    first_failure = landing->status.ok() && !status.ok();
    if (first_failure) landing->status = status;
    last = --landing->left == 0;
    if (last) {
      end = landing->status;
      asks = std::move(landing->asks);
      stops = std::move(landing->stops);
      Peer& peer = PeerAt(landing->peer);
      peer.landing.erase(landing->id);
      NoteEnd(&peer, landing->id, end);
    }
  }
  if (!last) {
    if (first_failure) tryst_group_cancel(landing->group.get());
    return;
  }
  for (Ask& stop : stops) stop.End(absl::OkStatus());
  const auto told = std::make_shared<std::vector<Ask>>(std::move(asks));
  const auto tell = [told, end, taken = landing->taken] {
    for (Ask& ask : *told) ask.End(end);
  };
  if (!end.ok() || !landing->has_note) return tell();
  inbox_->Add(landing->agent, {std::move(landing->note)}, tell);
}

void Target::Stop(const std::string& peer, uint64_t id, Ask ask) {
  LandingRef landing;
  absl::Status end;
  {
    MutexLock lock(&mu_);
    Peer& state = PeerAt(peer);
    const auto found = state.landing.find(id);
    if (found == state.landing.end()) {  // If it comes yet, it ends at once.
      NoteEnd(&state, id, absl::CancelledError("the WRITE was released before it began"));
    } else if (found->second->stops.size() == kMaxStops) {
      end = absl::ResourceExhaustedError("it was asked often enough to stop the WRITE");
    } else {
      landing = found->second;
      landing->stops.push_back(std::move(ask));
    }
  }
  if (landing == nullptr) return ask.End(end);
  tryst_group_cancel(landing->group.get());
}

void Target::TakeNotes(const std::string& peer, Notes notes, Ask ask, std::shared_ptr<void> taken) {
  bool is_new = false;
  {
    MutexLock lock(&mu_);
    uint64_t& last = PeerAt(peer).last_notes;
    is_new = notes.number > last;
    if (is_new) last = notes.number;
  }
  if (!is_new) return ask.End(absl::OkStatus());
  const auto told = std::make_shared<Ask>(std::move(ask));
  inbox_->Add(std::move(notes.agent), std::move(notes.notes),
              [told, taken] { told->End(absl::OkStatus()); });
}

}  // namespace tryst::nixl
