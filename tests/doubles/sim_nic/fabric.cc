#include "tests/doubles/sim_nic/fabric.h"

#include <algorithm>

#include "base/log.h"

namespace tryst {

uint8_t* SimPacket::Payload(uint32_t wanted) {
  if (payload_room < wanted) {
    payload = std::make_unique<uint8_t[]>(wanted);
    payload_room = wanted;
  }
  return payload.get();
}

Fabric::Fabric(EventQueue* events, SimTrace* trace, SimRandom random, const LinkModel& link,
               bool shared_ports)
    : events_(events),
      trace_(trace),
      random_(random),
      default_link_(link),
      shared_ports_(shared_ports) {}

uint32_t Fabric::Attach(FabricUser* user) {
  users_[next_user_].user = user;
  return next_user_++;
}

void Fabric::Detach(uint32_t id) {
  const auto found = users_.find(id);
  if (found == users_.end()) return;
  found->second.user = nullptr;
  if (found->second.over()) users_.erase(found);
}

FabricUser* Fabric::user(uint32_t id) const {
  const auto found = users_.find(id);
  return found == users_.end() ? nullptr : found->second.user;
}

Fabric::Place& Fabric::place(uint32_t number) {
  if (number >= places_.size()) places_.resize(number + 1);
  return places_[number];
}

uint32_t Fabric::WireFor(const SimAddress& from, uint32_t to_place) {
  const uint64_t source = (static_cast<uint64_t>(from.place) << 8) | from.port;
  const uint32_t to = shared_ports_ ? SimAddress::kNobody : to_place;
  const auto [found, fresh] = wire_of_.insert({{source, to}, 0});
  if (fresh) {
    found->second = static_cast<uint32_t>(wires_.size());
    wires_.emplace_back();
    wires_.back().from_place = from.place;
  }
  return found->second;
}

void Fabric::Ready(uint32_t user, const SimAddress& from, uint32_t to_place) {
  bool& waiting = users_[user].waiting;
  if (waiting) return;
  waiting = true;
  const uint32_t index = WireFor(from, to_place);
  Wire& wire = wires_[index];
  wire.waiting.push_back(user);
  if (wire.scheduled) return;
  wire.scheduled = true;
  events_->Add(wire.free_at_ns, SimEventKind::kWireFree, index);
}

void Fabric::OnWireFree(uint32_t index) {
  wires_[index].scheduled = false;
  // The wire may still be busy: a queue pair that became ready during its last turn asked too
  // early.
  const bool busy = wires_[index].free_at_ns > events_->NowNs();
  while (!busy && !wires_[index].waiting.empty()) {
    Wire& wire = wires_[index];
    const uint64_t choice = random_.Below(wire.waiting.size());
    const uint32_t id = wire.waiting[choice];
    wire.waiting[choice] = wire.waiting.back();
    wire.waiting.pop_back();
    const auto found = users_.find(id);
    found->second.waiting = false;
    FabricUser* const user = found->second.user;
    if (user == nullptr) {
      if (found->second.over()) users_.erase(found);
      continue;
    }
    const uint32_t packet_index = TakePacket();
    SimPacket& packet = packets_[packet_index];
    if (!user->NextPacket(&packet)) {
      GivePacket(packet_index);
      continue;
    }
    // The call may have added wires, which moves them in memory.
    Wire& same = wires_[index];
    const LinkModel& model = link(same.from_place, packet.to.place);
    const int64_t cost_ns =
        packet.first ? WireNs(model, packet.bytes)
                     : WireNs(model, packet.offset + packet.bytes) - WireNs(model, packet.offset);
    if (packet.first) ++messages_sent_;
    same.free_at_ns = events_->NowNs() + cost_ns;
    Ship(packet_index, same.free_at_ns, cost_ns);
    if (user->HasPacket()) Ready(id, packet.from, packet.to.place);
    break;
  }
  Wire& wire = wires_[index];
  if (wire.waiting.empty() || wire.scheduled) return;
  wire.scheduled = true;
  events_->Add(wire.free_at_ns, SimEventKind::kWireFree, index);
}

void Fabric::Answer(const SimPacket& answer) {
  const uint32_t index = TakePacket();
  SimPacket& packet = packets_[index];
  packet.kind = answer.kind;
  packet.status = answer.status;
  packet.sequence = answer.sequence;
  packet.from = answer.from;
  packet.to = answer.to;
  packet.bytes = 0;
  packet.fault = WorkFault();
  Ship(index, events_->NowNs(), 0);
}

void Fabric::Ship(uint32_t index, int64_t leaves_at_ns, int64_t cost_ns) {
  SimPacket& packet = packets_[index];
  ++packets_sent_;
  const LinkModel& model = link(packet.from.place, packet.to.place);
  if (Vanishes(packet) || random_.Chance(model.loss_ppm)) return Drop(index);
  int64_t arrives_ns = leaves_at_ns + model.latency_ns;
  if (model.jitter_ns > 0) arrives_ns += random_.Between(0, model.jitter_ns);
  if (shared_ports_ && cost_ns > 0) {
    int64_t& receives_from_ns = place(packet.to.place).receives_from_ns;
    arrives_ns = receives_from_ns = std::max(arrives_ns, receives_from_ns + cost_ns);
  }
  const uint32_t lane_index =
      packet.from.queue_pair * 2 + (packet.kind >= PacketKind::kAcknowledge ? 1 : 0);
  Lane& lane = users_[lane_index / 2].lanes[lane_index % 2];
  if (lane.count++ == 0) {
    lane.first = index;
  } else {
    packets_[lane.last].behind = index;
  }
  lane.last = index;
  lane.last_arrival_ns = std::max(arrives_ns, lane.last_arrival_ns);
  events_->Add(lane.last_arrival_ns, SimEventKind::kArrival, lane_index);
}

void Fabric::OnArrival(uint32_t lane_index) {
  const auto sender = users_.find(lane_index / 2);
  Lane& lane = sender->second.lanes[lane_index % 2];
  const uint32_t index = lane.first;
  lane.first = packets_[index].behind;
  --lane.count;
  if (sender->second.over()) users_.erase(sender);
  SimPacket& packet = packets_[index];
  FabricUser* const user = this->user(packet.to.queue_pair);
  if (user == nullptr || Vanishes(packet)) return Drop(index);
  trace_->Add(events_->NowNs(), TraceKind::kArrive, packet.to.queue_pair,
              static_cast<uint64_t>(packet.kind), packet.sequence);
  user->OnPacket(packet);
  GivePacket(index);
}

bool Fabric::Vanishes(const SimPacket& packet) const {
  for (const SimAddress* end : {&packet.from, &packet.to}) {
    if (end->place < places_.size() && places_[end->place].silent) return true;
    if (!port_up(end->place, end->port)) return true;
    if (address_version(end->place) != end->version) return true;
  }
  const auto pair = std::minmax(packet.from.place, packet.to.place);
  return cut_.find(pair) != cut_.end();
}

void Fabric::Drop(uint32_t index) {
  ++packets_dropped_;
  trace_->Add(events_->NowNs(), TraceKind::kDrop, packets_[index].to.queue_pair,
              static_cast<uint64_t>(packets_[index].kind), packets_[index].sequence);
  GivePacket(index);
}

uint32_t Fabric::TakePacket() {
  if (free_packets_.empty()) {
    packets_.emplace_back();
    return static_cast<uint32_t>(packets_.size() - 1);
  }
  const uint32_t index = free_packets_.back();
  free_packets_.pop_back();
  return index;
}

void Fabric::SetLink(uint32_t from_place, uint32_t to_place, const LinkModel& link) {
  TRYST_CHECK(link.bytes_per_second > 0);
  links_[{from_place, to_place}] = link;
}

const LinkModel& Fabric::link(uint32_t from_place, uint32_t to_place) const {
  if (links_.empty()) return default_link_;
  const auto found = links_.find({from_place, to_place});
  return found == links_.end() ? default_link_ : found->second;
}

void Fabric::SetCut(uint32_t place, uint32_t other_place, bool cut) {
  const auto pair = std::minmax(place, other_place);
  if (cut) {
    cut_[pair] = true;
  } else {
    cut_.erase(pair);
  }
}

void Fabric::SetSilent(uint32_t number, bool silent) { place(number).silent = silent; }

void Fabric::SetPort(uint32_t number, uint8_t port, bool up) {
  const uint64_t bit = uint64_t{1} << port;
  if (up) {
    place(number).ports_down &= ~bit;
  } else {
    place(number).ports_down |= bit;
  }
}

bool Fabric::port_up(uint32_t number, uint8_t port) const {
  return number >= places_.size() || (places_[number].ports_down >> port & 1) == 0;
}

void Fabric::ChangeAddress(uint32_t number) { ++place(number).version; }

uint32_t Fabric::address_version(uint32_t number) const {
  return number < places_.size() ? places_[number].version : 0;
}

}  // namespace tryst
