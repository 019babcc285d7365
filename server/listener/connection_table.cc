#include "server/listener/connection_table.h"

#include <algorithm>
#include <utility>

#include "server/listener/listening_sockets.h"

namespace tryst {

ConnectionTable::Connection* ConnectionTable::Find(Id id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

bool ConnectionTable::is_stranger(Id id) const { return strangers_.count(id) > 0; }

void ConnectionTable::LeaveStrangers(Id id, const Connection& connection) {
  if (strangers_.erase(id) == 0) return;
  strangers_bytes_ -= std::min(strangers_bytes_, connection.received);
  const auto host = strangers_of_host_.find(HostPart(connection.address));
  if (host != strangers_of_host_.end() && --host->second == 0) strangers_of_host_.erase(host);
}

// The listener shuts the socket; Remove() follows when its end has been seen.
void ConnectionTable::End(Id id, Connection* connection, std::vector<Id>* end) {
  LeaveStrangers(id, *connection);
  connection->ending = true;
  end->push_back(id);
}

ConnectionTable::Id ConnectionTable::Add(const std::string& address, int64_t now_ns,
                                         std::vector<Id>* end) {
  const absl::string_view host = HostPart(address);
  const auto of_host = strangers_of_host_.find(host);
  const bool crowded =
      of_host != strangers_of_host_.end() &&
      of_host->second >= (FlooderAt(address, now_ns) == nullptr
                              ? limits_.strangers_of_address
                              : std::min(limits_.strangers_of_address, kFlooderStrangers));
  if (crowded || strangers_.size() >= limits_.strangers ||
      (connections_.size() >= limits_.connections && !strangers_.empty())) {
    // A stranger gives way to a newer one, the oldest first: of the same host where that host is
    // crowded. So silent strangers cannot keep others out.
    auto oldest = strangers_.begin();
    while (crowded && HostPart(oldest->second->address) != host) ++oldest;
    ++counts_.crowded_out;
    End(oldest->first, oldest->second, end);
  }
  if (connections_.size() >= limits_.connections + end->size()) {
    ++counts_.refused;
    return 0;
  }
  const Id id = next_id_++;
  Connection& connection = connections_[id];
  connection.address = address;
  connection.since_ns = now_ns;
  strangers_[id] = &connection;
  ++strangers_of_host_[std::string(host)];
  by_address_[address] = id;
  ++counts_.accepted;
  return id;
}

void ConnectionTable::Remove(Id id, uint64_t received, int64_t now_ns) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;
  if (!connection->member) {
    (void)Saw(id, std::max(received, connection->received), 0, now_ns);
    if (!connection->flooded) ChargeHost(*connection, now_ns);
  }
  LeaveStrangers(id, *connection);
  const auto named = by_address_.find(connection->address);
  if (named != by_address_.end() && named->second == id) by_address_.erase(named);
  connections_.erase(id);
}

bool ConnectionTable::Authenticated(absl::string_view address) {
  const auto named = by_address_.find(address);
  if (named == by_address_.end()) return false;
  Connection* const connection = Find(named->second);
  connection->called = true;
  if (connection->member || connection->ending) return false;
  LeaveStrangers(named->second, *connection);
  connection->member = true;
  ++counts_.authenticated;
  one_is_known_ = one_is_known_ || connection->waits;
  return connection->waits;
}

bool ConnectionTable::MustWait(Id id, int64_t now_ns) {
  Connection* const connection = Find(id);
  if (connection == nullptr || !is_stranger(id) || connection->waits ||
      burst_bytes_ <= limits_.burst_bytes || now_ns >= burst_until_ns_ ||
      connection->received <= kLittleBytes) {
    return false;
  }
  connection->waits = true;
  waiting_.push_back(id);
  ++counts_.held_back;
  return true;
}

void ConnectionTable::Resume(int64_t now_ns, std::vector<Id>* go_on) {
  if (now_ns < burst_until_ns_ && !one_is_known_) return;
  one_is_known_ = false;
  std::vector<Id> still;
  for (Id id : waiting_) {
    Connection* const connection = Find(id);
    if (connection == nullptr) continue;
    if (now_ns < burst_until_ns_ && is_stranger(id)) {
      still.push_back(id);
      continue;
    }
    connection->waits = false;
    go_on->push_back(id);
  }
  waiting_ = std::move(still);
}

int64_t ConnectionTable::next_resume_ns() const {
  if (waiting_.empty()) return INT64_MAX;
  return one_is_known_ ? 0 : burst_until_ns_;
}

const ConnectionTable::Flooder* ConnectionTable::FlooderAt(absl::string_view address,
                                                           int64_t now_ns) const {
  const auto found = flooders_.find(HostPart(address));
  if (found == flooders_.end() || found->second.last_ns + kFloodMemoryNs <= now_ns) return nullptr;
  return &found->second;
}

void ConnectionTable::NoteFlood(absl::string_view address, int64_t now_ns) {
  if (flooders_.size() >= kMostFlooders) {
    for (auto it = flooders_.begin(); it != flooders_.end();) {
      auto here = it++;
      if (here->second.last_ns + kFloodMemoryNs <= now_ns) flooders_.erase(here);
    }
    if (flooders_.size() >= kMostFlooders) return;
  }
  Flooder& flooder = flooders_[std::string(HostPart(address))];
  if (flooder.last_ns + kFloodMemoryNs <= now_ns) flooder.floods = 0;
  ++flooder.floods;
  flooder.last_ns = now_ns;
}

void ConnectionTable::ChargeHost(const Connection& connection, int64_t now_ns) {
  if (now_ns >= charged_until_ns_ || charged_bytes_.size() >= kMostFlooders) {
    charged_bytes_.clear();
    charged_until_ns_ = now_ns + kChargeNs;
  }
  uint64_t& bytes = charged_bytes_[std::string(HostPart(connection.address))];
  bytes += connection.received;
  if (bytes <= limits_.stranger_bytes) return;
  bytes = 0;
  ++counts_.flooded;
  NoteFlood(connection.address, now_ns);
}

int64_t ConnectionTable::DelayNs(absl::string_view address, int64_t now_ns) const {
  const Flooder* const flooder = FlooderAt(address, now_ns);
  return flooder == nullptr
             ? 0
             : std::min<int64_t>(kLongestDelayNs, kDelayNs << std::min(flooder->floods, 16));
}

bool ConnectionTable::Saw(Id id, uint64_t received, uint64_t sent, int64_t now_ns) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return true;
  const uint64_t before = connection->received;
  connection->received = received;
  if (connection->ending) return false;
  if (connection->member) {
    if (connection->called) {
      connection->called = false;
      connection->received_base = received;
      connection->sent_base = sent;
    }
    if (limits_.member_bytes == 0 ||
        received - connection->received_base <=
            limits_.member_bytes + (sent - connection->sent_base) / 64) {
      return true;
    }
  } else {
    strangers_bytes_ += received - before;
    if (now_ns >= burst_until_ns_) {
      burst_until_ns_ = now_ns + kBurstNs;
      burst_bytes_ = 0;
    }
    burst_bytes_ += received - before;
    const uint64_t most = FlooderAt(connection->address, now_ns) == nullptr
                              ? limits_.stranger_bytes
                              : std::min(limits_.stranger_bytes, kFlooderBytes);
    if (received <= most && strangers_bytes_ <= limits_.strangers_bytes) {
      return true;
    }
  }
  ++counts_.flooded;
  NoteFlood(connection->address, now_ns);
  connection->flooded = true;
  LeaveStrangers(id, *connection);
  connection->ending = true;
  return false;
}

void ConnectionTable::Expire(int64_t now_ns, std::vector<Id>* end) {
  while (!strangers_.empty() &&
         strangers_.begin()->second->since_ns + limits_.stranger_ns <= now_ns) {
    ++counts_.timed_out;
    End(strangers_.begin()->first, strangers_.begin()->second, end);
  }
}

int64_t ConnectionTable::next_expiry_ns() const {
  return strangers_.empty() ? INT64_MAX
                            : strangers_.begin()->second->since_ns + limits_.stranger_ns;
}

ConnectionCounts ConnectionTable::counts() const {
  ConnectionCounts counts = counts_;
  counts.open = connections_.size();
  counts.strangers = strangers_.size();
  return counts;
}

}  // namespace tryst
