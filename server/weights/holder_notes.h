#ifndef TRYST_SERVER_WEIGHTS_HOLDER_NOTES_H_
#define TRYST_SERVER_WEIGHTS_HOLDER_NOTES_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "base/mutex.h"
#include "weights/holders.h"

namespace tryst {

// KnownHolders of a member, whose calls and answers note them. Thread-safe.
class HolderNotes {
 public:
  void Add(const WeightVersion& version, const Holder& holder, bool of_itself) {
    MutexLock lock(&mu_);
    known_.Add(version, holder, of_itself);
  }
  void Remove(const WeightVersion& version, const Holder& holder) {
    MutexLock lock(&mu_);
    known_.Remove(version, holder);
  }
  void KeepOnly(absl::FunctionRef<bool(const WeightVersion&)> wanted) {
    MutexLock lock(&mu_);
    known_.KeepOnly(wanted);
  }
  std::vector<Holder> Of(const WeightVersion& version) const {
    MutexLock lock(&mu_);
    return known_.Of(version);
  }

 private:
  mutable Mutex mu_;
  KnownHolders known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_HOLDER_NOTES_H_
