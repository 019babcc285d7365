#include "verbs/ofi/ofi_queue_pair.h"

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

// The peer's library acknowledges only when its thread polls, and a provider may resend for a
// while. So a shorter time tells nothing about the peer.
constexpr int64_t kLeastPatienceNs = 3'000'000'000;

int64_t PatienceNs(const QueuePairOptions& options) {
  if (options.ack_timeout == 0) return Patience::kForEver;
  const int64_t attempt_ns = int64_t{4096} << std::min<int>(options.ack_timeout, 31);
  return std::max(attempt_ns * (options.retry_count + 1), kLeastPatienceNs);
}

}  // namespace

OfiQueuePair::OfiQueuePair(OfiDevice* device, const QueuePairOptions& options)
    : device_(device),
      options_(options),
      completions_(static_cast<OfiCompletionQueue*>(options.completions)),
      number_(device->NextNumber()),
      patience_(PatienceNs(options)),
      works_(device->regions(), options),
      receives_(device->regions(), options.receive_depth, options.max_entries) {}

absl::StatusOr<std::unique_ptr<QueuePair>> OfiQueuePair::Create(OfiDevice* device,
                                                                const QueuePairOptions& options) {
  const NicLimits& limits = device->limits();
  if (options.completions == nullptr || options.send_depth == 0 || options.receive_depth == 0 ||
      options.send_depth > limits.max_send_depth ||
      options.receive_depth > limits.max_receive_depth ||
      options.max_entries > limits.max_entries ||
      options.max_inline_bytes > limits.max_inline_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a queue pair of ", options.send_depth, " sends, ", options.receive_depth, " receives, ",
        options.max_entries, " pieces of memory and ", options.max_inline_bytes,
        " inline bytes exceeds the limits of ", device->provider().full_name));
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
  const absl::Status opened =
      frames_.Open(device_, size_t{options_.send_depth} * options_.max_inline_bytes);
  if (!opened.ok()) return opened;
  works_.KeepInlineAt(frames_.extra(), frames_.descriptor());
  // Works, frames in both directions, and the immediates of as many works of the peer.
  auto endpoint =
      OfiEndpoint::Open(device_, 2 * size_t{options_.send_depth} +
                                     2 * size_t{options_.receive_depth} + OfiFrames::kIn);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = *std::move(endpoint);
  if (endpoint_->descriptor() >= 0) {
    const absl::Status watched = completions_->Watch(endpoint_->descriptor());
    if (!watched.ok()) return watched;
  }
  for (uint32_t i = 0; i < OfiFrames::kIn; ++i) PostFrameIn(i);
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
  address.token = tokens_.ours();
  if (!endpoint_->closed()) {
    absl::StatusOr<std::string> name = endpoint_->Name();
    if (name.ok()) address.name = *std::move(name);
  }
  return EncodeOfiAddress(address);
}

absl::Status OfiQueuePair::Connect(absl::string_view remote_address) {
  if (connected_ || broken_) {
    return absl::FailedPreconditionError("the queue pair is already connected, or broken");
  }
  absl::StatusOr<OfiAddress> peer = DecodeOfiAddress(remote_address);
  if (!peer.ok()) return peer.status();
  if (peer->provider != device_->provider().full_name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's libfabric NIC uses ", peer->provider, " and this worker's uses ",
                     device_->provider().full_name, ": set nic alike on both workers"));
  }
  const absl::Status set = endpoint_->SetPeer(peer->name);
  if (!set.ok()) return set;
  tokens_.SetPeer(peer->token);
  connected_ = true;
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

// From here on nothing of ours is touched; what was outstanding comes back.
void OfiQueuePair::CloseDown() {
  if (endpoint_->descriptor() >= 0) completions_->Unwatch(endpoint_->descriptor());
  endpoint_->Close();
  waiting_.clear();
  sends_used_ -= silent_;
  silent_ = 0;
  for (bool first = true; !works_.empty(); works_.Pop(), first = false) {
    const OfiWork& work = works_.oldest();
    Completion completion;
    completion.id = work.id;
    completion.status =
        first && work.status != CompletionStatus::kOk ? work.status : CompletionStatus::kFlushed;
    completion.vendor_error = first ? work.vendor_error : 0;
    Complete(completion, 1);
  }
  works_.NoneWaits();
  while (!receives_.empty()) Complete(receives_.Flush(), 0);
}

int64_t OfiQueuePair::NextLookNs(int64_t now_ns) const {
  constexpr int64_t kSomeTimeNs = 5'000'000;  // A descriptor reports most events sooner.
  if (endpoint_->closed()) return std::numeric_limits<int64_t>::max();
  if (!device_->wakes() || broken_) return now_ns + OfiNaps::kLongestNs;
  if (stalled_ || (connected_ && !greeted_)) return now_ns + kSomeTimeNs;
  return works_.empty() ? std::numeric_limits<int64_t>::max() : patience_.next_ns(now_ns);
}

}  // namespace tryst
