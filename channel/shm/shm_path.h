#ifndef TRYST_CHANNEL_SHM_SHM_PATH_H_
#define TRYST_CHANNEL_SHM_SHM_PATH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/poller.h"
#include "channel/shm/arena.h"
#include "channel/shm/fetch_channel.h"
#include "channel/shm/serve_channel.h"
#include "channel/shm/shm_hub.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct ShmPathOptions {
  std::string self;
  uint64_t self_incarnation = 0;
  shm_wire::LinkSizes sizes;
  bool digests = false;              // There is no wire between that could change a bit.
  bool allow_pull = true;            // process_vm_readv, both ways.
  uint64_t stage_bytes = 512 << 20;  // Of the arena, for what one consumer is sent a copy of.
  uint64_t pull_bytes = 64 << 10;    // Into the caller's memory: from here on the consumer reads,
  uint64_t parts_bytes = 64 << 10;   // but from here on both copy, part by part.
  uint32_t max_consumers = 1024;
  int64_t patience_ms = 60'000;      // How long a fetch waits for a producer that does not answer.
  uint32_t max_waiting = 1'000'000;  // Fetches that wait at one producer without a slot.
  int copy_helpers = 0;              // Threads that help with large copies when cores are idle.
  Trace* trace = nullptr;            // Of the poller; may be null.
  uint64_t seed = 1;
  uint32_t link_newest = shm_wire::kLinkNewest;  // The newest version of a link that we speak.
};

// Shared memory as one of the ways between the workers of a process and those of its host:
// makes the consumer's channels and answers the hellos of consumers. Poller thread only,
// but for Create() and destruction.
class ShmPath final : private PollerFlush {
 public:
  // kUnavailable: this system has no shared memory for us.
  static absl::StatusOr<std::unique_ptr<ShmPath>> Create(Poller* poller, Bootstrap* bootstrap,
                                                         TensorSource* source,
                                                         std::shared_ptr<Arena> arena,
                                                         ShmPathOptions options);
  ~ShmPath() override;  // REQUIRES: Drained(), and every fetch channel gone.

  std::unique_ptr<ShmFetchChannel> MakeFetchChannel(const std::string& peer,
                                                    std::function<void()> on_refused,
                                                    std::function<void()> on_open = nullptr);
  // REQUIRES: hello.path is "shm". kUnimplemented, with the reason: not the same host. Answered
  // when all that the consumer's former links had taken is back in its place.
  void OnHello(const Hello& hello, HelloDone done);
  // About once a second: lets go of consumers that have gone, and of unused memory.
  void Maintain();
  void Close(const absl::Status& why);
  bool Drained() const;

  std::string ExplainServing(const std::string& consumer) const;  // All when empty.
  ShmServeCounters serve_counters() const;
  const std::vector<std::unique_ptr<ShmServeChannel>>& serving() const { return serving_; }
  Arena* arena() const { return arena_.get(); }

 private:
  ShmPath(Bootstrap* bootstrap, TensorSource* source, std::shared_ptr<Arena> arena,
          ShmPathOptions options)
      : bootstrap_(bootstrap),
        source_(source),
        arena_(std::move(arena)),
        options_(std::move(options)),
        seed_(options_.seed) {}
  void Reap();
  void AnswerHello(const Hello& hello, const shm_wire::Offer& offer, HelloDone done);
  bool IsDrained(const std::string& consumer) const;
  void Flush() override;  // Answers those who wait.

  // Constant after construction.
  Bootstrap* const bootstrap_;
  TensorSource* const source_;
  const std::shared_ptr<Arena> arena_;
  const ShmPathOptions options_;
  std::unique_ptr<ShmHub> hub_;

  // Poller thread only.
  uint64_t seed_;
  std::vector<std::unique_ptr<ShmServeChannel>> serving_;
  ShmServeCounters counters_;  // Of those that are gone.
  struct WaitingHello {
    Hello hello;
    shm_wire::Offer offer;
    HelloDone done;
  };
  std::vector<WaitingHello> waiting_;  // One of each consumer.
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SHM_PATH_H_
