#ifndef TRYST_WEIGHTS_HOLDERS_H_
#define TRYST_WEIGHTS_HOLDERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weights/log.h"

namespace tryst {

// A member that has parts for others. Another life of its worker has nothing.
struct Holder {
  std::string worker;
  uint64_t incarnation = 0;  // The server's. 0: it has nothing for others.
  friend bool operator==(const Holder& a, const Holder& b) {
    return a.worker == b.worker && a.incarnation == b.incarnation;
  }
};

inline constexpr size_t kMaxWorkerBytes = 512;
// A leader names so many at most: enough to meet each of 128 shards with a chance of 0.9997.
inline constexpr size_t kMaxHolders = 1024;

// Members of whom somebody has heard that they have parts of versions for others: it asks these,
// and names them to others, where nobody leads. Not thread-safe.
class KnownHolders {
 public:
  // So many versions have some, and each has up to kMaxHolders. Those that were heard of first go.
  static constexpr size_t kMaxVersions = kMaxOpenVersions + 2;

  // `of_itself`: the holder itself was heard, or a leader who hears it, so that another life of its
  // worker is over. Others may not know yet.
  void Add(const WeightVersion& version, const Holder& holder, bool of_itself);
  void Remove(const WeightVersion& version, const Holder& holder);  // It does not answer.
  void KeepOnly(absl::FunctionRef<bool(const WeightVersion&)> wanted);
  std::vector<Holder> Of(const WeightVersion& version) const;  // Those heard of last come first.

 private:
  struct Known {
    uint64_t incarnation = 0;
    uint64_t heard = 0;  // It counts up.
  };
  struct Version {
    uint64_t birth = 0;
    absl::flat_hash_map<std::string, Known> workers;
  };
  std::map<uint64_t, Version> versions_;  // By number.
  uint64_t heard_ = 0;
};

std::string EncodeHolders(absl::Span<const Holder> holders);
// kInvalidArgument: these bytes are none, or too many.
absl::StatusOr<std::vector<Holder>> DecodeHolders(absl::string_view bytes);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_HOLDERS_H_
