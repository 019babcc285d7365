#include "bench/instant_nic.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

class InstantQueuePair;

// The NIC's work is in one function, which bench/instructions.py leaves out by its name.
template <typename Work>
__attribute__((noinline)) auto NicAtWork(Work work) {
  return work();
}

// A queue that never shrinks, so that it allocates nothing once it is large enough.
template <typename T>
class Ring {
 public:
  bool empty() const { return begin_ == end_; }
  uint32_t size() const { return static_cast<uint32_t>(end_ - begin_); }
  T& front() { return items_[begin_ % items_.size()]; }
  void Pop() { ++begin_; }
  void Push(T item) {
    if (size() == items_.size()) Grow();
    items_[end_++ % items_.size()] = std::move(item);
  }

 private:
  void Grow() {
    std::vector<T> more(2 * items_.size());
    for (uint64_t i = begin_; i < end_; ++i) more[i % more.size()] = items_[i % items_.size()];
    items_.swap(more);
  }
  std::vector<T> items_ = std::vector<T>(64);
  uint64_t begin_ = 0, end_ = 0;
};

class InstantCompletionQueue final : public CompletionQueue {
 public:
  struct Ready {
    InstantQueuePair* queue_pair = nullptr;
    Completion completion;
    uint32_t sends = 0;  // How many sends it gives back.
    bool receive = false;
  };
  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override {
    return NicAtWork([this, out] { return Take(out); });
  }
  absl::Status Arm() override { return absl::OkStatus(); }
  int event_fd() const override { return -1; }

  void Push(const Ready& ready) { ready_.Push(ready); }
  void Forget(const InstantQueuePair* queue_pair) {
    for (uint32_t i = ready_.size(); i > 0; --i) {
      const Ready ready = ready_.front();
      ready_.Pop();
      if (ready.queue_pair != queue_pair) ready_.Push(ready);
    }
  }

 private:
  absl::StatusOr<size_t> Take(absl::Span<Completion> out);

  Ring<Ready> ready_;
};

class InstantQueuePair final : public QueuePair {
 public:
  explicit InstantQueuePair(const QueuePairOptions& options) : options_(options) {
    number_ = ++LastNumber();
    All()[number_] = this;
  }
  ~InstantQueuePair() override {
    completions()->Forget(this);
    All().erase(number_);
  }

