#include "tests/doubles/sim_nic/sim_trace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

}  // namespace

void SimTrace::Add(int64_t at_ns, TraceKind kind, uint32_t who, uint64_t a, uint64_t b) {
  hash_ = Mix(hash_, static_cast<uint64_t>(at_ns));
  hash_ = Mix(hash_, (static_cast<uint64_t>(who) << 8) | static_cast<uint64_t>(kind));
  hash_ = Mix(Mix(hash_, a), b);
  if (!tail_.empty()) tail_[count_ % tail_.size()] = {at_ns, a, b, who, kind};
  ++count_;
}

std::string SimTrace::Tail(size_t lines) const {
  std::string text;
  const uint64_t kept = std::min<uint64_t>({lines, tail_.size(), count_});
  for (uint64_t i = count_ - kept; i < count_; ++i) {
    const Record& r = tail_[i % tail_.size()];
    absl::StrAppend(&text, "#", i, " ", r.at_ns, " ns  ", TraceKindName(r.kind), "  ", r.who, "  ",
                    r.a, " ", r.b, "\n");
  }
  return text;
}

const char* TraceKindName(TraceKind kind) {
  switch (kind) {
    case TraceKind::kOpen:
      return "open";
    case TraceKind::kKill:
      return "kill";
    case TraceKind::kRegister:
      return "register";
    case TraceKind::kDeregister:
      return "deregister";
    case TraceKind::kConnect:
      return "connect";
    case TraceKind::kPostSend:
      return "post-send";
    case TraceKind::kPostReceive:
      return "post-receive";
    case TraceKind::kTransmit:
      return "transmit";
    case TraceKind::kArrive:
      return "arrive";
    case TraceKind::kDrop:
      return "drop";
    case TraceKind::kLand:
      return "land";
    case TraceKind::kRetry:
      return "retry";
    case TraceKind::kComplete:
      return "complete";
    case TraceKind::kBreak:
      return "break";
    case TraceKind::kStopped:
      return "stopped";
    case TraceKind::kDestroy:
      return "destroy";
    case TraceKind::kFault:
      return "fault";
    case TraceKind::kNicEvent:
      return "nic-event";
    case TraceKind::kTimer:
      return "timer";
    case TraceKind::kMark:
      return "mark";
  }
  return "unknown";
}

}  // namespace tryst
