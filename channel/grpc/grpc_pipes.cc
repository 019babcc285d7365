#include "channel/grpc/grpc_pipes.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/grpc/byte_buffers.h"
#include "channel/grpc/grpc_pipe.h"
#include "channel/grpc/grpc_status.h"
#include "verbs/soft/socket.h"

namespace tryst {
namespace {

constexpr size_t kMostAddressBytes = 200;
constexpr size_t kMostFailures = 1024;  // Peers of which the last one is remembered.
constexpr absl::Duration kLookAgain = absl::Milliseconds(1);

}  // namespace

// Where the calls for one listener wait until it accepts them.
class GrpcPipes::Door {
 public:
  Door() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  int event_fd() const { return event_fd_.get(); }
  // Leaves it, which ends its call, where kMostWaiting are waiting.
  void Add(std::unique_ptr<SoftPipe> pipe) {
    MutexLock lock(&mu_);
    if (waiting_.size() >= kMostWaiting) return;
    waiting_.push_back(std::move(pipe));
    eventfd_write(event_fd_.get(), 1);
  }
  std::unique_ptr<SoftPipe> Take() {
    MutexLock lock(&mu_);
    if (waiting_.empty()) {
      eventfd_t ignored;
      eventfd_read(event_fd_.get(), &ignored);
      return nullptr;
    }
    std::unique_ptr<SoftPipe> first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
  }

