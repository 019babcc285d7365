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

// A fetch of a device tensor while it is in a line.
class LinedFetch {
 public:
  virtual ~LinedFetch() = default;
  // The fetch is the first of its key. `met`: a tensor that an earlier fetch was told of and did
  // not take is now this fetch's; null: it must ask the producer. It may end, and leave the line,
  // inside the call.
  virtual void OnTurn(const DeviceManifest* met) = 0;

 private:
  friend class FetchLines;
  FetchLine* line_ = nullptr;
  std::list<LinedFetch*>::iterator place_;  // Until its turn comes.
};

// The order of a key whose tensors lie on devices: of the fetches of one key and step one proceeds
// at a time, and the others wait behind it. If a fetch does not take the tensor that it was told
// of, the tensor goes to the next fetch in line, or back to the producer before another fetch asks
// (docs/decisions/0026-order-with-cancels.md). Poller thread only.
class FetchLines {
 public:
  // Tells the producer to put the tensor of a transfer back in its place, and runs `done` once it
  // has, or cannot be reached; not inside the call.
  using GiveBackFn = absl::AnyInvocable<void(const TensorKey& key, uint64_t transfer,
                                             absl::AnyInvocable<void() &&> done)>;

  explicit FetchLines(GiveBackFn give_back) : give_back_(std::move(give_back)) {}

  // May call fetch->OnTurn().
  void Join(int64_t step, const TensorKey& key, LinedFetch* fetch);
  // The fetch has ended, at whatever place in the line. `met`: the tensor that it was told of and
  // has not taken; null: none. `lost`: the producer could not bring that tensor, so it goes back
  // and not to the next fetch.
  void Leave(LinedFetch* fetch, const DeviceManifest* met, bool lost);
  bool empty() const { return lines_.empty(); }

 private:
  void GoOn(FetchLine* line);
  void GiveBack(FetchLine* line, uint64_t transfer);

  GiveBackFn give_back_;
  absl::flat_hash_map<std::pair<int64_t, TensorKey>, FetchLine*> lines_;
  std::deque<FetchLine> all_;  // All that were ever made; addresses stay.
  std::vector<FetchLine*> free_;
};

// A key and step with fetches, or with a tensor that is going back to the producer.
struct FetchLine {
  int64_t step = 0;
  TensorKey key;
  LinedFetch* first = nullptr;  // The fetch that proceeds.
  std::list<LinedFetch*> waiting;
  absl::optional<DeviceManifest> met;  // Met by the former first fetch, for the next one.
  bool gives_back = false;
  bool goes_on = false;  // GoOn() is running.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_FETCH_LINES_H_
