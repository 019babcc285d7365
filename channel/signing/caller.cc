#include "channel/signing/caller.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

constexpr int64_t kClockSlackMs = 60 * 1000;
constexpr size_t kMaxWorkerBytes = 256;
// A caller whose clock is ahead is remembered until its statements are too old to be replayed, or
// for this long at least.
constexpr int64_t kLongestAheadMs = int64_t{24} * 3600 * 1000;

// A time that somebody else says, from which ours can be subtracted.
int64_t SaneMs(int64_t unix_ms) { return std::clamp<int64_t>(unix_ms, 0, INT64_MAX / 2); }

std::string StatementMac(absl::string_view token, const rpc::Caller& caller,
                         absl::string_view method, absl::string_view request) {
  const std::string incarnation = absl::StrCat(caller.incarnation());
  const std::string sequence = absl::StrCat(caller.sequence());
  const std::string unix_ms = absl::StrCat(caller.unix_ms());
  // Releases that know no callee_incarnation check this one.
  if (caller.callee_incarnation() == 0) {
    return Mac(token, {"tryst caller 1", caller.cluster(), caller.worker(), caller.callee(),
                       incarnation, sequence, unix_ms, method, request});
  }
  return Mac(token, {"tryst caller 2", caller.cluster(), caller.worker(), caller.callee(),
                     absl::StrCat(caller.callee_incarnation()), incarnation, sequence, unix_ms,
                     method, request});
}

std::string ClockMac(absl::string_view token, absl::string_view statement,
                     const rpc::CalleeClock& clock) {
  return Mac(token, {"tryst clock 1", statement, absl::StrCat(clock.unix_ms()),
                     absl::StrCat(clock.incarnation())});
}

}  // namespace

std::string Mac(absl::string_view token, std::initializer_list<absl::string_view> parts) {
  std::string text;
  for (absl::string_view part : parts) {
    const uint64_t length = part.size();
    for (int shift = 0; shift < 64; shift += 8) text.push_back(static_cast<char>(length >> shift));
    text.append(part.data(), part.size());
  }
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), out, &bytes);
  return std::string(reinterpret_cast<char*>(out), bytes);
}

