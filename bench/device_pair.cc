#include "bench/device_pair.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crew.h"
#include "base/log.h"
#include "tests/process/pair/one_step.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

// No process of a bench restarts. A key names the incarnation of its sender, so fetches of it end
// when that process ends.
uint64_t IncarnationOf(int rank) { return 100 + static_cast<uint64_t>(rank); }

void PutText(const std::string& text, std::string* out) {
  const uint32_t bytes = static_cast<uint32_t>(text.size());
  out->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  out->append(text);
}

bool TakeText(absl::string_view* in, std::string* text) {
  uint32_t bytes = 0;
  if (in->size() < sizeof(bytes)) return false;
  memcpy(&bytes, in->data(), sizeof(bytes));
  in->remove_prefix(sizeof(bytes));
  if (in->size() < bytes) return false;
  *text = std::string(in->substr(0, bytes));
  in->remove_prefix(bytes);
  return true;
}

std::string Encode(const Hello& hello) {
  std::string out;
  PutText(hello.worker, &out);
  PutText(absl::StrCat(hello.incarnation), &out);
  PutText(absl::StrCat(hello.epoch), &out);
  PutText(hello.path, &out);
  PutText(hello.parameters, &out);
  for (const std::string& address : hello.queue_pairs) PutText(address, &out);
  return out;
}

Hello Decode(absl::string_view in) {
  Hello hello;
  std::string incarnation;
  std::string epoch;
  const bool whole = TakeText(&in, &hello.worker) && TakeText(&in, &incarnation) &&
                     TakeText(&in, &epoch) && TakeText(&in, &hello.path) &&
                     TakeText(&in, &hello.parameters);
  TRYST_CHECK(whole);
  hello.incarnation = strtoull(incarnation.c_str(), nullptr, 10);
  hello.epoch = strtoull(epoch.c_str(), nullptr, 10);
  std::string address;
  while (TakeText(&in, &address)) hello.queue_pairs.push_back(address);
  return hello;
}

struct Frame {
  uint32_t bytes;
  uint32_t id;
  uint8_t kind;  // 0: hello, 1: its answer, 2: its refusal.
};

PollerOptions SpinFor(int64_t spin_us) {
  PollerOptions options;
  options.spin_us = spin_us;
  return options;
}

std::string WorkerName(int rank) { return absl::StrCat("/job:worker/replica:0/task:", rank); }

}  // namespace

void SocketBootstrap::Start(HelloHandler* handler) {
  handler_ = handler;
  thread_ = std::thread([this] { Loop(); });
}

void SocketBootstrap::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  shutdown(fd_, SHUT_RDWR);
  thread_.join();
}

void SocketBootstrap::Send(uint8_t kind, uint32_t id, const std::string& body) {
  Frame frame{static_cast<uint32_t>(body.size()), id, kind};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
  bytes += body;
  [[maybe_unused]] const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void SocketBootstrap::Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) {
  uint32_t id = 0;
  {
    MutexLock lock(&mu_);
    id = next_id_++;
    waiting_.emplace(id, std::move(done));
  }
  Send(0, id, Encode(hello));
}

