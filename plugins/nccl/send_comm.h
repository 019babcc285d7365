#ifndef TRYST_PLUGINS_NCCL_SEND_COMM_H_
#define TRYST_PLUGINS_NCCL_SEND_COMM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/nccl/comm.h"

namespace tryst::nccl {

// The sending end. A message goes straight into the receive that the peer has announced
// for its tag; a small one that finds none announced goes ahead into a slot of the peer's.
// The k-th send of a tag meets the k-th receive of that tag, whichever way each goes.
class SendComm final : public Comm {
 public:
  SendComm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient,
           uint64_t max_bytes);
  ~SendComm() override { CloseLanes(); }

  absl::Status Prepare();  // Before the lanes.
  RemoteRing announcements() const;
  void TakeWelcome(const Welcome& welcome);

  // Null for "not now".
  Result Send(const void* data, uint64_t bytes, int tag, const RegisteredMemory* memory,
              Request** request);
  Result Test(Request* request, int* done, int* sizes) override;
  void OnImmediate(int lane, uint32_t immediate, uint64_t bytes) override;

 private:
  static constexpr size_t kRequests = kMaxRequests * kMaxGroup;
  struct SendRequest : Request {
    PieceSource source;
    bool busy = false;
    bool taken = false;  // Its bytes, when it was posted.
  };
  struct Group {  // Of receives that the peer has announced.
    uint32_t count = 0;
    uint32_t used = 0;  // A bit for each that has met its send.
  };

  const Announcement& announced(uint32_t sequence) const;
  // The work goes out, and takes the bytes along if they are few and in host memory.
  bool Write(SendWork work, bool on_device, SendRequest* request);
  void TakeAnnouncement(uint32_t slot);
  void SkipUsedGroups();
  bool FindReceive(int tag, uint32_t* sequence, uint32_t* receive);
  SendRequest* FreeRequest();
  bool Done(const SendRequest& request);
  Result SendTo(const AnnouncedReceive& to, uint32_t sequence, uint32_t receive, bool on_device,
                SendRequest* request);
  Result SendAhead(int tag, bool on_device, SendRequest* request);

  const uint64_t max_bytes_;
  std::unique_ptr<Arena> arena_;  // The announcements, then what goes before eager bytes.
  RemoteRing eager_;
  uint32_t eager_bytes_ = 0;

  std::vector<SendRequest> requests_;
  size_t next_request_ = 0;
  std::array<Group, kMaxRequests> groups_;
  uint32_t first_group_ = 0;  // With a receive that is not used.
  uint32_t next_group_ = 0;   // To be announced.
  uint64_t eager_sent_ = 0;
  uint64_t eager_freed_ = 0;
  std::vector<int32_t> unclaimed_;  // Tags sent ahead of any announcement, in order.
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_SEND_COMM_H_