  uint32_t number() const override { return number_; }
  QueuePairState state() const override {
    if (broken_) return given_back() ? QueuePairState::kDrained : QueuePairState::kBroken;
    return peer_ == 0 ? QueuePairState::kReset : QueuePairState::kReady;
  }
  std::string LocalAddress() const override { return absl::StrCat(number_); }
  absl::Status Connect(absl::string_view remote) override {
    if (!absl::SimpleAtoi(remote, &peer_) || peer_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat("no instant address: ", remote));
    }
    if (InstantQueuePair* const peer = Peer()) peer->Move();
    return absl::OkStatus();
  }

  absl::Status PostSend(absl::Span<const SendWork> works) override {
    return NicAtWork([this, works] { return Send(works); });
  }
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override {
    return NicAtWork([this, works] { return Receive(works); });
  }
  uint32_t send_room() const override { return options_.send_depth - sends_out_; }
  uint32_t receive_room() const override { return options_.receive_depth - receives_out_; }

  void Break() override {
    if (broken_) return;
    broken_ = true;
    for (const Kept& kept : waiting_) Complete(kept.work, CompletionStatus::kFlushed);
    waiting_.clear();
    sends_out_ -= std::exchange(silent_, 0);  // No signaled work follows that would give them back.
    for (; !receives_.empty(); receives_.Pop()) {
      InstantCompletionQueue::Ready ready;
      ready.queue_pair = this;
      ready.receive = true;
      ready.completion.id = receives_.front();
      ready.completion.status = CompletionStatus::kFlushed;
      ready.completion.queue_pair = number_;
      completions()->Push(ready);
    }
    if (InstantQueuePair* const peer = Peer()) peer->Break();
  }

  void OnPolled(const InstantCompletionQueue::Ready& ready) {
    sends_out_ -= ready.sends;
    if (ready.receive) --receives_out_;
  }

 private:
  struct Kept {  // A work that waits for the peer, with a copy of its bytes.
    SendWork work;
    std::vector<uint8_t> bytes;
  };

  static std::map<uint32_t, InstantQueuePair*>& All() {
    static auto* const all = new std::map<uint32_t, InstantQueuePair*>;
    return *all;
  }
  static uint32_t& LastNumber() {
    static uint32_t last = 0;
    return last;
  }

  InstantCompletionQueue* completions() const {
    return static_cast<InstantCompletionQueue*>(options_.completions);
  }
  InstantQueuePair* Peer() const {
    const auto found = All().find(peer_);
    return found == All().end() ? nullptr : found->second;
  }
  absl::Status Send(absl::Span<const SendWork> works) {
    if (state() != QueuePairState::kReady) return absl::FailedPreconditionError("not connected");
    if (works.size() > send_room()) return absl::ResourceExhaustedError("no room");
    for (const SendWork& work : works) {
      if (work.op != SendOp::kWrite && work.op != SendOp::kWriteWithImmediate) {
        return absl::InvalidArgumentError("an instant NIC only writes");
      }
      ++sends_out_;
      if (waiting_.empty() && CanMove(work.op)) {
        Land(work);
      } else {
        Keep(work);
      }
    }
    return absl::OkStatus();
  }
  absl::Status Receive(absl::Span<const ReceiveWork> works) {
    if (works.size() > receive_room()) return absl::ResourceExhaustedError("no room");
    for (const ReceiveWork& work : works) receives_.Push(work.id);
    receives_out_ += static_cast<uint32_t>(works.size());
    if (InstantQueuePair* const peer = Peer()) peer->Move();
    return absl::OkStatus();
  }
  bool given_back() const { return sends_out_ == 0 && receives_out_ == 0; }

  bool CanMove(SendOp op) const {
    const InstantQueuePair* const peer = Peer();
    if (peer == nullptr || peer->broken_ || peer->peer_ != number_) return false;
    return op == SendOp::kWrite || !peer->receives_is_empty();
  }
  bool receives_is_empty() const { return receives_.empty(); }

  void Keep(const SendWork& work) {
    Kept kept;
    kept.work = work;
    for (const Entry& entry : work.entries) {
      const auto* const from = reinterpret_cast<const uint8_t*>(entry.address);
      kept.bytes.insert(kept.bytes.end(), from, from + entry.bytes);
    }
    waiting_.push_back(std::move(kept));
  }
  // Executes the waiting works for which the peer has receives now.
  void Move() {
    while (!waiting_.empty() && !broken_ && CanMove(waiting_.front().work.op)) {
      Kept kept = std::move(waiting_.front());
      waiting_.pop_front();
      const Entry entry = {reinterpret_cast<uint64_t>(kept.bytes.data()), kept.bytes.size(), 0};
      kept.work.entries = absl::MakeConstSpan(&entry, 1);
      Land(kept.work);
    }
  }

  void Land(const SendWork& work) {
    uint64_t to = work.remote_address;
    for (const Entry& entry : work.entries) {
      if (entry.bytes == 0) continue;
      memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(entry.address),
             entry.bytes);
      to += entry.bytes;
    }
    if (work.op == SendOp::kWriteWithImmediate) {
      Peer()->OnImmediate(work.immediate, to - work.remote_address);
    }
    Complete(work, CompletionStatus::kOk);
  }
  void OnImmediate(uint32_t immediate, uint64_t bytes) {
    InstantCompletionQueue::Ready ready;
    ready.queue_pair = this;
    ready.receive = true;
    ready.completion.id = receives_.front();
    receives_.Pop();
    ready.completion.op = CompletionOp::kReceiveWriteImmediate;
    ready.completion.immediate = immediate;
    ready.completion.queue_pair = number_;
    ready.completion.bytes = bytes;
    completions()->Push(ready);
  }
  void Complete(const SendWork& work, CompletionStatus status) {
    ++silent_;
    if (!work.signaled && status == CompletionStatus::kOk) return;
    InstantCompletionQueue::Ready ready;
    ready.queue_pair = this;
    ready.sends = std::exchange(silent_, 0);
    ready.completion.id = work.id;
    ready.completion.status = status;
    ready.completion.op = CompletionOp::kSend;
    ready.completion.queue_pair = number_;
    completions()->Push(ready);
  }

  const QueuePairOptions options_;
  uint32_t number_ = 0;
  uint32_t peer_ = 0;
  bool broken_ = false;
  uint32_t sends_out_ = 0, receives_out_ = 0;  // Posted, and not polled as completed.
  uint32_t silent_ = 0;                        // Landed since the last completion.
  Ring<uint64_t> receives_;
  std::deque<Kept> waiting_;
};

absl::StatusOr<size_t> InstantCompletionQueue::Take(absl::Span<Completion> out) {
  size_t taken = 0;
  for (; taken < out.size() && !ready_.empty(); ++taken) {
    const Ready ready = ready_.front();
    ready_.Pop();
    out[taken] = ready.completion;
    ready.queue_pair->OnPolled(ready);
  }
  return taken;
}

class InstantRegion final : public Region {
 public:
  InstantRegion(void* address, uint64_t bytes)
      : address_(reinterpret_cast<uint64_t>(address)), bytes_(bytes) {}
  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return bytes_; }
  uint32_t local_key() const override { return 1; }
  uint32_t remote_key() const override { return 1; }

 private:
  const uint64_t address_, bytes_;
};

class InstantNic final : public Nic {
 public:
  InstantNic() {
    limits_.max_message_bytes = uint64_t{1} << 30;
    limits_.max_entries = 16;
    limits_.max_inline_bytes = 256;
    limits_.max_send_depth = limits_.max_receive_depth = 1 << 16;
    limits_.max_completion_depth = 1 << 20;
  }
  std::string name() const override { return "instant"; }
  const NicLimits& limits() const override { return limits_; }
  std::vector<NicPort> Ports() const override {
    NicPort port;
    port.state = PortState::kActive;
    port.description = "this process";
    return {port};
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t) override {
    return std::unique_ptr<Region>(new InstantRegion(address, bytes));
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int, uint64_t, uint64_t, uint64_t,
                                                         uint32_t) override {
    return absl::UnimplementedError("an instant NIC knows host memory alone");
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    return std::unique_ptr<CompletionQueue>(new InstantCompletionQueue);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return std::unique_ptr<QueuePair>(new InstantQueuePair(options));
  }
  absl::optional<NicEvent> NextEvent() override { return absl::nullopt; }
  int event_fd() const override { return -1; }

 private:
  NicLimits limits_;
};

}  // namespace

std::unique_ptr<Nic> OpenInstantNic() { return std::make_unique<InstantNic>(); }

}  // namespace tryst
