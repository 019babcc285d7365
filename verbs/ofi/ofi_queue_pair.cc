#include "verbs/ofi/ofi_queue_pair.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ofi/ofi_address.h"
#include "verbs/ofi/ofi_region.h"

namespace tryst {
namespace {

// The peer's library acknowledges when its thread polls, and a provider may resend for a
// while: less than this says nothing about the peer.
constexpr int64_t kLeastPatienceNs = 3'000'000'000;

int64_t PatienceNs(const QueuePairOptions& options) {
  if (options.ack_timeout == 0) return Patience::kForEver;
  const int64_t attempt_ns = int64_t{4096} << std::min<int>(options.ack_timeout, 31);
  return std::max(attempt_ns * (options.retry_count + 1), kLeastPatienceNs);
}

uint64_t RandomToken() {
  uint64_t token = 0;
  while (token == 0) {
    if (getrandom(&token, sizeof(token), 0) != sizeof(token)) token = 0;
  }
  return token;
}

}  // namespace

OfiQueuePair::OfiQueuePair(OfiDevice* device, const QueuePairOptions& options)
    : device_(device),
      options_(options),
      completions_(static_cast<OfiCompletionQueue*>(options.completions)),
      number_(device->NextNumber()),
      token_(RandomToken()),
      patience_(PatienceNs(options)),
      receives_(device->regions(), options.receive_depth, options.max_entries) {}

absl::StatusOr<std::unique_ptr<QueuePair>> OfiQueuePair::Create(OfiDevice* device,
                                                                const QueuePairOptions& options) {
  const NicLimits& limits = device->limits();
  if (options.completions == nullptr || options.send_depth == 0 || options.receive_depth == 0 ||
      options.send_depth > limits.max_send_depth ||
      options.receive_depth > limits.max_receive_depth ||
      options.max_entries > limits.max_entries ||
      options.max_inline_bytes > limits.max_inline_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a queue pair of ", options.send_depth, " sends, ", options.receive_depth,
                     " receives, ", options.max_entries, " entries and ", options.max_inline_bytes,
                     " inline bytes is over the limits of ", device->provider().full_name));
  }
  std::unique_ptr<OfiQueuePair> pair(new OfiQueuePair(device, options));
  const absl::Status opened = pair->Open();
  if (!opened.ok()) return opened;
  return std::unique_ptr<QueuePair>(std::move(pair));
}

absl::Status OfiQueuePair::Open() {
  const absl::Status added = completions_->Add(this, options_.send_depth + options_.receive_depth);
  if (!added.ok()) return added;
  added_ = true;
  works_.resize(options_.send_depth);
  const size_t pieces = size_t{options_.send_depth} * std::max<uint32_t>(options_.max_entries, 1);
  pieces_.resize(pieces);
  piece_descriptors_.resize(pieces);
  memory_.resize((kFramesIn + kFramesOut) * kOfiFrameBytes +
                 size_t{options_.send_depth} * options_.max_inline_bytes);
  if (device_->needs_descriptors()) {
    auto region = OfiRegion::Register(device_, memory_.data(), memory_.size(), kLocalWrite);
    if (!region.ok()) return region.status();
    region_ = *std::move(region);
    const Entry all = {region_->address(), region_->bytes(), region_->local_key()};
    TRYST_CHECK(device_->regions()->Find(all, /*to_write=*/true, &descriptor_));
  }
  // Works, frames both ways, and the immediates of as many works of the peer's.
  auto endpoint = OfiEndpoint::Open(
      device_, 2 * size_t{options_.send_depth} + 2 * size_t{options_.receive_depth} + kFramesIn);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = *std::move(endpoint);
  if (endpoint_->descriptor() >= 0) completions_->Watch(endpoint_->descriptor());
  for (uint32_t i = 0; i < kFramesIn; ++i) {
    frames_in_[i].owner = OfiContext::Owner::kFrameIn;
    frames_in_[i].index = i;
    PostFrameIn(i);
  }
  for (uint32_t i = 0; i < kFramesOut; ++i) {
    frames_out_[i].context.owner = OfiContext::Owner::kFrameOut;
    frames_out_[i].context.index = i;
  }
  return absl::OkStatus();
}