void SocketBootstrap::Loop() {
  for (;;) {
    Frame frame{};
    if (recv(fd_, &frame, sizeof(frame), MSG_WAITALL) != sizeof(frame)) break;
    std::string body(frame.bytes, '\0');
    if (recv(fd_, body.data(), body.size(), MSG_WAITALL) != static_cast<ssize_t>(body.size())) {
      break;
    }
    if (frame.kind == 0) {
      handler_->OnHello(Decode(body), [this, id = frame.id](absl::StatusOr<Hello> answer) {
        Send(answer.ok() ? 1 : 2, id,
             answer.ok() ? Encode(*answer) : std::string(answer.status().message()));
      });
      continue;
    }
    HelloDone done;
    {
      MutexLock lock(&mu_);
      auto found = waiting_.find(frame.id);
      TRYST_CHECK(found != waiting_.end());
      done = std::move(found->second);
      waiting_.erase(found);
    }
    if (frame.kind == 1) {
      std::move(done)(Decode(body));
    } else {
      std::move(done)(absl::UnavailableError(body));
    }
  }
  // The peer is gone, so every later request to it fails at once.
  while (!stopping_.load()) {
    std::map<uint32_t, HelloDone> waiting;
    {
      MutexLock lock(&mu_);
      waiting.swap(waiting_);
    }
    for (auto& [id, done] : waiting) std::move(done)(absl::UnavailableError("the peer is gone"));
    usleep(10'000);
  }
}

DeviceEnd::DeviceEnd(const DeviceEndOptions& options)
    : options_(options),
      step_(std::make_unique<OneStep>(&alarms_)),
      poller_(&clock_, SpinFor(options.spin_us)),
      bootstrap_(options.hello_fd) {
  const auto crew = std::make_shared<Crew>(options.helpers);
  SoftNicOptions nic_options;
  nic_options.UseCrew(crew);
  auto nic = OpenSoftNic(nic_options);
  TRYST_CHECK(nic.ok()) << nic.status();
  nic_ = *std::move(nic);
  DeviceProxyOptions proxy_options = options.proxy;
  if (options.shared_memory) proxy_options.engine.arena = Arena::Make(ArenaOptions());
  auto proxy = DeviceProxy::Open(&poller_, {options.gpu}, step_.get(), proxy_options);
  TRYST_CHECK(proxy.ok()) << proxy.status();
  proxy_ = *std::move(proxy);
  TransportsOptions pool;
  pool.self = WorkerName(options.rank);
  pool.incarnation = IncarnationOf(options.rank);
  pool.seed = static_cast<uint64_t>(getpid());
  pool.link.queue_pairs = options.queue_pairs;
  pool.link.digests = false;
  pool.shm_arena = proxy_options.engine.arena;
  pool.shm.crew = crew;
  pool_ = MakeChannelPool(&poller_, &bootstrap_, proxy_->source(),
                          std::vector<NicPath>{{"rdma/soft", nic_}}, nullptr, pool);
  const absl::Status opened = pool_->Open();
  TRYST_CHECK(opened.ok()) << opened;
  proxy_->SetChannels(pool_.get());
  poller_.Start();
  bootstrap_.Start(pool_.get());
}

DeviceEnd::~DeviceEnd() {
  const absl::Status stopped = pool_->Stop(absl::CancelledError("over"), absl::Seconds(20));
  TRYST_CHECK(stopped.ok()) << stopped;
  const absl::Status drained = proxy_->Stop(absl::Seconds(20));
  TRYST_CHECK(drained.ok()) << drained;
  bootstrap_.Stop();
  poller_.Stop();
  step_->step()->StartAbort(absl::CancelledError("over"));
  step_.reset();  // Frees the tensors that were sent and not taken, before the rest.
  proxy_.reset();
  pool_.reset();
}

TensorKey DeviceEnd::Key(int producer_rank, const std::string& edge, uint64_t iteration) {
  auto prefix = TensorKeyPrefix::Make(
      absl::StrCat(WorkerName(producer_rank), "/device:GPU:0"), IncarnationOf(producer_rank),
      absl::StrCat(WorkerName(1 - producer_rank), "/device:GPU:0"), edge);
  TRYST_CHECK(prefix.ok()) << prefix.status();
  return prefix->At(0, iteration);
}

absl::Status DeviceEnd::Send(const TensorKey& key, const Tensor& tensor, cuda::Stream stream,
                             GpuContext::Options options) {
  SendArgs args;
  args.device_context = Context(stream, options);
  return step_->step()->Send(key, args, tensor, false);
}

std::shared_ptr<GpuContext> DeviceEnd::Context(cuda::Stream stream, GpuContext::Options options) {
  auto context = GpuContext::Make(proxy_->engine(options_.gpu->ordinal()), stream, options);
  TRYST_CHECK(context.ok()) << context.status();
  return *std::move(context);
}

std::string DeviceEnd::Explain() {
  std::string out;
  poller_.RunAndWait([&] { out = proxy_->ExplainNow() + pool_->ExplainNow(""); });
  return out;
}

size_t DeviceEnd::TransfersKept() {
  size_t kept = 0;
  poller_.RunAndWait([&] { kept = proxy_->transfers_kept(); });
  return kept;
}

}  // namespace tryst
