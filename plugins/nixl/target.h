#ifndef TRYST_PLUGINS_NIXL_TARGET_H_
#define TRYST_PLUGINS_NIXL_TARGET_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "plugins/nixl/memory.h"
#include "plugins/nixl/notes.h"
#include "plugins/nixl/records.h"
#include "plugins/nixl/worker.h"

namespace tryst::nixl {

// What peers want of this agent but its memory: to fetch for their WRITEs, to stop that, to take
// notifications. A question that comes twice, as one does whose path has failed, is done once.
// Thread-safe.
class Target {
 public:
  Target(const Memories* memories, Inbox* inbox) : memories_(memories), inbox_(inbox) {}
  // As Worker::HeardFn.
  void Hear(Worker* worker, const std::string& verb, const PeerName& asker,
            const std::string& record, Ask ask, std::shared_ptr<void> taken);

 private:
  // A WRITE of a peer's that we fetch. Its end is that of its last receive.
  struct Landing {
    std::string peer;
    uint64_t id = 0;
    std::string agent;
    bool has_note = false;
    std::string note;
    Group group;
    std::shared_ptr<void> taken;
    // Guarded by mu_.
    size_t left = 1;  // Receives, and who starts them.
    absl::Status status;
    std::vector<Ask> asks;
    std::vector<Ask> stops;  // Who asked to stop it.
  };
  using LandingRef = std::shared_ptr<Landing>;
  struct Peer {
    std::map<uint64_t, LandingRef> landing;
    // The last ones that have ended, or that were stopped before they came.
    std::map<uint64_t, absl::Status> ended;
    std::deque<uint64_t> order;
    uint64_t last_notes = 0;
  };

  void Land(Worker* worker, const PeerName& asker, Put put, Ask ask, std::shared_ptr<void> taken);
  void Start(Worker* worker, const PeerName& asker, const Put& put, const LandingRef& landing);
  absl::Status StartPart(Worker* worker, const PeerName& asker, const PutPart& part,
                         const LandingRef& landing);
  void EndPart(const LandingRef& landing, const absl::Status& status);
  void Stop(const std::string& peer, uint64_t id, Ask ask);
  void TakeNotes(const std::string& peer, Notes notes, Ask ask, std::shared_ptr<void> taken);
  Peer& PeerAt(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void NoteEnd(Peer* peer, uint64_t id, absl::Status status);

  const Memories* const memories_;
  Inbox* const inbox_;

  Mutex mu_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> peer_order_ ABSL_GUARDED_BY(mu_);  // As they came.
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_TARGET_H_
