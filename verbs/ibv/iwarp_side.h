#ifndef TRYST_VERBS_IBV_IWARP_SIDE_H_
#define TRYST_VERBS_IBV_IWARP_SIDE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "verbs/ibv/iwarp_connector.h"
#include "verbs/nic.h"

namespace tryst {

// What only a queue pair of an iWARP device has: its link, and the sends that wait for the link,
// because the device takes none before. Used by one thread at a time.
class IwarpSide {
 public:
  enum class Change : uint8_t { kNone, kUp, kLost };

  // `patience`: how long a held send waits for the peer.
  IwarpSide(IwarpConnector* connector, uint32_t number, uint64_t token, int wake_fd,
            std::chrono::nanoseconds patience);
  ~IwarpSide() { Leave(); }

  std::string LocalAddress() const;
  absl::Status Connect(absl::string_view remote_address);
  // Ends the connection, if there is one.
  void Leave();

  // Whether sends may be posted; as of the last Look().
  bool up() const { return up_; }
  // What has changed in the link since the last Look().
  Change Look();

  // Copies the work and its entries; and its bytes, if they must be taken when posted.
  void Hold(const SendWork& work);
  size_t held() const { return held_.size(); }
  // Valid until the next Hold() or Release().
  const SendWork& OldestHeld();
  void Release() { held_.pop_front(); }

 private:
  struct Held {
    SendWork work;
    std::vector<Entry> entries;
    std::vector<uint8_t> bytes;
  };

  IwarpConnector* const connector_;
  const IwarpAddress local_;
  const SteadyClock clock_;
  const std::chrono::nanoseconds patience_;
  std::unique_ptr<IwarpLink> link_;
  bool up_ = false;
  std::deque<Held> held_;
  int64_t held_since_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IWARP_SIDE_H_
