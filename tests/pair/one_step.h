#ifndef TRYST_TESTS_PAIR_ONE_STEP_H_
#define TRYST_TESTS_PAIR_ONE_STEP_H_

#include <cstdint>
#include <utility>

#include "rendezvous/local_rendezvous.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// One step, as the source of everything that is asked for.
class OneStep final : public TensorSource {
 public:
  explicit OneStep(Alarms* alarms) : step_(LocalRendezvous::Options(), alarms) {}
  LocalRendezvous* step() { return &step_; }
  void Take(int64_t, const TensorKey& key, uint64_t, const Args& args, DoneFn done) override {
    step_.RecvAsync(key, args, std::move(done));
  }
  bool TakeHere(int64_t, TensorKey* key, Place*, Taken* taken) override {
    return step_.TakeHere(key, taken);
  }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey& key, Taken taken) override {
    step_.GiveBack(key, std::move(taken));
  }

 private:
  LocalRendezvous step_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PAIR_ONE_STEP_H_
