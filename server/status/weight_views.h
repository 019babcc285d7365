#ifndef TRYST_SERVER_STATUS_WEIGHT_VIEWS_H_
#define TRYST_SERVER_STATUS_WEIGHT_VIEWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// What one end of a set of weights shows of itself.
struct WeightView {
  std::string set;
  std::string role;          // "owner", "member" or "observer".
  uint64_t incarnation = 0;  // By which the set's log names it.
  uint64_t newest = 0;       // The newest version that it knows to be sealed; 0: none.
  uint64_t active = 0;       // As its log says; 0: none.
  double active_s = -1;      // For how long it has known that; -1: it does not.
  std::string note;          // What it waits for, or what is wrong.
  // An owner has sent so many bytes of tensors; a member or observer has fetched so many.
  uint64_t bytes = 0;
  uint64_t held_bytes = 0;  // That it has for others: an owner's snapshots, what a member holds.

  // An owner's.
  uint32_t rank = 0, owners = 0;
  std::vector<uint64_t> holds;  // Sealed versions.

  // The leader's, which is an owner.
  bool leads = false;
  size_t members = 0;
  size_t behind = 0;  // Members that do not serve the active version.
  // Members that an activation waits for, or else those behind: the first 16.
  std::vector<uint64_t> awaited;

  // A member's.
  uint64_t serves = 0;  // 0: it may serve nothing now.
  bool confirmed = false;
  uint64_t permits_lost = 0;  // How often its permit has run out.
  uint64_t sent_on = 0;       // Bytes to other members.
};

// The ends of sets of weights that a server has open. Thread-safe.
class WeightViews {
 public:
  static constexpr size_t kMost = 64;  // As many are shown.
  using ViewFn = std::function<WeightView()>;

  // Shows what `view` returns until the result is destroyed, which waits while `view` runs. This
  // outlives the result.
  class Shown {
   public:
    ~Shown();

   private:
    friend class WeightViews;
    Shown(WeightViews* views, uint64_t id) : views_(views), id_(id) {}
    WeightViews* const views_;
    const uint64_t id_;
  };
  std::unique_ptr<Shown> Show(ViewFn view);

  std::vector<WeightView> List() const;
  // Returns the same as a JSON array.
  std::string Json() const;

 private:
  mutable Mutex mu_;
  uint64_t ids_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, ViewFn> views_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_WEIGHT_VIEWS_H_
