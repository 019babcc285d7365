#include "verbs/ibv/iwarp_connector.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_status.h"
#include "verbs/start_thread.h"

namespace tryst {
namespace {

constexpr int kBacklog = 1024;
constexpr int kResolveMs = 2000;
constexpr int kCheckMs = 100;

// Software iWARP sends on its TCP connection in the call that posts. If the peer is gone, the
// kernel sends that process a SIGPIPE, which would end it. A handler of the embedder's stays.
void IgnoreBrokenPipes() {
  struct sigaction now = {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      now.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

// The private data of a request: the tokens of the two ends.
struct Request {
  char magic[4] = {'T', 'I', 'W', '1'};
  uint32_t reserved = 0;
  uint64_t to = 0;
  uint64_t from = 0;
};

void Wake(int fd) {
  const uint64_t one = 1;
  if (fd >= 0 && write(fd, &one, sizeof(one)) < 0 && errno != EAGAIN) {
    TRYST_LOG(Error) << "events of an iWARP connection cannot wake a sleeping poller: "
                     << strerror(errno);
  }
}

sockaddr* Raw(sockaddr_storage* address) { return reinterpret_cast<sockaddr*>(address); }

}  // namespace

absl::StatusOr<std::unique_ptr<IwarpConnector>> IwarpConnector::Open(RdmaCmCalls calls,
                                                                     const std::string& device) {
  std::unique_ptr<IwarpConnector> connector(new IwarpConnector(std::move(calls), device));
  const absl::Status status = connector->Listen();
  if (!status.ok()) return status;
  IgnoreBrokenPipes();
  const absl::Status started = StartThread(
      absl::StrCat("iWARP device ", device), [raw = connector.get()] { raw->Run(); },
      &connector->thread_);
  if (!started.ok()) return started;
  return connector;
}

IwarpConnector::~IwarpConnector() {
  if (thread_.joinable()) {
    stopping_.store(true);
    Wake(stir_fd_);
    thread_.join();
  }
  {
    MutexLock lock(&mutex_);
    TRYST_CHECK(links_.empty()) << "iWARP links outlive their device";
  }
  if (listener_ != nullptr) calls_.destroy_id(listener_);
  if (channel_ != nullptr) calls_.destroy_event_channel(channel_);
  if (stir_fd_ >= 0) close(stir_fd_);
}

absl::Status IwarpConnector::Listen() {
  channel_ = calls_.create_event_channel();
  if (channel_ == nullptr) return FromErrno(errno, "rdma_create_event_channel");
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return FromErrno(errno, "fcntl of the connection manager's channel");
  }
  stir_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stir_fd_ < 0) return FromErrno(errno, "eventfd");
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return FromErrno(errno, "getifaddrs");
  // IPv4 first: link-local IPv6 addresses would need the peer's scope.
  bool found = false;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
      const bool usable = one->ifa_addr != nullptr && one->ifa_addr->sa_family == family &&
                          (one->ifa_flags & IFF_UP) != 0;
      found = usable && ListenOn(one->ifa_addr);
    }
  }
  freeifaddrs(all);
  if (found) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("iWARP device ", device_,
                                             ": no address of this machine leads to it; give its ",
                                             "network device one"));
}

bool IwarpConnector::ListenOn(const sockaddr* address) {
  sockaddr_in6 host;
  if (!FromSocketAddress(address, &host) || IN6_IS_ADDR_LINKLOCAL(&host.sin6_addr)) return false;
  host.sin6_port = 0;  // Any.
  sockaddr_storage raw = ToSocketAddress(host);
  rdma_cm_id* id = nullptr;
  if (calls_.create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0) return false;
  if (calls_.bind_addr(id, Raw(&raw)) != 0 || id->verbs == nullptr ||
      device_ != id->verbs->device->name || calls_.listen(id, kBacklog) != 0 ||
      !FromSocketAddress(&id->route.addr.src_addr, &host_)) {
    calls_.destroy_id(id);
    return false;
  }
  listener_ = id;
  return true;
}

std::unique_ptr<IwarpLink> IwarpConnector::Add(uint32_t number, uint64_t token, int wake_fd) {
  auto link = std::make_unique<IwarpLink>();
  link->number_ = number;
  link->token_ = token;
  link->wake_fd_ = wake_fd;
  MutexLock lock(&mutex_);
  links_[token] = link.get();
  return link;
}

absl::Status IwarpConnector::Connect(IwarpLink* link, const IwarpAddress& peer) {
  MutexLock lock(&mutex_);
  if (peer.token == link->token_) {
    return absl::InvalidArgumentError("a queue pair cannot be connected to itself");
  }
  link->peer_token_ = peer.token;
  link->state_.store(IwarpLink::State::kConnecting, std::memory_order_release);
  Wake(stir_fd_);
  if (link->token_ > peer.token) {
    if (link->waiting_ == nullptr) return absl::OkStatus();
    rdma_cm_id* const request = std::exchange(link->waiting_, nullptr);
    if (link->waiting_from_ == peer.token) {
      Accept(link, request);
    } else {
      Refuse(request);
    }
    return absl::OkStatus();
  }
  sockaddr_in6 from = host_;
  from.sin6_port = 0;
  sockaddr_storage raw_from = ToSocketAddress(from);
  sockaddr_storage raw_to = ToSocketAddress(peer.host);
  if (calls_.create_id(channel_, &link->id_, nullptr, RDMA_PS_TCP) != 0) {
    link->id_ = nullptr;
    return FromErrno(errno, "rdma_create_id");
  }
  by_id_[link->id_] = link;
  if (calls_.resolve_addr(link->id_, Raw(&raw_from), Raw(&raw_to), kResolveMs) == 0) {
    return absl::OkStatus();
  }
  const absl::Status status = FromErrno(errno, "rdma_resolve_addr");
  Drop(&link->id_);
  return status;
}

