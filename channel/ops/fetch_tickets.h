#ifndef TRYST_CHANNEL_OPS_FETCH_TICKETS_H_
#define TRYST_CHANNEL_OPS_FETCH_TICKETS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "channel/ops/fetch_ask.h"

namespace tryst {

// The tickets under which a peer has parked fetches, and those that it must be told to forget.
class FetchTickets {
 public:
  void GiveTo(FetchAsk* ask) {
    if (ask->ticket == 0) ask->ticket = next_++;
  }
  size_t parked() const { return parked_.size(); }
  FetchAsk* Find(uint64_t ticket) const {  // Null: nothing is parked under it.
    const auto found = parked_.find(ticket);
    return found == parked_.end() ? nullptr : found->second;
  }
  void Park(FetchAsk* ask) { parked_.emplace(ask->ticket, ask); }
  void Unpark(const FetchAsk& ask) { parked_.erase(ask.ticket); }
  void Replace(FetchAsk* ask) {  // It has the place of another one.
    const auto found = parked_.find(ask->ticket);
    if (found != parked_.end()) found->second = ask;
  }
  void AddParked(std::vector<FetchAsk*>* asks) const {
    for (const auto& [ticket, ask] : parked_) asks->push_back(ask);
  }

  void Unwant(uint64_t ticket) { unwanted_.push_back(ticket); }
  bool any_unwanted() const { return !unwanted_.empty(); }
  void ForgetUnwanted() { unwanted_.clear(); }
  // Calls `tell` with at most `most` tickets at a time. False: there was no room for all.
  bool TellUnwanted(size_t most, absl::FunctionRef<bool(absl::Span<const uint64_t>)> tell) {
    while (!unwanted_.empty()) {
      const size_t rest = unwanted_.size() - std::min(unwanted_.size(), most);
      if (!tell(absl::MakeConstSpan(unwanted_).subspan(rest))) return false;
      unwanted_.resize(rest);
    }
    return true;
  }

 private:
  absl::flat_hash_map<uint64_t, FetchAsk*> parked_;  // In kParked and kHere.
  std::vector<uint64_t> unwanted_;
  uint64_t next_ = 1;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TICKETS_H_
