#ifndef TRYST_CHANNEL_RDMA_SHARED_NIC_H_
#define TRYST_CHANNEL_RDMA_SHARED_NIC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/rdma_options.h"
#include "verbs/async_event_thread.h"
#include "verbs/nic.h"

namespace tryst {

// What all transports of one NIC share (each poller has one transport): the memory that tensors
// land in, with one bound, and the events of the NIC's ports.
class SharedNic {
 public:
  // The transport of one poller. Its methods are called on any thread with a lock held, so they may
  // only post.
  class User {
   public:
    virtual ~User() = default;
    // Landing memory was given back after there had been none.
    virtual void TellRoom() = 0;
    // Fetches of another poller wait for room that our standing receives may hold.
    virtual void TellWanted() = 0;
    virtual void TellEvent(const NicEvent& event) = 0;
  };

  SharedNic(NicPath path, uint64_t landing_bytes);
  ~SharedNic();  // REQUIRES: no user is left.
  SharedNic(const SharedNic&) = delete;
  SharedNic& operator=(const SharedNic&) = delete;

  const NicPath& path() const { return path_; }
  Nic* nic() const { return path_.nic.get(); }
  LandingPool* landings() const { return landings_.get(); }

  // ---- Any thread ----
  absl::Status Add(User* user);
  // After this returns, the user is not called any more. Idempotent.
  void Remove(User* user);
  // Delivers events where no thread waits for them, because the NIC's time is virtual.
  void PollEvents();
  void WantRoom(const User* of);

 private:
  void TellEvent(const NicEvent& event);

  const NicPath path_;
  const std::shared_ptr<LandingPool> landings_;
  Mutex mu_;
  std::vector<User*> users_ ABSL_GUARDED_BY(mu_);
  Mutex events_mu_;  // Held while the thread starts and ends.
  // Set while there are users.
  std::unique_ptr<AsyncEventThread> events_ ABSL_GUARDED_BY(events_mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SHARED_NIC_H_