OfiQueuePair::~OfiQueuePair() {
  if (endpoint_ != nullptr && !endpoint_->closed()) {
    SayBye();
    if (endpoint_->descriptor() >= 0) completions_->Unwatch(endpoint_->descriptor());
    endpoint_->Close();
  }
  if (added_) completions_->Remove(this, options_.send_depth + options_.receive_depth);
}

QueuePairState OfiQueuePair::state() const {
  if (broken_) {
    return endpoint_->closed() && unpolled_ == 0 ? QueuePairState::kDrained
                                                 : QueuePairState::kBroken;
  }
  return connected_ ? QueuePairState::kReady : QueuePairState::kReset;
}

std::string OfiQueuePair::LocalAddress() const {
  OfiAddress address;
  address.provider = std::string(device_->provider().full_name);
  address.token = token_;
  if (!endpoint_->closed()) {
    absl::StatusOr<std::string> name = endpoint_->Name();
    if (name.ok()) address.name = *std::move(name);
  }
  return EncodeOfiAddress(address);
}

absl::Status OfiQueuePair::Connect(absl::string_view remote_address) {
  if (connected_ || broken_) {
    return absl::FailedPreconditionError("the queue pair is connected, or broken");
  }
  absl::StatusOr<OfiAddress> peer = DecodeOfiAddress(remote_address);
  if (!peer.ok()) return peer.status();
  if (peer->provider != device_->provider().full_name) {
    return absl::InvalidArgumentError(absl::StrCat("the peer's libfabric NIC is over ",
                                                   peer->provider, ", ours over ",
                                                   device_->provider().full_name));
  }
  const absl::Status set = endpoint_->SetPeer(peer->name);
  if (!set.ok()) return set;
  peer_token_ = peer->token;
  connected_ = true;
  peer_ready_ = std::find(heard_.begin(), heard_.end(), peer_token_) != heard_.end();
  heard_.clear();
  Greet(completions_->NowNs());
  return absl::OkStatus();
}

void OfiQueuePair::Break() {
  if (broken_) return;
  broken_ = true;
  SayBye();
}

void OfiQueuePair::OnPolled(uint32_t credits) {
  --unpolled_;
  sends_used_ -= credits;
  if (credits == 0) --receives_used_;
}

void OfiQueuePair::Complete(Completion completion, uint32_t credits) {
  completion.queue_pair = number_;
  ++unpolled_;
  completions_->Push(this, completion, credits);
}

// Nothing of ours is touched from here on; what was outstanding comes back.
void OfiQueuePair::CloseDown() {
  if (endpoint_->descriptor() >= 0) completions_->Unwatch(endpoint_->descriptor());
  endpoint_->Close();
  waiting_.clear();
  sends_used_ -= silent_;
  silent_ = 0;
  for (bool first = true; head_ != tail_; ++head_, first = false) {
    const Work& work = WorkAt(head_);
    Completion completion;
    completion.id = work.id;
    completion.status =
        first && work.status != CompletionStatus::kOk ? work.status : CompletionStatus::kFlushed;
    completion.vendor_error = first ? work.vendor_error : 0;
    Complete(completion, 1);
  }
  issue_ = tail_;
  while (!receives_.empty()) Complete(receives_.Flush(), 0);
}

int64_t OfiQueuePair::NextLookNs(int64_t now_ns) const {
  constexpr int64_t kSoonNs = 1'000'000;
  constexpr int64_t kSomeTimeNs = 5'000'000;  // A descriptor tells of most of it sooner.
  if (endpoint_->closed()) return std::numeric_limits<int64_t>::max();
  if (!device_->wakes() || broken_) return now_ns + kSoonNs;
  if (stalled_ || (connected_ && !greeted_)) return now_ns + kSomeTimeNs;
  return head_ == tail_ ? std::numeric_limits<int64_t>::max() : patience_.next_ns(now_ns);
}

}  // namespace tryst
