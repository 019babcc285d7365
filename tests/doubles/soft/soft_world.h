#ifndef TRYST_TESTS_DOUBLES_SOFT_SOFT_WORLD_H_
#define TRYST_TESTS_DOUBLES_SOFT_SOFT_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "verbs/nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {

std::unique_ptr<SoftNic> MustOpenSoftNic(const SoftNicOptions& options = {});

// For the soft NIC's own tests: one side, with memory that has a guard zone at each end.
struct SoftSide {
  static constexpr uint64_t kRedBytes = 4096;
  static constexpr uint8_t kRed = 0xcd;

  // It and its methods abort if something fails.
  explicit SoftSide(SoftNic* nic, uint64_t bytes = 1 << 16);
  ~SoftSide();

  static QueuePairOptions UsualOptions();
  void OpenQueuePair(QueuePairOptions options = UsualOptions());
  void PostReceives(int count);
  absl::Status PostWrite(uint64_t bytes, SendOp op = SendOp::kWrite);  // To remote.
  void Poll();
  bool RedZonesIntact() const;
  uint8_t* data() { return memory.data() + kRedBytes; }
  uint64_t bytes() const { return memory.size() - 2 * kRedBytes; }

  SoftNic* const nic;
  std::vector<uint8_t> memory;
  std::unique_ptr<Region> region;
  std::unique_ptr<CompletionQueue> completions;
  std::unique_ptr<QueuePair> queue_pair;
  std::vector<Completion> done;
  Region* remote = nullptr;  // Where PostWrite() writes.
};

void ConnectSides(SoftSide* a, SoftSide* b);

// Polls all sides until `condition`; false: it was not true within ten seconds.
[[nodiscard]] bool PollUntil(const std::vector<SoftSide*>& sides,
                             const std::function<bool()>& condition);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SOFT_SOFT_WORLD_H_
