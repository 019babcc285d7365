#include "channel/compat/over_list.h"

#include <algorithm>
#include <utility>

#include "proto/transport.pb.h"

namespace tryst {
namespace {

// How many unwanted fetches of one key the next request for it names. The key's next tensors are
// those of the oldest ones, so it names these, and the newest; a note names all.
constexpr size_t kMaxLeft = 256;

}  // namespace

void OverList::Add(uint64_t serial, Line line, bool known, bool delivered) {
  over_.Insert(serial);
  if (!known) return;
  if (!delivered) {
    auto& left = left_[line];
    if (left.size() == kMaxLeft) left.pop_back();
    left.push_back(serial);
    unwanted_.emplace(serial, std::move(line));
    return;
  }
  if (delivered_.size() == kMaxDelivered) delivered_.pop_front();
  delivered_.insert(std::upper_bound(delivered_.begin(), delivered_.end(), serial), serial);
}

std::vector<uint64_t> OverList::LeftOf(const Line& line) const {
  const auto it = left_.find(line);
  if (it == left_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

void OverList::Fill(rpc::FetchRequest* request, int most, const std::vector<uint64_t>& first,
                    std::vector<uint64_t>* told) {
  uint64_t oldest = over_.below();
  delivered_.erase(delivered_.begin(),
                   std::lower_bound(delivered_.begin(), delivered_.end(), oldest));
  const auto tell = [request, told](uint64_t serial, bool delivered) {
    request->add_over(serial);
    if (!delivered) request->add_unwanted(serial);
    told->push_back(serial);
  };
  for (uint64_t serial : first) tell(serial, false);
  // Unwanted fetches come first: if only `oldest` told of them, they would count as delivered.
  for (const auto& [serial, line] : unwanted_) {
    if (request->over_size() >= most) {
      oldest = std::min(oldest, serial);
      break;
    }
    tell(serial, false);
  }
  for (auto it = delivered_.begin(); it != delivered_.end() && request->over_size() < most; ++it) {
    tell(*it, true);
  }
  request->set_oldest_serial(oldest);
}

void OverList::Forget(const std::vector<uint64_t>& told) {
  for (uint64_t serial : told) {
    const auto delivered = std::lower_bound(delivered_.begin(), delivered_.end(), serial);
    if (delivered != delivered_.end() && *delivered == serial) delivered_.erase(delivered);
    const auto it = unwanted_.find(serial);
    if (it == unwanted_.end()) continue;
    const auto left = left_.find(it->second);
    if (left != left_.end()) {
      auto& serials = left->second;
      serials.erase(std::remove(serials.begin(), serials.end(), serial), serials.end());
      if (serials.empty()) left_.erase(left);
    }
    unwanted_.erase(it);
  }
}

}  // namespace tryst
