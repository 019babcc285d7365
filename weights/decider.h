#ifndef TRYST_WEIGHTS_DECIDER_H_
#define TRYST_WEIGHTS_DECIDER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "weights/log.h"
#include "weights/questions.h"

namespace tryst {

enum class DeciderOutcome : uint8_t {
  kDone,
  kOtherLength,  // Append: the log is longer than was thought.
  kNoLease,      // Somebody else has it, or has had it.
};

struct DeciderAnswer {
  uint64_t call = 0;  // Which it answers.
  DeciderOutcome outcome = DeciderOutcome::kDone;
  uint64_t lease = 0;   // TakeLease.
  uint64_t log = 0;     // The log's life: another one, after the log was lost.
  LogSlice slice;       // ReadFrom,
  uint64_t length = 0;  // and how long the log is.
};

// Where a set's log and its leader's lease are kept. Each call is answered by
// WeightLeader::OnDecider(), once or, where the answer is lost, never; the leader asks again. An
// append that is asked again must not be done twice: it compares the log's length.
class Decider {
 public:
  virtual ~Decider() = default;
  virtual void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) = 0;
  virtual void ReadFrom(uint64_t call, uint64_t index) = 0;
  virtual void TakeLease(uint64_t call) = 0;
  virtual void KeepLease(uint64_t call, uint64_t lease) = 0;
  virtual std::string Trouble() const { return ""; }  // Why it does not answer. Empty: it does.
};

// The log in one worker's memory: what a Decider asks, answered at once. It ends with the worker,
// and then another log begins.
class LogStore {
 public:
  LogStore(uint64_t life, int64_t lease_ns, size_t kept = kKeptEntries)
      : life_(life), lease_ns_(lease_ns), log_(kept), lease_(life) {}

  DeciderAnswer Append(uint64_t length, uint64_t lease, const LogEntry& entry);
  DeciderAnswer ReadFrom(uint64_t index) const;
  DeciderAnswer TakeLease(int64_t now_ns);
  DeciderAnswer KeepLease(uint64_t lease, int64_t now_ns);
  const WeightLog& log() const { return log_; }
  uint64_t life() const { return life_; }

 private:
  DeciderAnswer Say(DeciderOutcome outcome) const;

  const uint64_t life_;
  const int64_t lease_ns_;
  WeightLog log_;
  uint64_t lease_;  // Counts up from the life, so that no other log has the same ones.
  int64_t until_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_DECIDER_H_