std::string AnswerMac(absl::string_view token, absl::string_view method,
                      absl::string_view statement, absl::string_view answer) {
  return Mac(token, {"tryst answer 2", method, statement, answer});
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

int64_t UnixMs() { return absl::ToUnixMillis(absl::Now()); }

CallSigner::CallSigner(Caller self, std::string token, WallClockMs now)
    : self_(std::move(self)), token_(std::move(token)), now_(std::move(now)) {}

std::string CallSigner::Sign(absl::string_view callee, absl::string_view method,
                             absl::string_view request) {
  rpc::Caller caller;
  caller.set_cluster(self_.cluster);
  caller.set_worker(self_.worker);
  caller.set_incarnation(self_.incarnation);
  caller.set_callee(std::string(callee));
  if (!token_.empty()) {
    CalleeClock clock;
    {
      MutexLock lock(&mu_);
      caller.set_sequence(NextNumber(callee));
      const auto found = clocks_.find(callee);
      if (found != clocks_.end()) clock = found->second;
    }
    caller.set_unix_ms(now_() + clock.ahead_ms);
    caller.set_callee_incarnation(clock.incarnation);
    caller.set_mac(StatementMac(token_, caller, method, request));
  }
  return caller.SerializeAsString();
}

uint64_t CallSigner::NextNumber(absl::string_view callee) {
  const auto found = last_numbers_.find(callee);
  if (found != last_numbers_.end()) return ++found->second;
  if (last_numbers_.size() >= kMostNumbered) {
    for (const auto& [other, last] : last_numbers_) {
      first_number_ = std::max(first_number_, last + 1);
    }
    last_numbers_.clear();
  }
  last_numbers_.emplace(callee, first_number_);
  return first_number_;
}

// The clock was read after the callee had the statement and before we have its answer, so calls
// signed by it are never dated later than the callee's present, however long somebody on the wire
// has kept the answer back. That it names our statement makes an answer of another day useless.
absl::Status CallSigner::Heed(absl::string_view callee, absl::string_view statement,
                              const absl::Status& ended) {
  if (token_.empty() || ended.ok()) return ended;
  rpc::CalleeClock clock;
  const absl::optional<absl::Cord> payload = ended.GetPayload(kClockPayload);
  const bool proved = payload.has_value() && clock.ParseFromString(std::string(*payload)) &&
                      SameSecret(clock.mac(), ClockMac(token_, statement, clock));
  MutexLock lock(&mu_);
  if (!proved) {
    // Nobody proves that he said it. But a worker of an earlier release refuses calls that are
    // signed by another clock than our own, so the next call is signed by ours.
    if (!absl::IsUnauthenticated(ended) || clocks_.erase(callee) == 0) return ended;
    return absl::UnavailableError(absl::StrCat(
        ended.message(), "; this worker will sign the call again, with its own clock"));
  }
  const int64_t ahead_ms = SaneMs(clock.unix_ms()) - now_();
  clocks_[callee] = {ahead_ms, clock.incarnation()};
  return absl::UnavailableError(absl::StrCat(ended.message(), "; the clock of ", callee, " is ",
                                             ahead_ms,
                                             " ms ahead of this worker's, so this worker signs "
                                             "further calls to that worker by its clock"));
}

CallVerifier::CallVerifier(std::string cluster, std::string self, uint64_t incarnation,
                           std::string token, WallClockMs now)
    : cluster_(std::move(cluster)),
      self_(std::move(self)),
      incarnation_(incarnation),
      token_(std::move(token)),
      now_(std::move(now)),
      started_ms_(token_.empty() ? 0 : now_()) {}

absl::StatusOr<Caller> CallVerifier::Verify(absl::string_view statement, absl::string_view method,
                                            absl::string_view request) {
  rpc::Caller caller;
  if (statement.empty() ||
      !caller.ParseFromArray(statement.data(), static_cast<int>(statement.size()))) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the call does not say which worker makes it (gRPC metadata ", kCallerMetadata, ")"));
  }
  if (caller.worker().size() > kMaxWorkerBytes) {
    return absl::UnauthenticatedError(absl::StrCat("the caller's name has ", caller.worker().size(),
                                                   " bytes, and may have at most ",
                                                   kMaxWorkerBytes));
  }
  if (!token_.empty()) {
    if (!SameSecret(caller.mac(), StatementMac(token_, caller, method, request))) {
      return absl::UnauthenticatedError(
          absl::StrCat("the caller, which says it is ", caller.worker(),
                       ", does not hold this cluster's token: set token_file alike on both"));
    }
    // Otherwise an eavesdropper could send the call to another worker.
    if (caller.callee() != self_) {
      return absl::UnauthenticatedError(
          absl::StrCat("the call is to ", caller.callee(), " and reached ", self_,
                       ": its caller has a wrong address, or somebody plays back a recorded call"));
    }
    const int64_t now_ms = now_();
    // An earlier incarnation's clock may have been ahead of ours, so its time proves nothing here.
    if (caller.callee_incarnation() != 0 && caller.callee_incarnation() != incarnation_) {
      return WithClock(absl::UnavailableError(
                           "the call is signed for an earlier process of this worker: this worker "
                           "has restarted meanwhile, or somebody plays back a recorded call"),
                       statement, now_ms);
    }
    const int64_t made_ms = SaneMs(caller.unix_ms());
    const int64_t apart_ms = now_ms - made_ms;
    const absl::Status far_apart = absl::UnauthenticatedError(
        absl::StrCat("the call was made ", apart_ms,
                     " ms ago by this worker's clock: the two clocks are more than a minute apart, "
                     "or somebody plays back a recorded call"));
    if (apart_ms > kClockSlackMs) return WithClock(far_apart, statement, now_ms);
    // This incarnation cannot know what an earlier one has accepted.
    if (caller.callee_incarnation() == 0 && made_ms < started_ms_) {
      return WithClock(absl::UnavailableError(
                           absl::StrCat("the call was made ", started_ms_ - made_ms,
                                        " ms before this worker started: the caller's clock is "
                                        "behind by that, or somebody plays back a recorded call")),
                       statement, now_ms);
    }
    absl::Status fresh = TakeSequence(absl::StrCat(caller.incarnation(), " ", caller.worker()),
                                      caller.sequence(), now_ms, made_ms);
    if (!fresh.ok()) return fresh;
    // Its number is taken: the caller signs it again, so it must not be taken when its time comes.
    if (apart_ms < -kClockSlackMs) return WithClock(far_apart, statement, now_ms);
  }
  if (caller.cluster() != cluster_) {
    return absl::PermissionDeniedError(absl::StrCat("the caller is of cluster '", caller.cluster(),
                                                    "', and this worker is of '", cluster_, "'"));
  }
  if (caller.worker().empty() || caller.incarnation() == 0) {
    return absl::UnauthenticatedError(
        "the call does not give its caller's name or incarnation: the caller is no Tryst worker of "
        "this release");
  }
  return Caller{caller.cluster(), caller.worker(), caller.incarnation()};
}