void IwarpConnector::Remove(IwarpLink* link) {
  MutexLock lock(&mutex_);
  links_.erase(link->token_);
  link->wake_fd_ = -1;
  Drop(&link->id_);
  if (link->waiting_ != nullptr) Refuse(std::exchange(link->waiting_, nullptr));
}

void IwarpConnector::Drop(rdma_cm_id** id) {
  if (*id == nullptr) return;
  by_id_.erase(*id);
  // Events are taken and acknowledged under the mutex, so destroy_id() never waits for one of its
  // own.
  calls_.destroy_id(std::exchange(*id, nullptr));
}

void IwarpConnector::Refuse(rdma_cm_id* id) {
  calls_.reject(id, nullptr, 0);
  calls_.destroy_id(id);
}

void IwarpConnector::SetState(IwarpLink* link, IwarpLink::State state) {
  link->state_.store(state, std::memory_order_release);
  Wake(link->wake_fd_);
}

int IwarpConnector::Ask(rdma_cm_id* id, const IwarpLink& link) {
  Request request;
  request.to = link.peer_token_;
  request.from = link.token_;
  rdma_conn_param parameters = {};
  parameters.private_data = &request;
  parameters.private_data_len = sizeof(request);
  parameters.responder_resources = kReads;
  parameters.initiator_depth = kReads;
  parameters.qp_num = link.number_;
  return calls_.connect(id, &parameters);
}

void IwarpConnector::Accept(IwarpLink* link, rdma_cm_id* id) {
  link->id_ = id;
  by_id_[id] = link;
  rdma_conn_param parameters = {};
  parameters.responder_resources = kReads;
  parameters.initiator_depth = kReads;
  parameters.qp_num = link->number_;
  if (calls_.accept(id, &parameters) != 0) SetState(link, IwarpLink::State::kFailed);
}

void IwarpConnector::OnRequest(rdma_cm_id* id, absl::string_view data) {
  Request request;
  const Request expected;
  if (data.size() < sizeof(request)) return Refuse(id);
  std::memcpy(&request, data.data(), sizeof(request));
  if (std::memcmp(request.magic, expected.magic, sizeof(request.magic)) != 0) return Refuse(id);
  const auto known = links_.find(request.to);
  if (known == links_.end() || known->second->id_ != nullptr) return Refuse(id);
  IwarpLink* const link = known->second;
  if (link->state() == IwarpLink::State::kConnecting && link->peer_token_ == request.from) {
    return Accept(link, id);
  }
  if (link->state() != IwarpLink::State::kIdle) return Refuse(id);
  // Connect() will accept or refuse it. Only one is kept, so that strangers cannot fill memory.
  if (link->waiting_ != nullptr) Refuse(link->waiting_);
  link->waiting_ = id;
  link->waiting_from_ = request.from;
}

void IwarpConnector::OnEvent(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
    return OnRequest(
        event.id,
        absl::string_view(
            static_cast<const char*>(event.param.conn.private_data),
            event.param.conn.private_data == nullptr ? 0 : event.param.conn.private_data_len));
  }
  const auto known = by_id_.find(event.id);
  if (known == by_id_.end()) return;
  IwarpLink* const link = known->second;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (calls_.resolve_route(event.id, kResolveMs) == 0) return;
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (Ask(event.id, *link) == 0) return;
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      return SetState(link, IwarpLink::State::kEstablished);
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      break;
    default:
      return;
  }
  SetState(link, IwarpLink::State::kFailed);
}

void IwarpConnector::TakeEvents() {
  MutexLock lock(&mutex_);
  rdma_cm_event* event = nullptr;
  while (calls_.get_cm_event(channel_, &event) == 0) {
    // Acknowledges the event before it is handled, because handling may destroy the id that it
    // names.
    char data[256];
    rdma_cm_event copy = *event;
    const size_t bytes = copy.param.conn.private_data == nullptr
                             ? 0
                             : static_cast<size_t>(copy.param.conn.private_data_len);
    if (bytes > 0) std::memcpy(data, copy.param.conn.private_data, bytes);
    copy.param.conn.private_data = bytes > 0 ? data : nullptr;
    calls_.ack_cm_event(event);
    OnEvent(copy);
  }
}

bool IwarpConnector::WakeThoseWhoWait() {
  MutexLock lock(&mutex_);
  bool any = false;
  for (const auto& known : links_) {
    if (known.second->state() != IwarpLink::State::kConnecting) continue;
    any = true;
    Wake(known.second->wake_fd_);
  }
  return any;
}

void IwarpConnector::Run() {
  while (!stopping_.load()) {
    // Waiting queue pairs check their own patience, so they are woken now and then.
    const int timeout_ms = WakeThoseWhoWait() ? kCheckMs : -1;
    pollfd waited[] = {{channel_->fd, POLLIN, 0}, {stir_fd_, POLLIN, 0}};
    if (poll(waited, 2, timeout_ms) < 0 && errno != EINTR) {
      TRYST_LOG(Error) << "iWARP device " << device_
                       << " reports no more events, so no connection opens: " << strerror(errno);
      return;
    }
    uint64_t stirs;
    if (waited[1].revents != 0 && read(stir_fd_, &stirs, sizeof(stirs)) < 0) continue;
    if (waited[0].revents != 0) TakeEvents();
  }
}

}  // namespace tryst
