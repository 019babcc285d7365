#ifndef TRYST_CHANNEL_SIGNING_CALLER_H_
#define TRYST_CHANNEL_SIGNING_CALLER_H_

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace tryst {

// The metadata in which every call names its caller.
inline constexpr char kCallerMetadata[] = "tryst-caller-bin";

// The worker that makes a call. The call's metadata names it, and credentials prove it where there
// are any.
struct Caller {
  std::string cluster;
  std::string worker;
  uint64_t incarnation = 0;
};

using WallClockMs = std::function<int64_t()>;  // Unix time.

// The payload of a status with which a CallVerifier refuses a call for its time: an
// rpc::CalleeClock, which only a holder of the token can make.
inline constexpr char kClockPayload[] = "tryst.callee_clock";

// Signs each call with the worker that makes it. With a shared token an HMAC binds this statement
// to the method and the request; the token itself never travels. Calls to a worker whose clock
// differs are signed by that worker's clock, once it has told it. Thread-safe.
class CallSigner {
 public:
  CallSigner(Caller self, std::string token, WallClockMs now);

  // The value of kCallerMetadata for one call to `callee`; never the same twice.
  std::string Sign(absl::string_view callee, absl::string_view method, absl::string_view request);

  // Takes the end of a call to `callee` that was made with `statement`. If the callee has refused
  // it for its time, and proves that it said so to this very call, notes the callee's clock and
  // returns kUnavailable: signed again, the call will be taken. Else returns `ended`.
  absl::Status Heed(absl::string_view callee, absl::string_view statement,
                    const absl::Status& ended);

  // Numbers our channels, to tell their serials apart.
  uint64_t NextChannel() { return channels_.fetch_add(1, std::memory_order_relaxed) + 1; }

  const Caller& self() const { return self_; }
  const std::string& token() const { return token_; }

 private:
  struct CalleeClock {
    int64_t ahead_ms = 0;  // How far it is ahead of our own clock.
    uint64_t incarnation = 0;
  };
  // The number of the next call to it. Calls to others do not count, so that they make none of its
  // calls too old for CallVerifier's window.
  uint64_t NextNumber(absl::string_view callee) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static constexpr size_t kMostNumbered = 16384;

  const Caller self_;
  const std::string token_;
  const WallClockMs now_;
  Mutex mu_;
  // The workers that have refused a call for its time.
  absl::flat_hash_map<std::string, CalleeClock> clocks_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint64_t> last_numbers_ ABSL_GUARDED_BY(mu_);  // By callee.
  uint64_t first_number_ ABSL_GUARDED_BY(mu_) = 1;  // A callee that is not there begins with it.
  std::atomic<uint64_t> channels_{0};
};

// Checks statements of CallSigner. Thread-safe.
class CallVerifier {
 public:
  // Calls must be addressed to `self`, a worker in the life `incarnation`. With an empty token
  // every statement is believed: then TLS or the loopback authenticates the caller.
  CallVerifier(std::string cluster, std::string self, uint64_t incarnation, std::string token,
               WallClockMs now);

  // kUnauthenticated: no statement, a wrong token, a call to another worker, a replay, or clocks
  // that differ by more than a minute. kUnavailable: the call was made before this worker started,
  // or with a clock that is behind; the caller should retry. A call that is refused for its time
  // has kClockPayload, so that the caller can sign it again. kPermissionDenied: another cluster.
  // kResourceExhausted: too many callers.
  absl::StatusOr<Caller> Verify(absl::string_view statement, absl::string_view method,
                                absl::string_view request);

 private:
  static constexpr int kWindow = 4096;       // How far calls may overtake each other.
  static constexpr size_t kMaxSeen = 16384;  // The callers of the last two minutes.
  // Callers whose clocks are ahead. Of one more, the one that is ahead least counts as the others.
  static constexpr size_t kMaxAhead = 1024;
  struct Seen {
    uint64_t newest = 0;
    // Bit s % kWindow: the number s in (newest - kWindow, newest] was seen.
    std::bitset<kWindow> window;
    int64_t at_ms = 0;
  };
  absl::Status TakeSequence(const std::string& id, uint64_t sequence, int64_t now_ms,
                            int64_t made_ms);
  absl::Status WithClock(absl::Status refused, absl::string_view statement, int64_t now_ms) const;

  const std::string cluster_;
  const std::string self_;
  const uint64_t incarnation_;
  const std::string token_;
  const WallClockMs now_;
  const int64_t started_ms_;  // Earlier statements were made to an earlier incarnation of ours.
  Mutex mu_;
  absl::flat_hash_map<std::string, Seen> seen_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<int64_t, std::string>> ahead_ ABSL_GUARDED_BY(mu_);  // By `at_ms`.
};

// HMAC-SHA256 over the parts, each preceded by its length. 32 bytes.
std::string Mac(absl::string_view token, std::initializer_list<absl::string_view> parts);
// Shared-token mode: proves that the worker which gives this answer to `statement` knows the token.
std::string AnswerMac(absl::string_view token, absl::string_view method,
                      absl::string_view statement, absl::string_view answer);
// Takes the same time wherever they differ.
bool SameSecret(absl::string_view a, absl::string_view b);

int64_t UnixMs();

}  // namespace tryst

#endif  // TRYST_CHANNEL_SIGNING_CALLER_H_
