#ifndef TRYST_CHANNEL_GRPC_OVER_LIST_H_
#define TRYST_CHANNEL_GRPC_OVER_LIST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/grpc/serial_set.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace rpc {
class FetchRequest;
}  // namespace rpc

// What a consumer asked for over gRPC that is over, and not known to be known by the producer.
// What that is to take back, it must hear of before a new request for the same key. Poller thread
// only.
class OverList {
 public:
  using Line = std::pair<int64_t, TensorKey>;  // The step and key of what was asked.

  // `serial` is over; the producer may know of it, if `known`, and has it back unless delivered.
  void Add(uint64_t serial, Line line, bool known, bool delivered);
  // What a request of that line must say is over; empty or one.
  std::vector<uint64_t> LeftOf(const Line& line) const;
  // Says of `first` what is over in any case, and of `most` in all.
  void Fill(rpc::FetchRequest* request, int most, const std::vector<uint64_t>& first,
            std::vector<uint64_t>* told);
  // The producer has read what a request said.
  void Forget(const std::vector<uint64_t>& told);
  size_t unwanted() const { return unwanted_.size(); }
  // Tables that were large and hold nothing give their memory back.
  void Shrink(size_t most_empty) {
    if (left_.empty() && left_.capacity() > most_empty) left_ = {};
  }

 private:
  SerialSet over_;
  std::vector<uint64_t> delivered_;  // Sorted.
  std::map<uint64_t, Line> unwanted_;
  absl::flat_hash_map<Line, uint64_t> left_;  // The last unwanted of a key.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_OVER_LIST_H_
