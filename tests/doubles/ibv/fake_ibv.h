#ifndef TRYST_TESTS_DOUBLES_IBV_FAKE_IBV_H_
#define TRYST_TESTS_DOUBLES_IBV_FAKE_IBV_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbs/ibv/ibv_calls.h"

namespace tryst {

// A fake libibverbs for tests: devices with any attributes, works that complete when and as the
// test says, and every call failing on request in the way of the real one. It behaves like
// Soft-RoCE where that is harder to live with than hardware: a destroyed queue pair's completions
// stay in their queue, and receives posted after a break are flushed only by another break.
// Single-threaded.
class FakeIbv {
 public:
  struct Port {
    ibv_port_attr attributes = {};
    std::vector<ibv_gid_entry> gids;
  };
  struct Device {
    ibv_device verbs = {};
    ibv_device_attr attributes = {};
    std::vector<Port> ports;  // ports[0] has the number 1.
    uint32_t max_inline_bytes = 512;
    ibv_ece extensions = {};  // Vendor 0: the driver does not have them.
  };
  // A work as it was posted. Ignore its `next`; `doorbell` counts the post calls.
  struct PostedSend {
    ibv_send_wr work = {};
    std::vector<ibv_sge> entries;
    int doorbell = 0;
  };
  struct QueuePair;
  struct Queue;

  FakeIbv();
  ~FakeIbv();
  FakeIbv(const FakeIbv&) = delete;
  FakeIbv& operator=(const FakeIbv&) = delete;

  // With one active Ethernet port, 25 Gb/s, MTU 4096, and the GIDs fe80::1 and
  // 10.0.0.1 (RoCE v2, index 1).
  Device& AddDevice(const std::string& name);
  static ibv_gid_entry Gid(uint32_t index, const std::string& address, uint32_t type);

  // For the code under test; must not outlive this object.
  IbvCalls Calls();

  // The named call, such as "ibv_modify_qp", fails from now on with this error; 0: it works again.
  void Fail(const std::string& call, int error) { failures_[call] = error; }
  // The next ibv_post_send accepts this many works of the chain, and refuses the rest.
  void RefuseSendsAfter(int count) { refuse_after_ = count; }

  // The queue pairs that the code under test has made, oldest first.
  std::vector<QueuePair*> queue_pairs();
  // How many objects (contexts, domains, regions, ...) are open.
  int live() const { return live_; }

  // Completes the oldest `count` sends; on success an unsignaled one has no completion.
  void CompleteSends(QueuePair* pair, int count, ibv_wc_status status = IBV_WC_SUCCESS);
  void CompleteReceive(QueuePair* pair, ibv_wc_opcode opcode, uint32_t bytes, uint32_t immediate);
  // Puts an event on the descriptor of the only open context.
  void RaiseEvent(ibv_event_type type, int port, QueuePair* pair = nullptr);
  int unacknowledged_events() const { return unacknowledged_events_; }
  // Makes every open completion channel readable.
  void RaiseCompletionEvent();

  struct Region {
    ibv_mr verbs = {};
    unsigned access = 0;
    bool with_optional_rights = false;  // It was made with ibv_reg_mr_iova2.
    // If it was made with ibv_reg_dmabuf_mr, its arguments; otherwise -1.
    int dma_buf_fd = -1;
    uint64_t dma_buf_offset = 0;
  };
  const std::list<Region>& regions() const { return regions_; }
  // Called after each accepted ibv_post_send: a test may move bytes and complete works.
  void OnPosted(std::function<void(QueuePair*)> on_posted) { on_posted_ = std::move(on_posted); }
  // The error for a registration of this address; 0: it works. Empty: all work.
  void OnRegister(std::function<int(const Region&)> on_register) {
    on_register_ = std::move(on_register);
  }

 private:
  struct Context;
  friend struct FakeIbvEntry;
  void FillDeviceCalls(IbvCalls* calls);
  void FillMemoryCalls(IbvCalls* calls);
  void FillQueueCalls(IbvCalls* calls);
  void FillPairCalls(IbvCalls* calls);
  void FillEventCalls(IbvCalls* calls);
  int Failing(const std::string& call) const;
  template <typename T>
  T* Null(int error);
  static Context* Of(ibv_context* context);
  void Flush(QueuePair* pair);

  std::list<Device> devices_;
  std::vector<ibv_device*> list_;
  std::map<std::string, int> failures_;
  int refuse_after_ = -1;
  int live_ = 0;
  int unacknowledged_events_ = 0;
  uint32_t next_number_ = 17;
  uint32_t next_key_ = 0x1000;
  std::vector<Context*> contexts_;
  std::list<std::unique_ptr<QueuePair>> pairs_;
  std::list<Region> regions_;
  std::function<void(QueuePair*)> on_posted_;
  std::function<int(const Region&)> on_register_;
};

struct FakeIbv::Queue {
  ibv_cq verbs = {};
  std::deque<ibv_wc> done;
  bool armed = false;
  int event_pipe[2] = {-1, -1};
};

struct FakeIbv::QueuePair {
  ibv_qp verbs = {};
  FakeIbv* owner = nullptr;
  Queue* queue = nullptr;
  ibv_qp_cap asked = {};
  std::vector<ibv_qp_attr> modified;  // The attributes of each transition.
  std::vector<int> masks;
  ibv_ece agreed = {};
  int doorbells = 0;
  std::vector<PostedSend> history;  // Everything ever posted.
  std::deque<PostedSend> sends;     // Those outstanding.
  std::deque<uint64_t> receives;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_IBV_FAKE_IBV_H_
