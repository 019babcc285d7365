#ifndef TRYST_TESTS_PROCESS_PAIR_ONE_STEP_H_
#define TRYST_TESTS_PROCESS_PAIR_ONE_STEP_H_

#include <cstdint>
#include <utility>

#include "rendezvous/local_rendezvous.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// A source that accepts takes of any step: it creates the step.
class OpenSource : public TensorSource {
 public:
  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    StepOf(step_id)->RecvAsync(key, args, std::move(done));
  }
  bool TakeHere(int64_t step_id, TensorKey* key, Place*, Received* taken) override {
    return StepOf(step_id)->TakeHere(key, taken);
  }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
    StepOf(step_id)->GiveBack(key, std::move(taken));
  }

 private:
  virtual LocalRendezvous* StepOf(int64_t step_id) = 0;
};

// One step, which serves every take.
class OneStep final : public OpenSource {
 public:
  explicit OneStep(Alarms* alarms) : step_(LocalRendezvous::Options(), alarms) {}
  LocalRendezvous* step() { return &step_; }

 private:
  LocalRendezvous* StepOf(int64_t) override { return &step_; }

  LocalRendezvous step_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_ONE_STEP_H_
