#ifndef TRYST_SERVER_REGIONS_REGION_H_
#define TRYST_SERVER_REGIONS_REGION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor.h"
#include "server/server.h"

namespace tryst {

struct RegionOptions {
  // Workers' names, or their beginnings up to a '/': who may fetch of it. Empty: every worker that
  // may receive from this one. The setting `allow` holds too.
  std::vector<std::string> readers;
  // What answers may hold together until they are sent, and of one peer. Asks wait for it in line.
  uint64_t answer_bytes = 256 << 20;
  uint64_t answer_bytes_of_peer = 128 << 20;
};

// Memory that its owner has opened under a name: peers fetch selections of it (region_fetch.h), any
// number of times, and nothing is sent. Each answer is a copy that this worker makes when it is
// asked, on the server's own threads, so one that is slow holds a copy. A process of this host and
// user may copy by itself, under a grant (grant_book.h). What is written there meanwhile may be
// torn. Thread-safe. The server outlives it.
class Region {
 public:
  // kInvalidArgument: the name (region_asks.h), a reader's name; memory that is not the host's, or
  // strings. kAlreadyExists: a region of that name is open. kFailedPrecondition: the server has not
  // started.
  static absl::StatusOr<std::unique_ptr<Region>> Open(Server* server, absl::string_view name,
                                                      const Tensor& memory,
                                                      const RegionOptions& options);
  // As Close(), and waits until nothing reads the memory.
  ~Region();

  // Answers nobody any more (kUnavailable). `closed` runs once, when no answer reads the memory;
  // perhaps in here, and at the latest after the copy of kMaxAskBytes that is being made. No peer
  // can delay it. What a peer copies by itself from now on does not count, and it asks.
  void Close(absl::AnyInvocable<void() &&> closed);
  // True: Close() was called and nothing reads the memory. Waits up to `timeout` for that.
  bool AwaitClosed(absl::Duration timeout);

  const std::string& name() const { return name_; }
  // That answers had. What peers copy under grants does not count; who wants digests always asks.
  uint64_t bytes_sent() const;

 private:
  class Answers;
  struct Fence;

  Region(Server* server, std::string name, std::shared_ptr<Answers> answers,
         std::shared_ptr<Fence> fence);

  Server* const server_;
  const std::string name_;
  const std::shared_ptr<Answers> answers_;
  const std::shared_ptr<Fence> fence_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_REGION_H_
