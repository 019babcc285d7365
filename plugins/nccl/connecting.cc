#include "plugins/nccl/connecting.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/nccl/logger.h"

namespace tryst::nccl {
namespace {

constexpr size_t kMaxPending = 64;
constexpr int64_t kGreetingNs = 10'000'000'000;

bool SecretsEqual(const Secret& a, const Secret& b) {
  uint8_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<uint8_t>(a[i] ^ b[i]);
  return differ == 0;
}

bool IsForWantOfRoom(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// Without a free descriptor the kernel does not even look whether there is anybody.
bool SomebodyKnocks(int listener) {
  pollfd waits = {listener, POLLIN, 0};
  return poll(&waits, 1, 0) == 1;
}

std::string PathText(const Engine& engine, const CommDevice& device, size_t lanes) {
  std::string text = absl::StrCat(DeviceKindName(device.kind), ", ", lanes, " lanes over ",
                                  device.rails.size(), device.rails.size() == 1 ? " NIC" : " NICs");
  if (device.patient()) {
    absl::StrAppend(&text, ", moved by NCCL's thread and ", engine.workers.size(), " of ours");
  }
  return text;
}

}  // namespace

Connecting::Connecting(Engine* engine, CommDevice device, const Handle& handle)
    : engine_(engine), device_(std::move(device)), handle_(handle) {}

absl::Status Connecting::Start() {
  if (handle_.magic != Handle::kMagic || handle_.version != kWireVersion) {
    return absl::FailedPreconditionError(
        "the other rank runs another version of the plugin: every rank must load the same one "
        "(tryst doctor --nccl)");
  }
  if (handle_.kind != device_.kind) {
    return absl::FailedPreconditionError(
        absl::StrCat("the other rank listens by ", DeviceKindName(handle_.kind),
                     ", and this rank has ", device_.name, ", which is ",
                     DeviceKindName(device_.kind), ": set TRYST_NCCL_NIC alike on every machine"));
  }
  absl::StatusOr<SocketAddress> address = SocketAddress::Parse(
      std::string(handle_.address, strnlen(handle_.address, sizeof(handle_.address))));
  if (!address.ok()) return address.status();
  Fd fd = address->Dial();
  if (!fd.valid()) return absl::UnavailableError(strerror(errno));
  socket_ = std::make_unique<ControlSocket>(std::move(fd));
  comm_ = std::make_unique<SendComm>(engine_, device_.name, device_.rails, device_.patient(),
                                     device_.max_bytes);
  const absl::Status prepared = comm_->Prepare();
  if (!prepared.ok()) return prepared;
  comm_->OpenLanes(Comm::LanesWanted(*engine_, device_.rails.size(), device_.patient()));
  state_ = State::kOpening;
  return absl::OkStatus();
}

absl::Status Connecting::TakeWelcome(const std::string& bytes) {
  absl::StatusOr<Welcome> welcome = DecodeWelcome(bytes);
  if (!welcome.ok()) return welcome.status();
  if (!welcome->refusal.empty()) {
    return absl::UnavailableError(
        absl::StrCat(welcome->name.ToString(), " refuses the connection: ", welcome->refusal));
  }
  if (welcome->lanes.size() > comm_->lanes()) {
    return absl::DataLossError(
        "the other rank broke the protocol: it accepts more connections than it was offered");
  }
  comm_->TakeWelcome(*welcome);
  comm_->Watch(socket_->Take(), welcome->name);
  comm_->ConnectLanes(welcome->lanes, welcome->rails, /*probe=*/true);
  LogDecision(absl::StrCat(device_.name, " sends to ", welcome->name.ToString(), " by ",
                           PathText(*engine_, device_, comm_->lanes()), "; messages up to ",
                           welcome->eager_bytes, " bytes go ahead of their receives"));
  return absl::OkStatus();
}

absl::Status Connecting::Explain(const absl::Status& why) const {
  return absl::Status(
      why.code(),
      absl::StrCat(device_.name, " cannot connect to ",
                   std::string(handle_.address, strnlen(handle_.address, sizeof(handle_.address))),
                   ": ", why.message()));
}

absl::StatusOr<std::unique_ptr<SendComm>> Connecting::Step() {
  if (state_ == State::kNew) {
    const absl::Status started = Start();
    if (!started.ok()) return Explain(started);
  }
  const absl::Status health = comm_->Health(/*wanting=*/true);
  if (!health.ok()) return Explain(health);
  if (state_ == State::kOpening && comm_->LanesOpen()) {
    Hello hello;
    hello.secret = handle_.secret;
    hello.name = engine_->self;
    hello.name.device = device_.name;
    hello.kind = device_.kind;
    hello.announcements = comm_->announcements();
    hello.lanes = comm_->LaneAddresses();
    socket_->Send(Encode(hello));
    state_ = State::kWelcome;
  }
  if (state_ == State::kWelcome) {
    const absl::StatusOr<bool> flushed = socket_->Flush();
    if (!flushed.ok()) return Explain(flushed.status());
    std::string bytes;
    const absl::StatusOr<bool> came = socket_->Receive(&bytes);
    if (!came.ok()) return Explain(came.status());
    if (!*came) return nullptr;
    const absl::Status taken = TakeWelcome(bytes);
    if (!taken.ok()) return Explain(taken);
    state_ = State::kProving;
  }
  if (state_ != State::kProving) return nullptr;
  comm_->Progress();
  if (!comm_->LanesProven()) return nullptr;
  return std::move(comm_);
}

Accepting::Accepting(Engine* engine, const CommDevice& device, const Secret& secret, Fd socket)
    : engine_(engine),
      device_(device),
      secret_(secret),
      since_ns_(engine->clock.NowNs()),
      socket_(std::move(socket)) {}

absl::Status Accepting::Refuse(const absl::Status& why) {
  Welcome welcome;
  welcome.refusal = std::string(why.message());
  welcome.name = engine_->self;
  welcome.name.device = device_.name;
  socket_.Send(Encode(welcome));
  (void)socket_.Flush();
  return why;
}

absl::Status Accepting::TakeHello(const std::string& bytes) {
  absl::StatusOr<Hello> hello = DecodeHello(bytes);
  if (!hello.ok()) return absl::PermissionDeniedError(hello.status().message());
  if (!SecretsEqual(hello->secret, secret_)) {
    return absl::PermissionDeniedError(
        "a process that is not a rank of this job connected: it does not know this listener's "
        "secret");
  }
  hello_ = *std::move(hello);
  state_ = State::kOpening;
  if (hello_.kind != device_.kind) {
    return Refuse(absl::FailedPreconditionError(absl::StrCat(
        hello_.name.ToString(), " connects by ", DeviceKindName(hello_.kind), " and ", device_.name,
        " is ", DeviceKindName(device_.kind), ": set TRYST_NCCL_NIC alike on every machine")));
  }
  comm_ = std::make_unique<RecvComm>(engine_, device_.name, device_.rails, device_.patient(),
                                     device_.reaches_gpus);
  const absl::Status prepared = comm_->Prepare(hello_);
  if (!prepared.ok()) return Refuse(prepared);
  comm_->OpenLanes(std::min(hello_.lanes.size(),
                            Comm::LanesWanted(*engine_, device_.rails.size(), device_.patient())));
  return absl::OkStatus();
}

absl::Status Accepting::Advance() {
  const absl::Status health = comm_->Health(/*wanting=*/true);
  if (!health.ok()) {
    return state_ == State::kProving ? health : Refuse(health);
  }
  if (state_ == State::kOpening && comm_->LanesOpen()) {
    // Announcements go by the first lane, so their memory at the peer needs only one key.
    hello_.lanes.resize(comm_->lanes());
    comm_->ConnectLanes(hello_.lanes, std::vector<uint8_t>(hello_.lanes.size(), 0),
                        /*probe=*/false);
    state_ = State::kConnecting;
  }
  if (state_ == State::kConnecting && comm_->LanesOpen()) {
    Welcome welcome;
    welcome.name = engine_->self;
    welcome.name.device = device_.name;
    welcome.eager = comm_->eager();
    welcome.eager_bytes = comm_->eager_bytes();
    welcome.lanes = comm_->LaneAddresses();
    for (size_t i = 0; i < welcome.lanes.size(); ++i) {
      welcome.rails.push_back(static_cast<uint8_t>(i % device_.rails.size()));
    }
    socket_.Send(Encode(welcome));
    state_ = State::kWelcoming;
  }
  if (state_ == State::kWelcoming) {
    const absl::StatusOr<bool> flushed = socket_.Flush();
    if (!flushed.ok()) return flushed.status();
    if (!*flushed) return absl::OkStatus();
    comm_->Watch(socket_.Take(), hello_.name);
    state_ = State::kProving;
  }
  if (state_ == State::kProving) comm_->Progress();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RecvComm>> Accepting::Step() {
  if (state_ == State::kHello) {
    std::string bytes;
    const absl::StatusOr<bool> came = socket_.Receive(&bytes);
    if (!came.ok()) return absl::PermissionDeniedError(came.status().message());
    if (!*came) return nullptr;
    const absl::Status taken = TakeHello(bytes);
    if (!taken.ok()) return taken;
  }
  const absl::Status advanced = Advance();
  if (!advanced.ok()) {
    return absl::Status(advanced.code(),
                        absl::StrCat(device_.name, " cannot accept ", hello_.name.ToString(), ": ",
                                     advanced.message()));
  }
  if (state_ != State::kProving || !comm_->LanesProven()) return nullptr;
  LogDecision(absl::StrCat(device_.name, " receives from ", hello_.name.ToString(), " by ",
                           PathText(*engine_, device_, comm_->lanes())));
  return std::move(comm_);
}

absl::StatusOr<std::unique_ptr<Listening>> Listening::Start(Engine* engine, CommDevice device,
                                                            const std::string& host,
                                                            Handle* handle) {
  std::unique_ptr<Listening> listening(new Listening(engine, std::move(device)));
  if (getrandom(listening->secret_.data(), listening->secret_.size(), 0) !=
      static_cast<ssize_t>(listening->secret_.size())) {
    return absl::InternalError("the system gives no random bytes (getrandom)");
  }
  absl::StatusOr<SocketAddress> address = SocketAddress::Parse(absl::StrCat(host, ":0"));
  if (!address.ok()) return address.status();
  absl::StatusOr<Fd> fd = address->Listen();
  if (!fd.ok()) return fd.status();
  listening->listener_ = *std::move(fd);
  absl::StatusOr<SocketAddress> bound = SocketAddress::Of(listening->listener_.get());
  if (!bound.ok()) return bound.status();
  const std::string text = bound->ToString();
  *handle = Handle();
  if (text.size() >= sizeof(handle->address))
    return absl::InternalError("the address of this listener is too long for NCCL's handle");
  memcpy(handle->address, text.c_str(), text.size() + 1);
  handle->kind = listening->device_.kind;
  handle->secret = listening->secret_;
  return listening;
}

absl::StatusOr<std::unique_ptr<RecvComm>> Listening::Accept() {
  while (pending_.size() < kMaxPending) {
    Fd fd = AcceptFrom(listener_.get());
    if (!fd.valid()) {
      const int error = errno;
      if (IsForWantOfRoom(error) && SomebodyKnocks(listener_.get())) {
        return absl::ResourceExhaustedError(
            absl::StrCat(device_.name, " cannot accept a connection: ", strerror(error),
                         "; raise the limit of open files (ulimit -n)"));
      }
      break;
    }
    pending_.emplace_back(engine_, device_, secret_, std::move(fd));
  }
  const int64_t now_ns = engine_->clock.NowNs();
  for (auto it = pending_.begin(); it != pending_.end();) {
    absl::StatusOr<std::unique_ptr<RecvComm>> comm = it->Step();
    const bool silent = !it->greeted() && now_ns - it->since_ns() > kGreetingNs;
    if (comm.ok() && *comm == nullptr && !silent) {
      ++it;
      continue;
    }
    it = pending_.erase(it);
    if (comm.ok() && *comm != nullptr) return comm;
    if (!comm.ok() && !absl::IsPermissionDenied(comm.status())) return comm;
    LogDecision(absl::StrCat(device_.name,
                             ": a process that is no rank of this job connected and was refused: ",
                             comm.ok() ? "it said nothing" : comm.status().message()));
  }
  return nullptr;
}

}  // namespace tryst::nccl
