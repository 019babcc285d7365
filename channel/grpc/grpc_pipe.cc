#include "channel/grpc/grpc_pipe.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

// A piece of fewer bytes is copied, which costs less than to keep it.
constexpr size_t kLeastKept = 16 << 10;

// A slice of these bytes, which it keeps instead of copying them.
grpc::Slice SliceOf(std::string bytes) {
  auto* const kept = new std::string(std::move(bytes));
  return grpc::Slice(
      const_cast<char*>(kept->data()), kept->size(),
      [](void* text) { delete static_cast<std::string*>(text); }, kept);
}

}  // namespace

void OutgoingBytes::EndCopied() {
  if (copied_.empty()) return;
  kept_bytes_ += copied_.size();
  slices_.push_back(SliceOf(std::exchange(copied_, std::string())));
}

void OutgoingBytes::Keep(const void* bytes, size_t size, std::shared_ptr<const void> owner) {
  EndCopied();
  kept_bytes_ += size;
  auto* const kept = new std::shared_ptr<const void>(std::move(owner));
  slices_.emplace_back(
      const_cast<void*>(bytes), size,
      [](void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }, kept);
}

grpc::ByteBuffer OutgoingBytes::Take() {
  EndCopied();
  if (slices_.empty()) slices_.push_back(SliceOf(std::string()));
  const grpc::ByteBuffer message(slices_.data(), slices_.size());
  slices_.clear();
  kept_bytes_ = 0;
  return message;
}

class GrpcPipe::Held final : public SoftPipe {
 public:
  explicit Held(std::shared_ptr<GrpcPipe> pipe) : pipe_(std::move(pipe)) {}
  ~Held() override { pipe_->Leave(); }
  ssize_t Send(const iovec* pieces, int count) override {
    return pipe_->Send(pieces, nullptr, count, nullptr);
  }
  ssize_t SendOf(const iovec* pieces, const void* const* owners, int count,
                 KeepOwner keep) override {
    return pipe_->Send(pieces, owners, count, keep);
  }
  ssize_t Receive(const iovec* pieces, int count) override { return pipe_->Receive(pieces, count); }
  void EndSending() override { pipe_->EndSending(); }
  size_t unsent() const override { return pipe_->unsent(); }
  bool Quiet() override { return pipe_->Quiet(); }
  int event_fd() const override { return pipe_->event_.get(); }

 private:
  const std::shared_ptr<GrpcPipe> pipe_;
};

std::unique_ptr<SoftPipe> GrpcPipe::Hold() { return std::make_unique<Held>(shared_from_this()); }

