#ifndef TRYST_PLUGINS_NCCL_RECV_COMM_H_
#define TRYST_PLUGINS_NCCL_RECV_COMM_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/nccl/comm.h"
#include "plugins/nccl/flusher.h"

namespace tryst::nccl {

// The receiving end: announces each group of receives to the sender, counts the pieces that land in
// them, and copies eager messages to their receives.
class RecvComm final : public Comm {
 public:
  RecvComm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient,
           bool reaches_gpus);
  ~RecvComm() override { CloseLanes(); }

  absl::Status Prepare(const Hello& hello);  // Call it before the lanes open.
  RemoteRing eager() const;
  uint32_t eager_bytes() const { return eager_bytes_; }

  // A null request means "not now".
  Result Receive(int count, void** data, const uint64_t* bytes, const int* tags,
                 RegisteredMemory** memory, Request** request);
  // Makes what has landed visible to a GPU. A null request means that there is nothing to do.
  Result Flush(int count, void** data, const int* bytes, RegisteredMemory** memory,
               Request** request);
  Result Test(Request* request, int* done, int* sizes) override;
  void OnImmediate(int lane, uint32_t immediate, uint64_t bytes) override;

 private:
  struct Receiving {
    uint8_t* data = nullptr;
    uint64_t bytes = 0;
    int tag = 0;
    bool met_eager = false;
    std::atomic<uint64_t> landed{0};
    std::atomic<uint32_t> pieces{0};
  };
  struct Group : Request {
    bool busy = false;
    uint32_t count = 0;
    std::atomic<uint32_t> sequence{0};
    std::atomic<uint32_t> left{0};  // How many of its receives are not complete.
    std::array<Receiving, kMaxGroup> receives;
  };
  struct Parked {  // An eager message whose receive has not been posted.
    uint32_t slot = 0;
    EagerHeader header;
  };
  struct FlushRequest : Request {
    bool busy = false;
    uint64_t ticket = 0;
  };

  void OnPiece(const Immediate& what, uint64_t bytes);
  void OnEager(uint32_t slot);
  bool Deliver(const Parked& message, Group* group);
  void FreeEager(uint32_t slot);
  Announcement* news(uint32_t sequence);
  void Compose(const Group& group, RegisteredMemory** memory);
  // Announces all groups that are not announced. Receive() has made sure of the room.
  void Announce();
  bool WantsMore(const Group& group) const;

  const bool reaches_gpus_;
  uint32_t eager_bytes_ = 0;
  RemoteRing announcements_;
  std::unique_ptr<Arena> arena_;                    // The announcements, then the eager slots.
  std::vector<std::unique_ptr<Flusher>> flushers_;  // For each rail that reaches GPUs.

  std::array<Group, kMaxRequests> groups_;
  uint32_t next_group_ = 0;
  uint32_t next_unsaid_ = 0;  // The first group that is not announced.
  int fruitless_tests_ = 0;   // Tests that found nothing while a group was not announced.
  bool announcement_due_ = false;
  std::vector<Parked> parked_;
  std::array<bool, kEagerSlots> eager_held_ = {};
  uint64_t eager_came_ = 0;
  uint64_t eager_freed_ = 0;
  std::array<FlushRequest, kMaxRequests> flushes_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_RECV_COMM_H_
