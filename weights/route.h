#ifndef TRYST_WEIGHTS_ROUTE_H_
#define TRYST_WEIGHTS_ROUTE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "weights/chain.h"

namespace tryst {

// Whom a member asks for one part, until it has it: one of its owners; once, whom that one names;
// then, as long as nothing comes, its owners in turn. Or, where no owner has it any more, members
// that do, each once.
class PartRoute {
 public:
  // The part's owners, of which the one at `first` is asked first.
  PartRoute(std::vector<uint32_t> owners, size_t first)
      : owners_(std::move(owners)), at_(first % owners_.size()) {}
  // REQUIRES: there are some.
  explicit PartRoute(std::vector<Holder> holders) : holders_(std::move(holders)), fresh_(false) {
    referral_ = Referral{holders_.front(), std::nullopt};
  }

  // Who is asked, or has named the holder. REQUIRES: the part has owners.
  uint32_t owner() const { return owners_[at_]; }
  const std::vector<uint32_t>& owners() const { return owners_; }
  const std::optional<Referral>& referral() const { return referral_; }
  // Whether the owner may name a holder. Whoever asked before takes the bytes from an owner: a
  // holder that waits for this member cannot be meant then.
  bool may_be_sent_on() const { return fresh_; }
  size_t choices() const {
    return owners_.empty() ? holders_.size() - at_
                           : owners_.size() + (referral_.has_value() ? 1 : 0);
  }

  // Before anybody is asked: an owner that `failing` names is asked last.
  template <typename Failing>
  void Avoid(const Failing& failing) {
    if (!fresh_) return;
    for (size_t i = 1; i < owners_.size() && failing(owner()); ++i) Turn();
  }
  void SendOn(Referral referral) {
    referral_ = std::move(referral);
    fresh_ = false;
  }
  // Nothing came, or something else. False: each owner was asked twice, since what fails first may
  // be that it has restarted since it was last asked; or each holder once.
  bool Fail() {
    fresh_ = false;
    if (owners_.empty()) {
      if (at_ + 1 == holders_.size()) return false;
      referral_ = Referral{holders_[++at_], std::nullopt};
      return true;
    }
    if (referral_.has_value()) {
      referral_.reset();
      return true;
    }
    Turn();
    return ++failed_ < 2 * owners_.size();
  }

 private:
  void Turn() { at_ = (at_ + 1) % owners_.size(); }

  std::vector<uint32_t> owners_;
  std::vector<Holder> holders_;  // Only where there are no owners.
  size_t at_ = 0;
  size_t failed_ = 0;
  bool fresh_ = true;
  std::optional<Referral> referral_;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_ROUTE_H_