 private:
  const Fd event_fd_;
  Mutex mu_;
  std::deque<std::unique_ptr<SoftPipe>> waiting_ ABSL_GUARDED_BY(mu_);
};

// Outlives the last call.
class GrpcPipes::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Parts parts) : parts_(std::move(parts)) {}

  const Parts& parts() const { return parts_; }
  uint64_t AddDoor(std::shared_ptr<Door> door) {
    MutexLock lock(&mu_);
    doors_[++last_door_] = std::move(door);
    return last_door_;
  }
  // The caller still has the door, whose pipes are left without our lock.
  void RemoveDoor(uint64_t number) {
    MutexLock lock(&mu_);
    doors_.erase(number);
  }
  // Null: there is no such door.
  std::shared_ptr<Door> FindDoor(absl::string_view number) const {
    uint64_t parsed = 0;
    if (!absl::SimpleAtoi(number, &parsed)) return nullptr;
    MutexLock lock(&mu_);
    const auto found = doors_.find(parsed);
    return found == doors_.end() ? nullptr : found->second;
  }
  // False: we are closing.
  bool Enter(GrpcPipe* pipe) {
    MutexLock lock(&mu_);
    if (closing_) return false;
    pipes_.insert(pipe);
    return true;
  }
  void Exit(GrpcPipe* pipe) {
    MutexLock lock(&mu_);
    if (pipes_.erase(pipe) > 0 && pipes_.empty()) none_left_.NotifyAll();
  }
  absl::Status Admit(const std::string& worker) {
    MutexLock lock(&mu_);
    if (from_.count(worker) >= kMostFromOne) {
      return absl::ResourceExhaustedError(
          absl::StrCat(worker, " has ", kMostFromOne,
                       " connections open that carry tensors over gRPC: it must close some first"));
    }
    from_.insert(worker);
    return absl::OkStatus();
  }
  void Dismiss(const std::string& worker) {
    MutexLock lock(&mu_);
    from_.erase(from_.find(worker));
  }
  void Start(grpc::ServerCompletionQueue* queue, NextCall next) {
    queue_ = queue;
    next_ = std::move(next);
    AwaitCall();
  }
  void AwaitCall();
  void Shutdown(absl::Duration most) {
    const SteadyClock clock;
    const Deadline until = Deadline::After(clock, most);
    for (; !until.Passed(clock.NowNs()); absl::SleepFor(kLookAgain)) {
      MutexLock lock(&mu_);
      closing_ = true;
      const bool all_over = std::all_of(pipes_.begin(), pipes_.end(),
                                        [](const GrpcPipe* pipe) { return pipe->over(); });
      if (all_over) break;
    }
    MutexLock lock(&mu_);
    closing_ = true;
    for (GrpcPipe* pipe : pipes_) pipe->Cancel();
  }
  void Join() {
    MutexLock lock(&mu_);
    while (!pipes_.empty()) none_left_.Wait(&mu_);
  }
  size_t calls() const {
    MutexLock lock(&mu_);
    return pipes_.size();
  }
  // A call has come, and who makes it is not known yet: until NoteSpoken(). A stranger may open
  // many and say nothing, so the oldest make room.
  void NoteSilent(CalleePipe* pipe);
  void NoteSpoken(CalleePipe* pipe);
  // A peer may keep a call open for ever. The oldest that nobody here uses make room.
  void NoteLeft(std::weak_ptr<GrpcPipe> pipe) {
    std::shared_ptr<GrpcPipe> oldest;
    MutexLock lock(&mu_);
    left_.push_back(std::move(pipe));
    // Those that have ended are not under way, behind whichever that has not.
    left_.erase(std::remove_if(left_.begin(), left_.end(),
                               [](const std::weak_ptr<GrpcPipe>& one) { return one.expired(); }),
                left_.end());
    if (left_.size() <= kMostLeft) return;
    oldest = left_.front().lock();
    left_.pop_front();
    if (oldest != nullptr) oldest->Cancel();
  }
  // Says it once for each peer and reason, as a path that fails is tried again and again.
  void NoteFailure(const std::string& peer, const absl::Status& why) {
    {
      MutexLock lock(&mu_);
      const auto last = failures_.find(peer);
      if (last != failures_.end() && last->second == why) return;
      if (last != failures_.end()) failures_.erase(last);
      if (why.ok()) return;
      // The log names a peer that was forgotten once more.
      if (failures_.size() >= kMostFailures) failures_.erase(failures_.begin());
      failures_.emplace(peer, why);
    }
    if (absl::IsCancelled(why)) return;
    TRYST_LOG(Info) << "a stream that carries tensors over gRPC to " << peer << " ended: " << why;
  }

 private:
  const Parts parts_;
  mutable Mutex mu_;
  CondVar none_left_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_door_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<Door>> doors_ ABSL_GUARDED_BY(mu_);
  // Those of calls that gRPC is not done with, and of one that waits for a peer's.
  absl::flat_hash_set<GrpcPipe*> pipes_ ABSL_GUARDED_BY(mu_);
  std::deque<std::weak_ptr<GrpcPipe>> left_ ABSL_GUARDED_BY(mu_);  // Ours, in that order.
  std::deque<CalleePipe*> silent_ ABSL_GUARDED_BY(mu_);            // Likewise, peers'.
  std::multiset<std::string> from_ ABSL_GUARDED_BY(mu_);           // The workers of admitted calls.
  absl::flat_hash_map<std::string, absl::Status> failures_ ABSL_GUARDED_BY(mu_);

  // Constant after Start().
  grpc::ServerCompletionQueue* queue_ = nullptr;
  NextCall next_;
};

// ---- The caller's end ----

class GrpcPipes::CallerPipe final : public GrpcPipe {
 public:
  CallerPipe(std::shared_ptr<State> state, std::string peer)
      : GrpcPipe(state->parts().events), state_(std::move(state)), peer_(std::move(peer)) {}
  ~CallerPipe() override { state_->Exit(this); }