absl::Status CallVerifier::WithClock(absl::Status refused, absl::string_view statement,
                                     int64_t now_ms) const {
  rpc::CalleeClock clock;
  clock.set_unix_ms(now_ms);
  clock.set_incarnation(incarnation_);
  clock.set_mac(ClockMac(token_, statement, clock));
  refused.SetPayload(kClockPayload, absl::Cord(clock.SerializeAsString()));
  return refused;
}

absl::Status CallVerifier::TakeSequence(const std::string& id, uint64_t sequence, int64_t now_ms,
                                        int64_t made_ms) {
  MutexLock lock(&mu_);
  if (seen_.size() >= kMaxSeen && !seen_.contains(id)) {
    // Older entries can go, because their statements are now refused for their age.
    for (auto it = seen_.begin(); it != seen_.end();) {
      auto here = it++;
      if (now_ms - here->second.at_ms > 2 * kClockSlackMs) seen_.erase(here);
    }
    if (seen_.size() >= kMaxSeen) {
      return absl::ResourceExhaustedError(
          "too many different workers have called this worker within two minutes: try again later");
    }
  }
  Seen& seen = seen_[id];
  const int64_t before_ms = std::exchange(
      seen.at_ms, std::max({seen.at_ms, now_ms, std::min(made_ms, now_ms + kLongestAheadMs)}));
  if (seen.at_ms > now_ms + kClockSlackMs) {
    ahead_.erase({before_ms, id});
    ahead_.emplace(seen.at_ms, id);
    if (ahead_.size() > kMaxAhead) {
      const auto least = seen_.find(ahead_.begin()->second);
      if (least != seen_.end()) least->second.at_ms = std::min(least->second.at_ms, now_ms);
      ahead_.erase(ahead_.begin());
    }
  }
  const auto refuse = [&id, sequence](absl::string_view why) {
    return absl::UnauthenticatedError(absl::StrCat("call ", sequence, " of ", id, " ", why));
  };
  if (sequence == 0) return refuse("has no number");
  if (sequence > seen.newest) {
    if (sequence - seen.newest >= kWindow) {
      seen.window.reset();
    } else {
      for (uint64_t s = seen.newest + 1; s <= sequence; ++s) seen.window.reset(s % kWindow);
    }
    seen.newest = sequence;
  } else if (seen.newest - sequence >= kWindow) {
    return refuse("comes too late to tell from a replay");
  } else if (seen.window.test(sequence % kWindow)) {
    return refuse("was made before: a replay");
  }
  seen.window.set(sequence % kWindow);
  return absl::OkStatus();
}

}  // namespace tryst
