#ifndef TRYST_PLUGINS_NCCL_SEND_COMM_H_
#define TRYST_PLUGINS_NCCL_SEND_COMM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/nccl/comm.h"

namespace tryst::nccl {

// The sending end. A message is written straight into the receive that the peer has announced for
// its tag. A small one without an announced receive goes eagerly into a slot at the peer. The k-th
// send of a tag always meets the k-th receive of that tag, whichever way each travels.
class SendComm final : public Comm {
 public:
  SendComm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient,
           uint64_t max_bytes);
  ~SendComm() override { CloseLanes(); }

  absl::Status Prepare();  // Call it before the lanes open.
  RemoteRing announcements() const;
  void TakeWelcome(const Welcome& welcome);

  // A null request means "not now".
  Result Send(const void* data, uint64_t bytes, int tag, const RegisteredMemory* memory,
              Request** request);
  Result Test(Request* request, int* done, int* sizes) override;
  void OnImmediate(int lane, uint32_t immediate, uint64_t bytes) override;

 private:
  static constexpr size_t kRequests = kMaxRequests * kMaxGroup;
  struct SendRequest : Request {
    PieceSource source;
    bool busy = false;
    bool taken = false;  // The bytes were copied when it was posted.
  };
  struct Group {  // A group of receives that the peer has announced.
    uint32_t count = 0;
    uint32_t used = 0;  // A bit for each receive that a send has met.
  };

  const Announcement& announced(uint32_t sequence) const;
  // Posts the work. Few bytes in host memory are copied at once.
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
  std::unique_ptr<Arena> arena_;  // The announcements, then the headers of eager messages.
  RemoteRing eager_;
  uint32_t eager_bytes_ = 0;

  std::vector<SendRequest> requests_;
  size_t next_request_ = 0;
  std::array<Group, kMaxRequests> groups_;
  uint32_t first_group_ = 0;  // The first group with an unused receive.
  uint32_t next_group_ = 0;   // The next group to be announced.
  uint64_t eager_sent_ = 0;
  uint64_t eager_freed_ = 0;
  // The tags of eager messages whose receives are not announced yet, in order.
  std::vector<int32_t> unclaimed_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_SEND_COMM_H_