  bool Start(std::shared_ptr<grpc::Channel> channel, const std::string& door) {
    const Parts& parts = state_->parts();
    if (!MakeEvent() || !state_->Enter(this)) return false;
    channel_ = std::move(channel);
    statement_ = parts.signer->Sign(peer_, kConverseMethod, door);
    context_.AddMetadata(kCallerMetadata, statement_);
    context_.set_initial_metadata_corked(true);  // It leaves with the first message.
    grpc::GenericStub stub(channel_);
    call_ = stub.PrepareCall(&context_, kConverseMethod, parts.events->queue());
    call_->StartCall(nullptr);
    if (parts.seals) Seal(parts.signer->token(), statement_, /*calls=*/true);
    OpenWith(BufferOf(door));  // In the clear, as the statement covers it.
    return true;
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  void BeginRead(grpc::ByteBuffer* into, GrpcEvent* event) override { call_->Read(into, event); }
  void BeginWrite(const grpc::ByteBuffer& message, GrpcEvent* event) override {
    call_->Write(message, event);
  }
  void BeginEnd(GrpcEvent* event) override { call_->Finish(&status_, event); }
  bool ends_call() const override { return false; }
  void OnLeft() override { state_->NoteLeft(weak_from_this()); }
  void Over() override { state_->Exit(this); }
  void Ended() override {
    state_->NoteFailure(peer_, state_->parts().signer->Heed(peer_, statement_, FromGrpc(status_)));
  }

  const std::shared_ptr<State> state_;
  const std::string peer_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string statement_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Status status_;
};

// ---- The callee's end ----

class GrpcPipes::CalleePipe final : public GrpcPipe {
 public:
  explicit CalleePipe(std::shared_ptr<State> state)
      : GrpcPipe(state->parts().events), state_(std::move(state)), stream_(&context_) {}
  ~CalleePipe() override {
    if (!worker_.empty()) state_->Dismiss(worker_);
    state_->Exit(this);
  }

  void Wait(const NextCall& next, grpc::ServerCompletionQueue* queue) {
    waiting_ = shared_from_this();
    next(&context_, &stream_, queue, &called_step_);
  }
  void Cancel() override {
    if (called_.load()) context_.TryCancel();
  }

 private:
  using Step = GrpcStep<CalleePipe>;

  void OnCalled(bool ok) {
    if (!ok) return Forget();  // The server shuts down.
    called_.store(true);
    state_->AwaitCall();
    state_->NoteSilent(this);
    stream_.Read(&first_, &first_step_);
  }
  void OnFirst(bool ok) {
    state_->NoteSpoken(this);
    const absl::Status let_in = ok ? LetIn(BytesOf(first_)) : absl::CancelledError("");
    if (!let_in.ok()) stream_.Finish(ToGrpc(let_in), &refused_step_);
    if (let_in.ok()) Forget();
  }
  absl::Status LetIn(const std::string& door_number) {
    const Parts& parts = state_->parts();
    const absl::StatusOr<Caller> caller = parts.authorize(context_, door_number);
    if (!caller.ok()) return caller.status();
    const absl::Status admitted = state_->Admit(caller->worker);
    if (!admitted.ok()) return admitted;
    worker_ = caller->worker;
    if (!MakeEvent()) {
      return absl::ResourceExhaustedError(
          "this worker has no file descriptor left for a stream of tensors: raise its limit of "
          "open files (ulimit -n)");
    }
    const std::shared_ptr<Door> door = state_->FindDoor(door_number);
    if (door == nullptr) return absl::NotFoundError("nobody listens there any more");
    if (parts.seals) {
      const auto said = context_.client_metadata().find(kCallerMetadata);
      Seal(parts.signer->token(), std::string(said->second.data(), said->second.size()),
           /*calls=*/false);
    }
    std::unique_ptr<SoftPipe> held = Hold();
    Open();
    door->Add(std::move(held));
    return absl::OkStatus();
  }
  void OnRefused(bool) { Forget(); }
  void Forget() { std::shared_ptr<GrpcPipe>(std::move(waiting_)).reset(); }

  void BeginRead(grpc::ByteBuffer* into, GrpcEvent* event) override { stream_.Read(into, event); }
  void BeginWrite(const grpc::ByteBuffer& message, GrpcEvent* event) override {
    stream_.Write(message, event);
  }
  void BeginEnd(GrpcEvent* event) override { stream_.Finish(grpc::Status::OK, event); }
  bool ends_call() const override { return true; }
  void Over() override { state_->Exit(this); }
  void OnMessage(size_t bytes) override {
    heard_bytes_ += bytes;
    if (heard_bytes_ < kHeardBytes) return;
    heard_bytes_ = 0;
    if (state_->parts().heard) state_->parts().heard(context_);
  }

