#include "verbs/ibv/iwarp_side.h"

#include "absl/status/statusor.h"

namespace tryst {
namespace {

IwarpAddress AddressOf(uint32_t number, uint64_t token, const sockaddr_in6& host) {
  IwarpAddress address;
  address.number = number;
  address.token = token;
  address.host = host;
  return address;
}

}  // namespace

IwarpSide::IwarpSide(IwarpConnector* connector, uint32_t number, uint64_t token, int wake_fd,
                     std::chrono::nanoseconds patience)
    : connector_(connector),
      local_(AddressOf(number, token, connector->host())),
      patience_(patience),
      link_(connector->Add(number, token, wake_fd)) {}

std::string IwarpSide::LocalAddress() const { return EncodeIwarpAddress(local_); }

absl::Status IwarpSide::Connect(absl::string_view remote_address) {
  const absl::StatusOr<IwarpAddress> peer = DecodeIwarpAddress(remote_address);
  return peer.ok() ? connector_->Connect(link_.get(), *peer) : peer.status();
}

void IwarpSide::Leave() {
  if (link_ == nullptr) return;
  connector_->Remove(link_.get());
  link_.reset();
}

IwarpSide::Change IwarpSide::Look() {
  if (link_ == nullptr) return Change::kNone;
  const IwarpLink::State state = link_->state();
  if (state == IwarpLink::State::kEstablished) {
    if (up_) return Change::kNone;
    up_ = true;
    return Change::kUp;
  }
  if (up_) return Change::kLost;
  // A missing peer breaks nothing until something is sent to it.
  if (held_.empty()) return Change::kNone;
  if (state == IwarpLink::State::kFailed) return Change::kLost;
  const bool late = clock_.NowNs() - held_since_ns_ > patience_.count();
  return late ? Change::kLost : Change::kNone;
}

void IwarpSide::Hold(const SendWork& work) {
  if (held_.empty()) held_since_ns_ = clock_.NowNs();
  held_.emplace_back();
  Held& held = held_.back();
  held.work = work;
  held.entries.assign(work.entries.begin(), work.entries.end());
  if (!work.inline_data) return;
  for (const Entry& entry : work.entries) {
    const auto* const from = reinterpret_cast<const uint8_t*>(entry.address);
    held.bytes.insert(held.bytes.end(), from, from + entry.bytes);
  }
}

const SendWork& IwarpSide::OldestHeld() {
  Held& held = held_.front();
  if (held.work.inline_data && !held.entries.empty()) {
    held.entries.resize(1);
    held.entries[0] = {reinterpret_cast<uint64_t>(held.bytes.data()), held.bytes.size(), 0};
  }
  held.work.entries = held.entries;
  return held.work;
}

}  // namespace tryst
