#ifndef TRYST_CHANNEL_DEVICE_FETCH_LINES_H_
#define TRYST_CHANNEL_DEVICE_FETCH_LINES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/optional.h"
#include "channel/device/manifest.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct FetchLine;

// A fetch of a device tensor, as its line sees it.
class LinedFetch {
 public:
  virtual ~LinedFetch() = default;
  // It is the first of its key. `met`: what an earlier fetch was told of and did not take is
  // this one's; null: it asks the producer. May end in here, and leave.
  virtual void OnTurn(const DeviceManifest* met) = 0;

 private:
  friend class FetchLines;
  FetchLine* line_ = nullptr;
  std::list<LinedFetch*>::iterator place_;  // Until its turn comes.
};

// The order of a key whose tensors lie on devices: of the fetches of one key and step one goes
// on at a time, and the others wait behind it. What a fetch has met and does not take belongs to
// the next one in line, or goes back to the producer before another one asks
// (docs/decisions/0026-order-with-cancels.md). Poller thread only.
class FetchLines {
 public:
  // Tells the producer to put the tensor of a transfer back in its place, and runs `done` once it
  // has, or cannot be reached; not inside the call.
  using GiveBackFn = absl::AnyInvocable<void(int64_t step, const TensorKey& key, uint64_t transfer,
                                             absl::AnyInvocable<void() &&> done)>;

  explicit FetchLines(GiveBackFn give_back) : give_back_(std::move(give_back)) {}

  // Its turn may come in here.
  void Join(int64_t step, const TensorKey& key, LinedFetch* fetch);
  // It has ended, in whatever place it was. `met`: what it was told of and has not taken; null:
  // nothing. `lost`: the producer could not bring it, so it goes back rather than to the next.
  void Leave(LinedFetch* fetch, const DeviceManifest* met, bool lost);
  bool empty() const { return lines_.empty(); }

 private:
  void GoOn(FetchLine* line);
  void GiveBack(FetchLine* line, uint64_t transfer);

  GiveBackFn give_back_;
  absl::flat_hash_map<std::pair<int64_t, TensorKey>, FetchLine*> lines_;
  std::deque<FetchLine> all_;  // That there ever were; addresses stay.
  std::vector<FetchLine*> free_;
};

// A key of a step with fetches, or with a tensor on its way back.
struct FetchLine {
  int64_t step = 0;
  TensorKey key;
  LinedFetch* first = nullptr;  // Whose turn it is.
  std::list<LinedFetch*> waiting;
  absl::optional<DeviceManifest> met;  // Of the former first, for the next one.
  bool gives_back = false;
  bool goes_on = false;  // GoOn() runs.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_FETCH_LINES_H_
