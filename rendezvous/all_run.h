#ifndef TRYST_RENDEZVOUS_ALL_RUN_H_
#define TRYST_RENDEZVOUS_ALL_RUN_H_

#include <exception>
#include <utility>

namespace tryst {

// Runs users' callbacks one after the other, even if some throw, so that each is called. Our own
// code does not throw.
class AllRun {
 public:
  template <typename Fn>
  void Run(Fn&& fn) {
    try {
      std::forward<Fn>(fn)();
    } catch (...) {
      if (first_ == nullptr) first_ = std::current_exception();
    }
  }
  // Throws the first exception, if there was one. Call it last.
  void ThrowFirst() {
    if (first_ != nullptr) std::rethrow_exception(std::exchange(first_, nullptr));
  }

 private:
  std::exception_ptr first_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ALL_RUN_H_
