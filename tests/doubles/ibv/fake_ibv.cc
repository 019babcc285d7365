#include "tests/doubles/ibv/fake_ibv.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace tryst {

struct FakeIbv::Context {
  verbs_context extended = {};
  FakeIbv* owner = nullptr;
  Device* device = nullptr;
  int event_pipe[2] = {-1, -1};
  std::deque<ibv_async_event> events;
  ibv_pd domain = {};
};

namespace {

struct FakeChannel {
  ibv_comp_channel verbs = {};
  int write_end = -1;
  FakeIbv::Queue* queue = nullptr;
};

template <typename Outer, typename Inner>
Outer* Containing(Inner* inner) {
  // Each fake object begins with the real struct.
  return reinterpret_cast<Outer*>(inner);
}

void MakePipe(int ends[2]) { TRYST_CHECK(pipe(ends) == 0); }
void WriteByte(int fd) { TRYST_CHECK(write(fd, "x", 1) == 1); }

ibv_wc Flushed(uint64_t id, uint32_t number) {
  ibv_wc work = {};
  work.wr_id = id;
  work.status = IBV_WC_WR_FLUSH_ERR;
  work.qp_num = number;
  return work;
}

ibv_wc_opcode OpcodeOf(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace

// The calls that verbs.h makes through the context's table.
struct FakeIbvEntry {
  static FakeIbv* OwnerOf(ibv_context* context) { return FakeIbv::Of(context)->owner; }

  static int PollCq(ibv_cq* queue, int room, ibv_wc* out) {
    FakeIbv* const owner = OwnerOf(queue->context);
    if (owner->Failing("ibv_poll_cq") != 0) return -owner->Failing("ibv_poll_cq");
    auto* const fake = Containing<FakeIbv::Queue>(queue);
    int count = 0;
    while (count < room && !fake->done.empty()) {
      out[count++] = fake->done.front();
      fake->done.pop_front();
    }
    return count;
  }

  static int ReqNotifyCq(ibv_cq* queue, int) {
    Containing<FakeIbv::Queue>(queue)->armed = true;
    return OwnerOf(queue->context)->Failing("ibv_req_notify_cq");
  }

  static int PostSend(ibv_qp* pair, ibv_send_wr* work, ibv_send_wr** refused) {
    FakeIbv* const owner = OwnerOf(pair->context);
    auto* const fake = Containing<FakeIbv::QueuePair>(pair);
    ++fake->doorbells;
    int error = owner->Failing("ibv_post_send");
    for (; work != nullptr; work = work->next) {
      if (owner->refuse_after_ == 0) error = ENOMEM;
      if (error != 0) {
        owner->refuse_after_ = -1;
        *refused = work;
        return error;
      }
      if (owner->refuse_after_ > 0) --owner->refuse_after_;
      FakeIbv::PostedSend posted;
      posted.work = *work;
      posted.entries.assign(work->sg_list, work->sg_list + work->num_sge);
      posted.doorbell = fake->doorbells;
      fake->history.push_back(posted);
      fake->sends.push_back(std::move(posted));
    }
    owner->refuse_after_ = -1;
    if (pair->state == IBV_QPS_ERR) owner->Flush(fake);
    if (owner->on_posted_) owner->on_posted_(fake);
    return 0;
  }

  static int PostReceive(ibv_qp* pair, ibv_recv_wr* work, ibv_recv_wr** refused) {
    FakeIbv* const owner = OwnerOf(pair->context);
    auto* const fake = Containing<FakeIbv::QueuePair>(pair);
    if (owner->Failing("ibv_post_recv") != 0) {
      *refused = work;
      return owner->Failing("ibv_post_recv");
    }
    // Only the next break flushes them, as in Soft-RoCE.
    for (; work != nullptr; work = work->next) fake->receives.push_back(work->wr_id);
    return 0;
  }
};

FakeIbv::FakeIbv() = default;
FakeIbv::~FakeIbv() = default;

FakeIbv::Context* FakeIbv::Of(ibv_context* context) {
  return Containing<Context>(verbs_get_ctx(context));
}

ibv_gid_entry FakeIbv::Gid(uint32_t index, const std::string& address, uint32_t type) {
  ibv_gid_entry entry = {};
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = type;
  in_addr ipv4;
  if (inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
    std::memcpy(entry.gid.raw + 12, &ipv4, sizeof(ipv4));
  } else {
    TRYST_CHECK(inet_pton(AF_INET6, address.c_str(), entry.gid.raw) == 1);
  }
  return entry;
}

FakeIbv::Device& FakeIbv::AddDevice(const std::string& name) {
  devices_.emplace_back();
  Device& device = devices_.back();
  std::strncpy(device.verbs.name, name.c_str(), sizeof(device.verbs.name) - 1);
  device.verbs.node_type = IBV_NODE_CA;
  device.verbs.transport_type = IBV_TRANSPORT_IB;
  device.attributes.phys_port_cnt = 1;
  device.attributes.max_qp_wr = 1024;
  device.attributes.max_sge = 8;
  device.attributes.max_cqe = 4096;
  device.attributes.max_qp_rd_atom = 32;
  device.attributes.max_qp_init_rd_atom = 8;
  Port port;
  port.attributes.state = IBV_PORT_ACTIVE;
  port.attributes.active_mtu = IBV_MTU_4096;
  port.attributes.max_mtu = IBV_MTU_4096;
  port.attributes.max_msg_sz = 1u << 30;
  port.attributes.gid_tbl_len = 16;
  port.attributes.active_width = 1;
  port.attributes.active_speed = 32;
  port.attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.gids = {Gid(0, "fe80::1", IBV_GID_TYPE_ROCE_V2), Gid(1, "10.0.0.1", IBV_GID_TYPE_ROCE_V2)};
  device.ports = {port};
  return device;
}

int FakeIbv::Failing(const std::string& call) const {
  const auto found = failures_.find(call);
  return found == failures_.end() ? 0 : found->second;
}

template <typename T>
T* FakeIbv::Null(int error) {
  errno = error;
  return nullptr;
}

void FakeIbv::Flush(QueuePair* pair) {
  for (const PostedSend& send : pair->sends) {
    pair->queue->done.push_back(Flushed(send.work.wr_id, pair->verbs.qp_num));
  }
  for (const uint64_t id : pair->receives) {
    pair->queue->done.push_back(Flushed(id, pair->verbs.qp_num));
  }
  pair->sends.clear();
  pair->receives.clear();
}

std::vector<FakeIbv::QueuePair*> FakeIbv::queue_pairs() {
  std::vector<QueuePair*> all;
  for (const auto& pair : pairs_) all.push_back(pair.get());
  return all;
}

void FakeIbv::CompleteSends(QueuePair* pair, int count, ibv_wc_status status) {
  for (; count > 0; --count) {
    const PostedSend send = pair->sends.front();
    pair->sends.pop_front();
    if (status == IBV_WC_SUCCESS && !(send.work.send_flags & IBV_SEND_SIGNALED)) continue;
    ibv_wc work = {};
    work.wr_id = send.work.wr_id;
    work.status = status;
    work.opcode = OpcodeOf(send.work.opcode);
    work.qp_num = pair->verbs.qp_num;
    work.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x81;
    pair->queue->done.push_back(work);
  }
}

void FakeIbv::CompleteReceive(QueuePair* pair, ibv_wc_opcode opcode, uint32_t bytes,
                              uint32_t immediate) {
  ibv_wc work = {};
  work.wr_id = pair->receives.front();
  pair->receives.pop_front();
  work.opcode = opcode;
  work.byte_len = bytes;
  work.qp_num = pair->verbs.qp_num;
  work.wc_flags = IBV_WC_WITH_IMM;
  work.imm_data = htonl(immediate);
  pair->queue->done.push_back(work);
}

void FakeIbv::RaiseEvent(ibv_event_type type, int port, QueuePair* pair) {
  TRYST_CHECK(contexts_.size() == 1);
  ibv_async_event event = {};
  event.event_type = type;
  if (pair != nullptr) {
    event.element.qp = &pair->verbs;
  } else {
    event.element.port_num = port;
  }
  contexts_[0]->events.push_back(event);
  WriteByte(contexts_[0]->event_pipe[1]);
}

void FakeIbv::RaiseCompletionEvent() {
  for (const auto& pair : pairs_) WriteByte(pair->queue->event_pipe[1]);
}

IbvCalls FakeIbv::Calls() {
  IbvCalls calls;
  FillDeviceCalls(&calls);
  FillMemoryCalls(&calls);
  FillQueueCalls(&calls);
  FillPairCalls(&calls);
  FillEventCalls(&calls);
  return calls;
}

void FakeIbv::FillDeviceCalls(IbvCalls* calls) {
  calls->get_device_list = [this](int* count) -> ibv_device** {
    if (Failing("ibv_get_device_list") != 0)
      return Null<ibv_device*>(Failing("ibv_get_device_list"));
    list_.clear();
    for (Device& device : devices_) list_.push_back(&device.verbs);
    list_.push_back(nullptr);
    *count = static_cast<int>(devices_.size());
    ++live_;
    return list_.data();
  };
  calls->free_device_list = [this](ibv_device**) { --live_; };
  calls->open_device = [this](ibv_device* device) -> ibv_context* {
    if (Failing("ibv_open_device") != 0) return Null<ibv_context>(Failing("ibv_open_device"));
    auto* const context = new Context();
    context->owner = this;
    context->device = Containing<Device>(device);
    MakePipe(context->event_pipe);
    ibv_context& verbs = context->extended.context;
    context->extended.sz = sizeof(verbs_context);
    verbs.device = device;
    verbs.abi_compat = __VERBS_ABI_IS_EXTENDED;
    verbs.async_fd = context->event_pipe[0];
    verbs.num_comp_vectors = 2;
    verbs.ops.poll_cq = FakeIbvEntry::PollCq;
    verbs.ops.req_notify_cq = FakeIbvEntry::ReqNotifyCq;
    verbs.ops.post_send = FakeIbvEntry::PostSend;
    verbs.ops.post_recv = FakeIbvEntry::PostReceive;
    contexts_.push_back(context);
    ++live_;
    return &verbs;
  };
  calls->close_device = [this](ibv_context* verbs) {
    Context* const context = Of(verbs);
    for (const int fd : context->event_pipe) close(fd);
    for (auto it = contexts_.begin(); it != contexts_.end(); ++it) {
      if (*it != context) continue;
      contexts_.erase(it);
      break;
    }
    delete context;
    --live_;
    return Failing("ibv_close_device");
  };
  calls->query_device = [this](ibv_context* context, ibv_device_attr* out) {
    *out = Of(context)->device->attributes;
    return Failing("ibv_query_device");
  };
  calls->query_port = [this](ibv_context* context, uint8_t port, ibv_port_attr* out) {
    const Device& device = *Of(context)->device;
    if (port == 0 || port > device.ports.size()) return EINVAL;
    *out = device.ports[port - 1].attributes;
    return Failing("ibv_query_port");
  };
  calls->query_gid = [](ibv_context* context, uint8_t port, int index, union ibv_gid* out) {
    for (const ibv_gid_entry& entry : Of(context)->device->ports[port - 1].gids) {
      if (entry.gid_index != static_cast<uint32_t>(index)) continue;
      *out = entry.gid;
      return 0;
    }
    *out = {};
    return 0;
  };
  calls->query_gid_table = [this](ibv_context* context, ibv_gid_entry* out,
                                  size_t room) -> ssize_t {
    if (Failing("_ibv_query_gid_table") != 0) return -Failing("_ibv_query_gid_table");
    size_t count = 0;
    const Device& device = *Of(context)->device;
    for (size_t port = 0; port < device.ports.size(); ++port) {
      for (ibv_gid_entry entry : device.ports[port].gids) {
        entry.port_num = static_cast<uint32_t>(port + 1);
        if (count < room) out[count++] = entry;
      }
    }
    return static_cast<ssize_t>(count);
  };
}

void FakeIbv::FillMemoryCalls(IbvCalls* calls) {
  calls->alloc_pd = [this](ibv_context* context) -> ibv_pd* {
    if (Failing("ibv_alloc_pd") != 0) return Null<ibv_pd>(Failing("ibv_alloc_pd"));
    ++live_;
    Of(context)->domain.context = context;
    return &Of(context)->domain;
  };
  calls->dealloc_pd = [this](ibv_pd*) {
    --live_;
    return Failing("ibv_dealloc_pd");
  };
  const auto register_region = [this](ibv_pd* domain, void* address, size_t bytes, unsigned access,
                                      bool optional, int dma_buf_fd,
                                      uint64_t dma_buf_offset) -> ibv_mr* {
    Region region;
    region.verbs.context = domain->context;
    region.verbs.pd = domain;
    region.verbs.addr = address;
    region.verbs.length = bytes;
    region.verbs.lkey = ++next_key_;
    region.verbs.rkey = ++next_key_;
    region.access = access;
    region.with_optional_rights = optional;
    region.dma_buf_fd = dma_buf_fd;
    region.dma_buf_offset = dma_buf_offset;
    const int refused = on_register_ ? on_register_(region) : 0;
    if (refused != 0) return Null<ibv_mr>(refused);
    regions_.push_back(region);
    ++live_;
    return &regions_.back().verbs;
  };
  calls->reg_mr = [=](ibv_pd* domain, void* address, size_t bytes, int access) -> ibv_mr* {
    if (Failing("ibv_reg_mr") != 0) return Null<ibv_mr>(Failing("ibv_reg_mr"));
    return register_region(domain, address, bytes, static_cast<unsigned>(access), false, -1, 0);
  };
  calls->reg_mr_iova2 = [=](ibv_pd* domain, void* address, size_t bytes, uint64_t,
                            unsigned access) -> ibv_mr* {
    if (Failing("ibv_reg_mr_iova2") != 0) return Null<ibv_mr>(Failing("ibv_reg_mr_iova2"));
    return register_region(domain, address, bytes, access, true, -1, 0);
  };
  calls->reg_dmabuf_mr = [=](ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t base, int fd,
                             int access) -> ibv_mr* {
    if (Failing("ibv_reg_dmabuf_mr") != 0) return Null<ibv_mr>(Failing("ibv_reg_dmabuf_mr"));
    if (fd < 0) return Null<ibv_mr>(EBADF);
    return register_region(domain, reinterpret_cast<void*>(base), bytes,
                           static_cast<unsigned>(access), false, fd, offset);
  };
  calls->dereg_mr = [this](ibv_mr* region) {
    regions_.remove_if([region](const Region& each) { return &each.verbs == region; });
    --live_;
    return Failing("ibv_dereg_mr");
  };
}

void FakeIbv::FillQueueCalls(IbvCalls* calls) {
  calls->create_comp_channel = [this](ibv_context* context) -> ibv_comp_channel* {
    if (Failing("ibv_create_comp_channel") != 0) {
      return Null<ibv_comp_channel>(Failing("ibv_create_comp_channel"));
    }
    auto* const channel = new FakeChannel();
    int ends[2];
    MakePipe(ends);
    channel->verbs.context = context;
    channel->verbs.fd = ends[0];
    channel->write_end = ends[1];
    ++live_;
    return &channel->verbs;
  };
  calls->destroy_comp_channel = [this](ibv_comp_channel* verbs) {
    auto* const channel = Containing<FakeChannel>(verbs);
    close(channel->verbs.fd);
    close(channel->write_end);
    delete channel;
    --live_;
    return Failing("ibv_destroy_comp_channel");
  };
  calls->create_cq = [this](ibv_context* context, int depth, void*, ibv_comp_channel* channel,
                            int) -> ibv_cq* {
    if (Failing("ibv_create_cq") != 0) return Null<ibv_cq>(Failing("ibv_create_cq"));
    auto* const queue = new Queue();
    queue->verbs.context = context;
    queue->verbs.channel = channel;
    queue->verbs.cqe = depth;
    if (channel != nullptr) {
      Containing<FakeChannel>(channel)->queue = queue;
      queue->event_pipe[1] = Containing<FakeChannel>(channel)->write_end;
    }
    ++live_;
    return &queue->verbs;
  };
  calls->destroy_cq = [this](ibv_cq* queue) {
    delete Containing<Queue>(queue);
    --live_;
    return Failing("ibv_destroy_cq");
  };
  calls->get_cq_event = [this](ibv_comp_channel* channel, ibv_cq** queue, void**) {
    if (Failing("ibv_get_cq_event") != 0) {
      errno = Failing("ibv_get_cq_event");
      return -1;
    }
    char byte;
    if (read(channel->fd, &byte, 1) != 1) return -1;
    *queue = &Containing<FakeChannel>(channel)->queue->verbs;
    ++unacknowledged_events_;
    return 0;
  };
  calls->ack_cq_events = [this](ibv_cq*, unsigned count) {
    unacknowledged_events_ -= static_cast<int>(count);
  };
}

void FakeIbv::FillPairCalls(IbvCalls* calls) {
  calls->create_qp = [this](ibv_pd* domain, ibv_qp_init_attr* attributes) -> ibv_qp* {
    if (Failing("ibv_create_qp") != 0) return Null<ibv_qp>(Failing("ibv_create_qp"));
    if (attributes->cap.max_inline_data > Of(domain->context)->device->max_inline_bytes) {
      return Null<ibv_qp>(EINVAL);
    }
    std::unique_ptr<QueuePair> pair(new QueuePair());
    pair->owner = this;
    pair->verbs.context = domain->context;
    pair->verbs.pd = domain;
    pair->verbs.qp_num = next_number_++;
    pair->verbs.state = IBV_QPS_RESET;
    pair->queue = Containing<Queue>(attributes->send_cq);
    pair->asked = attributes->cap;
    pairs_.push_back(std::move(pair));
    ++live_;
    return &pairs_.back()->verbs;
  };
  calls->modify_qp = [this](ibv_qp* verbs, ibv_qp_attr* attributes, int mask) {
    if (Failing("ibv_modify_qp") != 0) return Failing("ibv_modify_qp");
    auto* const pair = Containing<QueuePair>(verbs);
    pair->modified.push_back(*attributes);
    pair->masks.push_back(mask);
    verbs->state = attributes->qp_state;
    if (verbs->state == IBV_QPS_ERR) Flush(pair);
    return 0;
  };
  calls->destroy_qp = [this](ibv_qp* verbs) {
    const int error = Failing("ibv_destroy_qp");
    pairs_.remove_if(
        [verbs](const std::unique_ptr<QueuePair>& each) { return &each->verbs == verbs; });
    --live_;
    return error;
  };
  calls->query_ece = [this](ibv_qp* pair, ibv_ece* out) {
    *out = Of(pair->context)->device->extensions;
    if (Failing("ibv_query_ece") != 0) return Failing("ibv_query_ece");
    return out->vendor_id == 0 ? EOPNOTSUPP : 0;
  };
  calls->set_ece = [this](ibv_qp* pair, ibv_ece* options) {
    Containing<QueuePair>(pair)->agreed = *options;
    return Failing("ibv_set_ece");
  };
}

void FakeIbv::FillEventCalls(IbvCalls* calls) {
  calls->get_async_event = [this](ibv_context* verbs, ibv_async_event* out) {
    if (Failing("ibv_get_async_event") != 0) {
      errno = Failing("ibv_get_async_event");
      return -1;
    }
    Context* const context = Of(verbs);
    char byte;
    if (read(verbs->async_fd, &byte, 1) != 1) return -1;
    *out = context->events.front();
    context->events.pop_front();
    ++unacknowledged_events_;
    return 0;
  };
  calls->ack_async_event = [this](ibv_async_event*) { --unacknowledged_events_; };
}

}  // namespace tryst