  const std::shared_ptr<State> state_;
  grpc::ServerContext context_;
  CallStream stream_;
  Step called_step_{this, &CalleePipe::OnCalled};
  Step first_step_{this, &CalleePipe::OnFirst};
  Step refused_step_{this, &CalleePipe::OnRefused};
  std::shared_ptr<GrpcPipe> waiting_;  // Until the call is let in or refused.
  grpc::ByteBuffer first_;
  std::string worker_;  // Once admitted.
  size_t heard_bytes_ = 0;
  std::atomic<bool> called_{false};
};

void GrpcPipes::State::NoteSilent(CalleePipe* pipe) {
  MutexLock lock(&mu_);
  silent_.push_back(pipe);
  if (silent_.size() <= kMostSilent) return;
  silent_.front()->Cancel();
  silent_.pop_front();
}

void GrpcPipes::State::NoteSpoken(CalleePipe* pipe) {
  MutexLock lock(&mu_);
  const auto found = std::find(silent_.begin(), silent_.end(), pipe);
  if (found != silent_.end()) silent_.erase(found);
}

void GrpcPipes::State::AwaitCall() {
  auto pipe = std::make_shared<CalleePipe>(shared_from_this());
  if (Enter(pipe.get())) pipe->Wait(next_, queue_);
}

// ---- The NIC's side ----

GrpcPipes::GrpcPipes(Parts parts) : state_(std::make_shared<State>(std::move(parts))) {}

GrpcPipes::~GrpcPipes() = default;

absl::StatusOr<std::unique_ptr<SoftPipes::Listener>> GrpcPipes::Listen() {
  class AtDoor final : public Listener {
   public:
    AtDoor(std::shared_ptr<State> state, std::shared_ptr<Door> door)
        : state_(std::move(state)),
          door_(std::move(door)),
          number_(state_->AddDoor(door_)),
          address_(absl::StrCat(state_->parts().signer->self().worker, "#", number_)) {}
    ~AtDoor() override { state_->RemoveDoor(number_); }
    const std::string& address() const override { return address_; }
    std::unique_ptr<SoftPipe> Accept() override { return door_->Take(); }
    int event_fd() const override { return door_->event_fd(); }

   private:
    const std::shared_ptr<State> state_;
    const std::shared_ptr<Door> door_;
    const uint64_t number_;
    const std::string address_;
  };
  auto door = std::make_shared<Door>();
  if (door->event_fd() < 0) {
    return absl::ResourceExhaustedError(
        "the process has no file descriptor left for a listener: raise the limit of open files "
        "(ulimit -n)");
  }
  auto listener = std::make_unique<AtDoor>(state_, std::move(door));
  if (listener->address().size() > kMostAddressBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of this worker is too long for a path over gRPC: ", listener->address(),
        " has over ", kMostAddressBytes, " bytes"));
  }
  return listener;
}

std::unique_ptr<SoftPipe> GrpcPipes::Dial(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, absl::MaxSplits('#', 1));
  if (parts.size() != 2) return nullptr;
  auto channel = state_->parts().peers->ChannelTo(parts[0]);
  if (!channel.ok()) return nullptr;
  auto pipe = std::make_shared<CallerPipe>(state_, parts[0]);
  std::unique_ptr<SoftPipe> held = pipe->Hold();
  if (!pipe->Start(*std::move(channel), parts[1])) return nullptr;
  return held;
}

void GrpcPipes::Start(grpc::ServerCompletionQueue* queue, NextCall next) {
  state_->Start(queue, std::move(next));
}

void GrpcPipes::Shutdown(absl::Duration most) { state_->Shutdown(most); }

void GrpcPipes::Join() { state_->Join(); }

size_t GrpcPipes::calls() const { return state_->calls(); }

}  // namespace tryst
