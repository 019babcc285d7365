#ifndef TRYST_CHANNEL_OPS_LINK_KIND_H_
#define TRYST_CHANNEL_OPS_LINK_KIND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/channel.h"
#include "channel/ops/fetch_link.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/serve_link.h"

namespace tryst {

class FetchSession;
class ServeSession;

// The sessions whose links are of one kind now, and what all counted while theirs were. Poller
// thread only.
struct FetchingBy {
  std::vector<FetchSession*> sessions;
  FetchCounters past;
};

// A kind of link as its consumers use it. It outlives the sessions.
struct FetchKind {
  std::string path;  // As in Hello: "rdma/soft", "shm".
  std::string open_text = "connected";
  std::function<std::unique_ptr<FetchLink>(FetchSession* session)> make;
  // Fetches that may wait for the peer's Send without a slot. Each costs a FetchAsk here and a
  // ServeTake at the peer.
  uint32_t max_parked = UINT32_MAX;
  bool fetches_in_callbacks = false;  // As Channel has it.
  // How long the report of a cancel waits for the peer's last word, where the caller's memory does
  // not have to. 0: not at all.
  int64_t leave_ns = 0;
  // Between two checks of LinkWatch; 0: an eighth of the patience. Where no word is lost, it asks
  // by another way, too.
  int64_t check_ms = 0;
  bool loses_no_word = false;
  FetchingBy* fetching = nullptr;  // Null: nobody wants to know.
};

// As FetchingBy, of the sessions that serve.
struct ServingBy {
  std::vector<ServeSession*> sessions;
  ServeCounters past;
};

// A kind of link as it is served. It outlives the sessions.
struct ServeKind {
  std::string path;
  std::function<std::unique_ptr<ServeLink>(ServeSession* session)> make;
  ServingBy* serving = nullptr;  // Null: nobody wants to know.
};

// What chooses the kind of link by which a session goes on. The session calls it in any turn of the
// poller.
class KindChooser {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  virtual ~KindChooser() = default;
  // The peer has no link of this kind (`is_refused`), or it has stopped working while the peer is
  // up. Returns the kind by which to go on, perhaps the same; kNone: what was asked is over, and
  // OnGivenUp() follows.
  virtual size_t OnFailed(size_t kind, bool is_refused, const std::string& why) = 0;
  // All that wait, in order: the peer has no kind of link for them.
  virtual void OnGivenUp(std::vector<WaitingFetch> fetches) = 0;
  // A link of this kind works, as a session that probes was to find out.
  virtual void OnUsable() = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_LINK_KIND_H_
