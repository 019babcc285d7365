#include "verbs/soft/soft_context.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr size_t kMaxEvents = 4096;

void FillFromSystem(absl::Span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    // For so few bytes only a signal can interrupt it.
    if (got > 0) out.remove_prefix(static_cast<size_t>(got));
  }
}

SoftNicOptions Completed(SoftNicOptions options) {
  if (options.random == nullptr) options.random = FillFromSystem;
  return options;
}

// None: pipes carry the bytes.
std::vector<SocketAddress> AddressesOf(const SoftNicOptions& options) {
  absl::StatusOr<std::vector<SocketAddress>> all = SocketAddress::ParseAll(options.listen_address);
  return all.ok() ? *std::move(all) : std::vector<SocketAddress>();
}

uint32_t RandomStart(const SoftNicOptions& options) {
  uint32_t start = 0;
  options.random(absl::MakeSpan(reinterpret_cast<uint8_t*>(&start), sizeof(start)));
  return start;
}

}  // namespace

SoftEvents::SoftEvents() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void SoftEvents::Add(const NicEvent& event) {
  MutexLock lock(&mu_);
  if (events_.size() >= kMaxEvents) return;
  events_.push_back(event);
  // Under the lock, so that the descriptor and the list always agree.
  eventfd_write(fd_.get(), 1);
}

absl::optional<NicEvent> SoftEvents::Take() {
  MutexLock lock(&mu_);
  if (events_.empty()) return absl::nullopt;
  const NicEvent event = events_.front();
  events_.pop_front();
  if (events_.empty()) {
    eventfd_t ignored;
    eventfd_read(fd_.get(), &ignored);
  }
  return event;
}

SoftContext::SoftContext(SoftNicOptions given)
    : options(Completed(std::move(given))),
      addresses(AddressesOf(options)),
      clock(options.clock != nullptr ? options.clock : &steady_clock),
      regions(options.random),
      next_queue_pair(RandomStart(options)) {}

Token SoftContext::NewToken() const {
  Token token;
  options.random(absl::MakeSpan(token));
  return token;
}

// The smaller token of two dials (SoftConnection).
Token SoftContext::NewTokenOf(const QueuePairOptions& queue_pair) const {
  Token token = NewToken();
  token[0] = static_cast<uint8_t>(queue_pair.dials ? token[0] & 0x7f : token[0] | 0x80);
  return token;
}

}  // namespace tryst
