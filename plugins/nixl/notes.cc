#include "plugins/nixl/notes.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst::nixl {
namespace {

constexpr uint64_t kMaxLineBytes = 64 << 20;
constexpr size_t kMaxLine = 65'536;
constexpr uint64_t kBatchBytes = 1 << 20;
constexpr size_t kMaxBatch = 1024;
// So much is kept of peers' notes that nobody takes. What comes then waits at its sender.
constexpr uint64_t kMaxInboxBytes = 64 << 20;
constexpr size_t kMaxInbox = 65'536;

std::chrono::steady_clock::time_point In(int64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

void End(const std::shared_ptr<Delivery>& delivery, const absl::Status& status) {
  if (delivery != nullptr) delivery->End(status);
}

}  // namespace

void Delivery::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  end_ = status;
  changed_.NotifyAll();
}

bool Delivery::Ended(int64_t timeout_ms) {
  const auto until = In(timeout_ms);
  MutexLock lock(&mu_);
  while (!end_.has_value() && timeout_ms > 0 && !changed_.WaitUntil(&mu_, until)) {
  }
  return end_.has_value();
}

absl::Status Delivery::status() {
  MutexLock lock(&mu_);
  return end_.value_or(absl::OkStatus());
}

absl::Status Outbox::Send(const PeerName& peer, std::string note,
                          std::shared_ptr<Delivery> delivery) {
  if (note.size() > kMaxNotification) {
    return absl::InvalidArgumentError(absl::StrCat("a notification has ", note.size(),
                                                   " bytes, and may have ", kMaxNotification));
  }
  {
    MutexLock lock(&mu_);
    Line& line = lines_[peer.worker];
    if (line.waiting.size() >= kMaxLine || line.bytes + note.size() > kMaxLineBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(line.waiting.size(), " notifications wait until the agent at ", peer.address,
                       " takes them: let it call getNotifs, or send fewer"));
    }
    line.bytes += note.size();
    line.waiting.push_back({std::move(note), std::move(delivery)});
    if (std::exchange(line.out, true)) return absl::OkStatus();
  }
  SendBatch(peer);
  return absl::OkStatus();
}

void Outbox::SendBatch(const PeerName& peer) {
  Notes notes;
  notes.agent = agent_;
  std::vector<Item> batch;
  {
    MutexLock lock(&mu_);
    Line& line = lines_[peer.worker];
    uint64_t bytes = 0;
    while (!line.waiting.empty() && batch.size() < kMaxBatch &&
           (batch.empty() || bytes + line.waiting.front().note.size() <= kBatchBytes)) {
      Item item = std::move(line.waiting.front());
      line.waiting.pop_front();
      bytes += item.note.size();
      notes.notes.push_back(std::move(item.note));
      batch.push_back(std::move(item));
    }
    line.bytes -= bytes;
    notes.number = ++last_number_;
  }
  worker_->AskPeer(peer, "note", WriteNotes(notes),
                   [this, peer, batch = std::move(batch)](const absl::Status& status) {
                     OnAnswer(peer, batch, status);
                   });
}

void Outbox::OnAnswer(const PeerName& peer, const std::vector<Item>& batch,
                      const absl::Status& status) {
  std::deque<Item> lost;
  bool more = false;
  {
    MutexLock lock(&mu_);
    Line& line = lines_[peer.worker];
    if (!status.ok()) {
      lost.swap(line.waiting);
      line.bytes = 0;
    }
    more = !line.waiting.empty();
    if (!more) lines_.erase(peer.worker);
    changed_.NotifyAll();
  }
  if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
    TRYST_LOG(Warning) << batch.size() + lost.size() << " notifications for the agent at "
                       << peer.address << " are lost: " << status.message()
                       << "; load the metadata of its new life, if it has one";
  }
  for (const Item& item : batch) End(item.delivery, status);
  for (const Item& item : lost) End(item.delivery, status);
  if (more) SendBatch(peer);
}

void Outbox::Drain(int64_t timeout_ms) {
  const auto until = In(timeout_ms);
  MutexLock lock(&mu_);
  while (!lines_.empty() && !changed_.WaitUntil(&mu_, until)) {
  }
}

bool Inbox::HasRoom() const { return here_.size() < kMaxInbox && bytes_ < kMaxInboxBytes; }

void Inbox::Put(Waiting* notes) {
  for (std::string& note : notes->notes) {
    bytes_ += note.size();
    here_.emplace_back(notes->agent, std::move(note));
  }
}

void Inbox::Add(std::string agent, std::vector<std::string> notes, TakenFn added) {
  Waiting waiting = {std::move(agent), std::move(notes), std::move(added)};
  {
    MutexLock lock(&mu_);
    if (!waiting_.empty() || !HasRoom()) {
      waiting_.push_back(std::move(waiting));
      return;
    }
    Put(&waiting);
  }
  waiting.added();
}

void Inbox::TakeAll(abi::Notifications* taken) {
  std::vector<TakenFn> added;
  {
    MutexLock lock(&mu_);
    if (here_.empty()) return;
    for (auto& note : here_) taken->push_back(std::move(note));
    here_.clear();
    bytes_ = 0;
    while (!waiting_.empty() && HasRoom()) {
      Put(&waiting_.front());
      added.push_back(std::move(waiting_.front().added));
      waiting_.pop_front();
    }
  }
  for (const TakenFn& tell : added) tell();
}

void Inbox::Clear() {
  std::deque<Waiting> gone;
  MutexLock lock(&mu_);
  gone.swap(waiting_);
}

}  // namespace tryst::nixl
