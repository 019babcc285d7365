#ifndef TRYST_VERBS_SOFT_SOFT_LOANS_H_
#define TRYST_VERBS_SOFT_SOFT_LOANS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tryst {

// Objects that many sockets need now and then, but few at once. The one returned last is lent
// first, because it is in the cache. Used by one thread.
template <typename T>
class SoftLoans {
 public:
  // Lends an object, in the state in which it was last returned.
  std::unique_ptr<T> Take() {
    if (kept_.empty()) return std::unique_ptr<T>(new T);  // Not zeroed.
    std::unique_ptr<T> loan = std::move(kept_.back());
    kept_.pop_back();
    return loan;
  }
  void Give(std::unique_ptr<T> loan) {
    if (loan != nullptr && kept_.size() < kMostKept) kept_.push_back(std::move(loan));
  }

 private:
  static constexpr size_t kMostKept = 32;

  std::vector<std::unique_ptr<T>> kept_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_LOANS_H_
