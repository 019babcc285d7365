#ifndef TRYST_CHANNEL_COMPAT_OVER_LIST_H_
#define TRYST_CHANNEL_COMPAT_OVER_LIST_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "channel/compat/serial_set.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace rpc {
class FetchRequest;
}  // namespace rpc

// The consumer's fetches over gRPC that have ended, and of which the producer may not know. It must
// hear of a tensor that it has to take back before a new request for the same key. Poller thread
// only.
class OverList {
 public:
  using Line = std::pair<int64_t, TensorKey>;  // The step and key of a request.

  // The fetch `serial` has ended. `known`: the producer may know. Unless `delivered`, the producer
  // has to take its tensor back.
  void Add(uint64_t serial, Line line, bool known, bool delivered);
  // Which ended fetches a request of that line must name.
  std::vector<uint64_t> LeftOf(const Line& line) const;
  // Writes what has ended into `request`: all of `first`, and `most` in total.
  void Fill(rpc::FetchRequest* request, int most, const std::vector<uint64_t>& first,
            std::vector<uint64_t>* told);
  // The producer has read what a request named.
  void Forget(const std::vector<uint64_t>& told);
  size_t unwanted() const { return unwanted_.size(); }
  bool empty() const { return unwanted_.empty() && delivered_.empty(); }
  // So many fetches were delivered that the oldest will be forgotten soon. The producer would then
  // keep them as long as an older fetch waits.
  bool MustBeTold() const { return delivered_.size() >= kMaxDelivered / 2; }
  // Large tables that have become empty release their memory.
  void Shrink(size_t most_empty) {
    if (left_.empty() && left_.capacity() > most_empty) left_ = {};
  }

 private:
  static constexpr size_t kMaxDelivered = 65536;

  SerialSet over_;
  std::deque<uint64_t> delivered_;  // Sorted. The oldest are told, and forgotten, first.
  std::map<uint64_t, Line> unwanted_;
  // The unwanted fetches of a key, in their order.
  absl::flat_hash_map<Line, absl::InlinedVector<uint64_t, 2>> left_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_OVER_LIST_H_