bool GrpcPipe::MakeEvent() {
  event_ = Fd(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  return event_.valid();
}

bool GrpcPipe::over() const {
  MutexLock lock(&mu_);
  return self_ == nullptr;
}

void GrpcPipe::Seal(const std::string& token, const std::string& statement, bool calls) {
  const std::string to_callee = absl::StrCat(statement, "\nto the callee");
  const std::string to_caller = absl::StrCat(statement, "\nto the caller");
  seal_ = std::make_unique<CallSealing>(token, calls ? to_callee : to_caller);
  open_ = std::make_unique<CallSealing>(token, calls ? to_caller : to_callee);
}

void GrpcPipe::Open() {
  {
    MutexLock lock(&mu_);
    self_ = shared_from_this();
    reading_ = true;
  }
  BeginRead(&read_, &read_step_);
}

void GrpcPipe::OpenWith(grpc::ByteBuffer first) {
  {
    MutexLock lock(&mu_);
    self_ = shared_from_this();
    reading_ = writing_ = true;
  }
  BeginWrite(first, &written_step_);
  BeginRead(&read_, &read_step_);
}

// ---- The user's end ----

// As much as there is room for of what lies behind the first `from` bytes; returns how much.
size_t GrpcPipe::Append(const iovec* pieces, const void* const* owners, int count, KeepOwner keep,
                        size_t from) {
  const size_t before = unsent_.size();
  for (int i = 0; i < count; ++i) {
    if (from >= pieces[i].iov_len) {
      from -= pieces[i].iov_len;
      continue;
    }
    const size_t bytes = std::min(pieces[i].iov_len - from, kMostUnsent - unsent_.size());
    const char* const at = static_cast<const char*>(pieces[i].iov_base) + from;
    if (bytes >= kLeastKept && keep != nullptr && owners[i] != nullptr) {
      unsent_.Keep(at, bytes, keep(owners[i]));
    } else {
      unsent_.Copy(at, bytes);
    }
    from = 0;
    if (unsent_.size() == kMostUnsent) break;
  }
  return unsent_.size() - before;
}

ssize_t GrpcPipe::Send(const iovec* pieces, const void* const* owners, int count, KeepOwner keep) {
  size_t wanted = 0;
  for (int i = 0; i < count; ++i) wanted += pieces[i].iov_len;
  size_t taken = 0;
  Todo todo;
  {
    MutexLock lock(&mu_);
    if (call_broken_ || ends_sending_) {
      errno = EPIPE;
      return -1;
    }
    taken = Append(pieces, owners, count, keep, 0);
    Next(&todo);
    if (todo.write) taken += Append(pieces, owners, count, keep, taken);  // There is room again.
    wants_room_ = taken < wanted;
    if (wants_room_ && taken == 0) {
      errno = EAGAIN;
      return -1;
    }
  }
  Begin(todo);
  return static_cast<ssize_t>(taken);
}

ssize_t GrpcPipe::Receive(const iovec* pieces, int count) {
  poller_.store(events_->PollerHere(poller_.load(std::memory_order_relaxed)),
                std::memory_order_relaxed);
  size_t got = 0;
  Todo todo;
  {
    MutexLock lock(&mu_);
    if (unread_.empty()) {
      if (forged_) {
        errno = EPROTO;
        return -1;
      }
      if (no_more_comes_) return 0;
      NoSignal();
      errno = EAGAIN;
      return -1;
    }
    for (int i = 0; i < count; ++i) {
      auto* into = static_cast<uint8_t*>(pieces[i].iov_base);
      for (size_t left = pieces[i].iov_len; left > 0 && !unread_.empty();) {
        const grpc::Slice& slice = unread_.front();
        const size_t bytes = std::min(left, slice.size() - unread_at_);
        memcpy(into, slice.begin() + unread_at_, bytes);
        into += bytes;
        left -= bytes;
        got += bytes;
        unread_at_ += bytes;
        if (unread_at_ < slice.size()) continue;
        unread_.pop_front();
        unread_at_ = 0;
      }
    }
    unread_bytes_ -= got;
    Next(&todo);
  }
  Begin(todo);
  return static_cast<ssize_t>(got);
}

void GrpcPipe::EndSending() {
  Todo todo;
  {
    MutexLock lock(&mu_);
    ends_sending_ = true;
    Next(&todo);
  }
  Begin(todo);
}

size_t GrpcPipe::unsent() const {
  MutexLock lock(&mu_);
  return call_broken_ ? 0 : unsent_.size() + writing_bytes_;
}

bool GrpcPipe::Quiet() {
  MutexLock lock(&mu_);
  if (!unread_.empty() || no_more_comes_) return false;
  NoSignal();
  return true;
}

void GrpcPipe::Leave() {
  Todo todo;
  {
    MutexLock lock(&mu_);
    left_ = ends_sending_ = true;
    NoSignal();  // It may still be watched.
    unread_.clear();
    unread_bytes_ = unread_at_ = 0;
    Next(&todo);
  }
  Begin(todo);
  OnLeft();
}

void GrpcPipe::Signal() {
  if (signaled_ || left_) return;
  signaled_ = true;
  eventfd_write(event_.get(), 1);
}

void GrpcPipe::NoSignal() {
  if (!signaled_) return;
  signaled_ = false;
  eventfd_t ignored;
  eventfd_read(event_.get(), &ignored);
}

// ---- The call ----

// Begins whatever the call may do now. Each is noted here, so that no two threads begin the same.
void GrpcPipe::Next(Todo* todo) {
  if (over_ || self_ == nullptr) return;
  if (!reading_ && !call_broken_ && unread_bytes_ < kMostUnread) {
    reading_ = todo->read = true;
  }
  if (!writing_ && !call_broken_ && !ending_) {
    if (!unsent_.empty()) {
      writing_bytes_ = unsent_.size();
      todo->message = unsent_.Take();
      writing_ = todo->write = true;
    } else if (ends_sending_ && !ended_sending_) {
      ended_sending_ = writing_ = todo->write = true;
      todo->message = unsent_.Take();
    }
  }
  // Not while a write is under way: gRPC takes the end for one.
  const bool may_end = (call_broken_ && !reading_) || (ends_call() && left_ && ended_sending_);
  if (!ending_ && !writing_ && may_end) ending_ = todo->end = true;
}

void GrpcPipe::Begin(const Todo& todo) {
  if (todo.read) BeginRead(&read_, &read_step_);
  if (todo.write) {
    BeginWrite(seal_ == nullptr ? todo.message : seal_->Seal(todo.message), &written_step_);
  }
  if (todo.end) BeginEnd(&ended_step_);
}

// False: our own other end does not send this.
bool GrpcPipe::Take(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok() || message.Length() > kLargestMessage) return false;
  if (message.Length() == 0) no_more_comes_ = true;
  if (left_) return true;
  for (grpc::Slice& slice : slices) {
    if (slice.size() == 0) continue;
    unread_bytes_ += slice.size();
    unread_.push_back(std::move(slice));
  }
  return true;
}

