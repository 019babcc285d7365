#ifndef TRYST_TESTS_MODEL_SLOT_REPLAY_H_
#define TRYST_TESTS_MODEL_SLOT_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "channel/ops/slot_watch.h"
#include "tests/model/slot_edges.h"

namespace tryst {

// All edges that the model takes in any order: what the code may do. The search runs once.
const SlotEdges& ModelEdges(int slots);

// Replays in the model what the shipped code does to its slots. Each step must be one that the
// model can take from the slot's state. The replay derives that state from the steps before, and
// compares it with the state that the code reports.
class SlotReplay final : public SlotWatch {
 public:
  // `refuse` gets a description of each trace that the model refuses.
  using Refuse = std::function<void(const std::string& what)>;
  SlotReplay(const SlotEdges& model, Refuse refuse);

  // How often each edge of the model was taken.
  const SlotEdges& taken() const { return taken_; }
  uint64_t steps() const { return steps_; }

  void OnFetchEvent(const void* end, const FetchAsk& ask, FetchState from,
                    FetchEvent event) override;
  void OnSlotFreed(const void* end, uint16_t slot) override;
  void OnServeEvent(const void* end, uint16_t slot, ServeState from, ServeEvent event) override;
  void OnServeEpoch(const void* end) override;
  void OnServeFarewell(const void* end) override;
  void OnEndGone(const void* end) override;

 private:
  static constexpr size_t kRemembered = 16;
  // One slot at one end.
  struct Place {
    uint8_t state = 0;
    bool named = false;
    std::vector<SlotEdge> before;  // The last edges, for the description.
  };
  using Slots = std::map<uint16_t, Place>;

  void Take(uint16_t slot, Place* place, const SlotEdge& edge);
  void AskTakes(const void* end, uint16_t slot, AskStep step, Ask to);
  void Say(uint16_t slot, const Place& place, const std::string& what);

  const SlotEdges& model_;
  const Refuse refuse_;
  SlotEdges taken_;
  uint64_t steps_ = 0;
  std::map<const void*, Slots> asking_;
  std::map<const void*, Slots> serving_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_MODEL_SLOT_REPLAY_H_
