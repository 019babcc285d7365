#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_FETCH_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_FETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "rendezvous/cancellation.h"
#include "server/weights/patience.h"
#include "server/weights/weight_member.h"
#include "weights/chain.h"
#include "weights/fetch_plan.h"
#include "weights/route.h"

// What a fetch of WeightMember's keeps. For its sources alone.
namespace tryst {

struct WeightMember::Part {
  const Item* item = nullptr;
  PartName name;
  uint32_t element_bytes = 0;
  Source source;  // Its part is this part.
  PartRoute route;
  uint64_t base = 0;            // Item::has, until that has turned out wrong.
  bool expected = false;        // By the relay, for others.
  bool may_be_sent_on = false;  // As it was asked for last.
  bool came = false;            // It is right, and perhaps could not be put into its place.
  Rescued* rescued = nullptr;   // The box that it is a part of, where owners are gone.
  std::optional<Digest> digest = std::nullopt;  // That a rescued part is held against by itself.
  uint64_t bytes() const { return static_cast<uint64_t>(name.box.elements()) * element_bytes; }
};

// Who is asked for parts, in one fetch.
struct WeightMember::Watched {
  explicit Watched(const CancellationRef& of_fetch) : asks(of_fetch) {}
  uint64_t incarnation = 0;       // A member's.
  std::optional<uint32_t> owner;  // Its rank, if it is one.
  size_t out = 0;                 // So many asks have no answer yet.
  int64_t heard_ns = 0;           // When it gave a sign of life.
  int suspected = 0;              // How often it gave none when it was pinged.
  HangingCancellation asks;
};

struct WeightMember::Fetching {
  const SealedVersion& version;
  const DeclaredLayouts& layouts;
  const Patience& patience;
  bool waits = false;  // For owners that are gone to come back, as long as the patience lasts.
  std::set<uint32_t> failing = {};         // Owners that are asked last.
  std::set<uint32_t> gone = {};            // Owners that have nothing of it any more.
  std::set<std::string> bad_holders = {};  // That are not asked again.
  std::map<std::string, Watched> watched = {};
  std::vector<Part*> orphans = {};  // That nobody who was to be asked has.
  const Part* failed = nullptr;     // What came of it has ended the fetch.
  // How long owners that are gone are waited for, before members are asked again.
  absl::Duration awaits = absl::Seconds(5);
};

// A box that members have in the place of its owners, or a part of one, while it is put together.
struct WeightMember::Rescued {
  size_t lost = 0;                // Its place in StandIns::Lost.
  std::vector<Part*> parts;       // That are wanted of it.
  Item item;                      // All of it, dense, in memory of its own.
  std::set<std::string> asked;    // Workers that were to send parts of it,
  std::set<std::string> senders;  // whose parts it has,
  std::set<std::string> bad;      // and that are not asked again: the whole was wrong.
  bool whole = true;              // No part is missing.
};

// A part that is wanted of a box of which members do not have all.
struct WeightMember::Wanted {
  Part* part = nullptr;
  StandIns::Lost* lost = nullptr;
  Tensor own = {};     // For others; invalid: they do not have it of this member.
  bool whole = false;  // All of it came.
};

// Answers to the parts of one fetch. They may come when it has ended.
struct WeightMember::Came {
  // An answer says so that nobody has taken yet.
  bool SomebodyIsUnreachable() {
    MutexLock lock(&mu);
    return std::any_of(answers.begin(), answers.end(),
                       [](const auto& one) { return absl::IsUnavailable(one.second.status()); });
  }
  Mutex mu;
  CondVar changed;
  std::deque<std::pair<Part*, absl::StatusOr<Tensor>>> answers ABSL_GUARDED_BY(mu);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_FETCH_H_