void GrpcPipe::OnRead(bool ok) {
  // Only one read is under way, so nobody else uses these.
  if (ok) OnMessage(read_.Length());
  bool forged = ok && open_ != nullptr && !open_->Open(&read_).ok();
  Todo todo;
  std::shared_ptr<GrpcPipe> last;
  {
    MutexLock lock(&mu_);
    reading_ = false;
    if (!ok) {
      call_broken_ = no_more_comes_ = true;
    } else if (!forged && !no_more_comes_) {
      forged = !Take(read_);
    }
    if (forged) forged_ = no_more_comes_ = true;
    Next(&todo);
    if (over_ && !reading_ && !writing_) last = std::move(self_);
  }
  if (forged) Cancel();
  Begin(todo);
  if (last != nullptr) Over();
  events_->NoteArrival(poller_.load(std::memory_order_relaxed),
                       [self = shared_from_this()] { self->Tell(); });
}

// A poller that sleeps is woken, and one that polls this pipe in every turn has looked.
void GrpcPipe::Tell() {
  MutexLock lock(&mu_);
  if (!unread_.empty() || no_more_comes_) Signal();
}

void GrpcPipe::OnWritten(bool ok) {
  Todo todo;
  std::shared_ptr<GrpcPipe> last;
  {
    MutexLock lock(&mu_);
    writing_ = false;
    writing_bytes_ = 0;
    if (!ok) call_broken_ = no_more_comes_ = true;
    if (std::exchange(wants_room_, false) || !ok) Signal();
    Next(&todo);
    if (over_ && !reading_ && !writing_) last = std::move(self_);
  }
  Begin(todo);
  if (last != nullptr) Over();
}

void GrpcPipe::OnEnded(bool) {
  Ended();
  std::shared_ptr<GrpcPipe> last;
  {
    MutexLock lock(&mu_);
    over_ = call_broken_ = no_more_comes_ = true;
    Signal();
    if (!reading_ && !writing_) last = std::move(self_);
  }
  if (last != nullptr) Over();
}

}  // namespace tryst
