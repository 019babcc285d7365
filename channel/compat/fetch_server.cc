#include "channel/compat/fetch_server.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/compat/fetch_server_stream.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/serial_set.h"
#include "channel/grpc/grpc_status.h"
#include "channel/ops/peer_words.h"
#include "channel/poller/poller.h"
#include "proto/transport.pb.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr size_t kMaxChannels = 256;  // One incarnation of a consumer has at most so many.
constexpr int kCallsAwaited = 16;     // Further calls wait inside gRPC, which costs each a lock.
constexpr size_t kMaxReady = 8192;    // Named in one answer to a batch.
// How many ended fetches one request may name, and how many gaps there may be between those that a
// consumer has named, beside one for each request that waits: between two fetches that an honest
// consumer names, one waits, unless it has ended since. Such a consumer names up to 65,536 at a
// time, nearly in order.
constexpr int kMaxOver = 2 * 65536;
constexpr size_t kMaxOverRuns = 2 * 65536;
// Silent consumers whose state is kept. Of one more, all of them are forgotten.
constexpr size_t kMostSilent = 1024;
// One with more channels and gaps, together, is forgotten at once.
constexpr size_t kMostOfSilent = 64;
// So is one that is to be told of more fetches.
constexpr size_t kMostToTellSilent = 1024;

}  // namespace

using Outcome = FetchOutcome;
using Stream = FetchServerStream;

// What the requests of one incarnation of a consumer hold here, on all of its channels.
struct FetchServerUse {
  std::atomic<size_t> requests{0};
  std::atomic<uint64_t> key_bytes{0};
};

// One request, with all of its attempts.
struct FetchServerEntry {
  FetchServerEntry(std::shared_ptr<FetchServerUse> its_use, const TensorKey& its_key)
      : use(std::move(its_use)), key(its_key) {
    use->requests.fetch_add(1);
    use->key_bytes.fetch_add(key.text().size());
  }
  ~FetchServerEntry() {
    use->requests.fetch_sub(1);
    use->key_bytes.fetch_sub(key.text().size());
  }
  const std::shared_ptr<FetchServerUse> use;
  const TensorKey key;
  std::shared_ptr<const FetchServerPeer> peer;
  uint64_t serial = 0;
  int64_t step_id = 0;
  Cancellation cancellation;
  // What the source gave, until it is given back. It is written before `outcome`.
  std::unique_ptr<Received> taken;

  // Guarded by State::mu_.
  std::shared_ptr<const Outcome> outcome;  // Null: it waits for the source.
  std::shared_ptr<Stream> stream;          // Null: no call is open.
  TraceSpan span;
  bool over = false;
  bool parked = false;         // It was requested in a batch, and no call has come for it.
  bool taking = false;         // The source has not answered.
  bool giving_back = false;    // The tensor is on its way back to the source.
  bool sent = false;           // Some of the tensor was sent, so the consumer may have it.
  int64_t alone_since_ns = 0;  // 0: a stream is open.
  std::list<std::shared_ptr<FetchServerEntry>>::iterator alone_at;  // Valid while it has no stream.
};

using Entry = FetchServerEntry;

// Fetches of which the consumer is to be told, each once, in the order of their outcomes.
class ReadyLine {
 public:
  bool empty() const { return line_.empty(); }
  size_t size() const { return line_.size(); }
  uint64_t front() const { return line_.front(); }
  auto begin() const { return line_.begin(); }
  auto end() const { return line_.end(); }
  void Push(uint64_t serial) {
    if (known_.insert(serial).second) line_.push_back(serial);
  }
  void PopFront() {
    known_.erase(line_.front());
    line_.pop_front();
  }

 private:
  std::deque<uint64_t> line_;
  absl::flat_hash_set<uint64_t> known_;
};

class FetchServer::State final : public FetchServerStreamOwner,
                                 public std::enable_shared_from_this<State> {
 public:
  State(TensorSource* source, Alarms* alarms, uint64_t incarnation, Authorize authorize,
        Admit admit, FetchServerOptions options)
      : source_(source),
        alarms_(alarms),
        incarnation_(incarnation),
        authorize_(std::move(authorize)),
        admit_(std::move(admit)),
        options_(options) {}

  void OnRequest(const std::shared_ptr<Stream>& stream, const std::string& bytes) override;
  void OnCall(bool ok) override;
  void OnStreamDone(Stream* stream) override;
  void Start(grpc::ServerCompletionQueue* queue, NextCall next);
  void AwaitEnd();
  void Shutdown();
  Counts counts() const;
  void ListOps(LiveOps* ops) const;

 private:
  struct Peer {  // One channel of a consumer.
    std::shared_ptr<const FetchServerPeer> name;
    std::shared_ptr<FetchServerUse> use;
    std::map<uint64_t, std::shared_ptr<Entry>> entries;
    size_t most_entries = 0;  // At once, since there were none.
    SerialSet over;
    // For batches:
    std::shared_ptr<Stream> waiter;  // The call to answer when something is ready.
    ReadyLine ready;                 // No answer has named these yet.
    std::vector<uint64_t> told;      // Named by the last answer, which may have been lost.
    uint64_t answers = 0;
    bool away = false;  // The waiting call broke.
    // Since when there is no waiting call; 0: there is one, or never was.
    int64_t no_waiter_ns = 0;
    bool idle() const { return entries.empty() && waiter == nullptr; }
  };
  struct Consumer {
    uint64_t incarnation = 0;
    std::deque<uint64_t> retired;  // The last few earlier incarnations.
    std::shared_ptr<FetchServerUse> use = std::make_shared<FetchServerUse>();
    std::map<uint64_t, Peer> channels;
    int64_t heard_ns = 0;  // When it last said anything.
    size_t over_runs() const {
      size_t runs = 0;
      for (const auto& [id, peer] : channels) runs += peer.over.runs();
      return runs;
    }
    size_t to_tell() const {  // The fetches that it may not have heard of.
      size_t fetches = 0;
      for (const auto& [id, peer] : channels) fetches += peer.ready.size() + peer.told.size();
      return fetches;
    }
    bool holds() const {  // Whether anything of it waits. It is told the rest if it comes back.
      return std::any_of(channels.begin(), channels.end(),
                         [](const auto& channel) { return !channel.second.idle(); });
    }
    // Most likely the consumer has closed the channels of which nothing waits.
    void TellLess(const Peer* but) {
      for (auto& [id, peer] : channels) {
        if (!peer.idle() || &peer == but) continue;
        peer.ready = ReadyLine();
        peer.told.clear();
      }
    }
  };
  // What must be done after the lock is released.
  struct Todo {
    std::vector<std::shared_ptr<Entry>> cancel;
    std::vector<std::pair<std::shared_ptr<Stream>, grpc::Status>> end;
    // The deleter of a tensor may run any code.
    std::vector<std::shared_ptr<const Outcome>> release;
    std::vector<std::unique_ptr<Received>> let_go;  // They, too, are let go of without the lock.
    std::vector<std::shared_ptr<Entry>> give_back;
    std::vector<std::shared_ptr<Entry>> take;
    std::vector<std::pair<std::shared_ptr<Stream>, std::shared_ptr<const Outcome>>> answer;
    void Run(TensorSource* source) {
      // This comes first: the message that ends a fetch may also request the same key again.
      for (auto& entry : give_back) {
        source->GiveBack(entry->step_id, entry->key, std::move(*entry->taken));
        entry->taken.reset();
      }
      for (auto& entry : cancel) entry->cancellation.StartCancel();
      for (auto& [stream, status] : end) stream->End(status);
      for (auto& [stream, outcome] : answer) stream->Send(std::move(outcome), 0);
    }
  };

  // The consumer's state, made if it is new. An error: the caller is not its present incarnation.
  absl::StatusOr<Consumer*> Find(const Caller& caller, Todo* todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the consumer must wait for an end before it may request more.
  bool IsFull(const FetchServerUse& use) const {
    return use.requests.load() >= options_.max_requests ||
           use.key_bytes.load() >= options_.max_key_bytes;
  }
  // Handles the part of a message that names ended fetches. kResourceExhausted: the consumer has
  // more channels, or leaves more gaps between ended fetches, than are remembered.
  absl::StatusOr<Peer*> TakeOver(Consumer* consumer, const Caller& caller,
                                 const rpc::FetchRequest& request, Todo* todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The consumer has told, in one of the ways, that the fetch has ended.
  void EndByConsumer(const std::shared_ptr<Entry>& entry, bool delivered, Todo* todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The consumer has sent no outcome. What was never sent goes back; anything else it may have, so
  // that is dropped.
  void GiveUp(const std::shared_ptr<Entry>& entry, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(const std::shared_ptr<Entry>& entry, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(const std::shared_ptr<Entry>& entry, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlone(const std::shared_ptr<Entry>& entry, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAttended(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAlone(int64_t before_ns, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const std::shared_ptr<Entry>& entry);
  void OnTaken(const std::shared_ptr<Entry>& entry, Received&& taken);
  // A take that was no longer wanted has ended, so the requests behind it go on.
  void LetGoOn(const Entry& entry, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnNote(const Caller& caller, const rpc::FetchRequest& request, Stream* stream);
  void OnBatch(const Caller& caller, const rpc::FetchRequest& request,
               const std::shared_ptr<Stream>& stream);
  std::shared_ptr<Entry> NewEntry(Peer* peer, uint64_t serial, int64_t step_id,
                                  const TensorKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True: ask the source now, without the lock. False: other requests come first.
  bool MayTake(const std::shared_ptr<Entry>& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Registers one request of a batch.
  void Park(Peer* peer, const rpc::FetchAsk& ask, const TensorKey* key,
            std::vector<std::shared_ptr<Entry>>* takes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Peer* PeerOf(Consumer* consumer, const Caller& caller, uint64_t channel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Peer* FindPeer(const FetchServerPeer& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers the waiting batch, if there is something to tell.
  void TellReady(Peer* peer, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(Peer* peer, const std::vector<uint64_t>& ready, uint64_t number, Todo* todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts what is small of `ready` into the answer itself.
  void Pack(const Peer& peer, const std::vector<uint64_t>& ready, rpc::FetchHeader* header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnWaiterDone(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const Outcome> OtherLife(absl::string_view self, uint64_t asked) const;
  // Gives up requests from batches of consumers that have been silent since `before_ns`.
  void DropParked(int64_t before_ns, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Consumers that have been silent since `before_ns` and hold nothing make room for others.
  void SetSilentAside(int64_t before_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  rpc::FetchHeader Header() const;
  std::shared_ptr<const Outcome> Failure(const absl::Status& status) const;
  void AwaitCall();
  void Run(Todo* todo);
  void OnAlarm();
  // The entry waits for something else now, or has ended.
  void TraceEntry(Entry* entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TraceEnd(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TensorSource* const source_;
  Alarms* const alarms_;
  const uint64_t incarnation_;
  const Authorize authorize_;
  const Admit admit_;
  const FetchServerOptions options_;

  mutable Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, std::unique_ptr<Consumer>> consumers_ ABSL_GUARDED_BY(mu_);
  // Consumers that may be gone for ever. Who comes back gets its state again, so that nothing it
  // repeats is taken for new, and none of its earlier lives for its present one.
  absl::flat_hash_map<std::string, std::unique_ptr<Consumer>> silent_ ABSL_GUARDED_BY(mu_);
  // In the order in which they lost their streams.
  std::list<std::shared_ptr<Entry>> alone_ ABSL_GUARDED_BY(mu_);
  Alarms::Token alarm_ ABSL_GUARDED_BY(mu_) = Alarms::kNoToken;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  // Keys with a take under way that its consumer no longer wants. What it gets goes back, and the
  // next request must find it there.
  struct Leaving {
    int takes = 0;
    std::vector<std::shared_ptr<Entry>> behind;
  };
  absl::flat_hash_map<std::pair<int64_t, TensorKey>, Leaving> leaving_ ABSL_GUARDED_BY(mu_);
  int streams_ ABSL_GUARDED_BY(mu_) = 0;  // Includes those that wait for a call.
  CondVar no_streams_;

  // Constant after Start().
  grpc::ServerCompletionQueue* queue_ = nullptr;
  NextCall next_;
};

absl::StatusOr<FetchServer::State::Consumer*> FetchServer::State::Find(const Caller& caller,
                                                                       Todo* todo) {
  std::unique_ptr<Consumer>& slot = consumers_[caller.worker];
  if (slot == nullptr) {
    if (consumers_.size() > options_.max_consumers) {
      consumers_.erase(caller.worker);
      return absl::ResourceExhaustedError(
          "too many consumers fetch from this worker over gRPC: try again later");
    }
    const auto silent = silent_.find(caller.worker);
    if (silent != silent_.end()) {
      slot = std::move(silent->second);
      silent_.erase(silent);
    } else {
      slot = std::make_unique<Consumer>();
      slot->incarnation = caller.incarnation;
    }
    SetAlarm();
  }
  Consumer* consumer = slot.get();
  consumer->heard_ns = alarms_->clock().NowNs();
  if (consumer->incarnation == caller.incarnation) return consumer;
  const auto& retired = consumer->retired;
  if (std::find(retired.begin(), retired.end(), caller.incarnation) != retired.end()) {
    return absl::AbortedError(
        absl::StrCat(caller.worker, " has restarted: this call is from its earlier process ",
                     caller.incarnation, ", and its process now is ", consumer->incarnation));
  }
  // The consumer has a new incarnation: requests of the old one must not take its tensors.
  std::vector<std::shared_ptr<Entry>> entries;
  for (auto& [id, peer] : consumer->channels) {
    for (auto& [serial, entry] : peer.entries) entries.push_back(entry);
    if (peer.waiter == nullptr) continue;
    todo->end.emplace_back(std::move(peer.waiter),
                           grpc::Status(grpc::StatusCode::ABORTED, "the caller has restarted"));
  }
  for (auto& entry : entries) GiveUp(entry, todo);
  consumer->channels.clear();
  consumer->use = std::make_shared<FetchServerUse>();
  consumer->retired.push_back(consumer->incarnation);
  if (consumer->retired.size() > 8) consumer->retired.pop_front();
  consumer->incarnation = caller.incarnation;
  return consumer;
}

absl::StatusOr<FetchServer::State::Peer*> FetchServer::State::TakeOver(
    Consumer* consumer, const Caller& caller, const rpc::FetchRequest& request, Todo* todo) {
  auto& channels = consumer->channels;
  if (channels.size() >= kMaxChannels && channels.count(request.channel()) == 0) {
    // Most likely the consumer has closed these channels.
    for (auto it = channels.begin(); it != channels.end();) {
      it = it->second.idle() ? channels.erase(it) : std::next(it);
    }
    if (channels.size() >= kMaxChannels) {
      return absl::ResourceExhaustedError(
          "this consumer has too many gRPC channels open to this worker: close some");
    }
  }
  Peer* const peer = PeerOf(consumer, caller, request.channel());
  const uint64_t newest = request.waits() ? request.oldest_serial() : request.serial();
  peer->over.InsertBelow(std::min(request.oldest_serial(), newest));
  // Each fetch that ends or begins here may become a run. An honest consumer names what is unwanted
  // twice.
  const int more = std::max(request.over_size(), request.unwanted_size()) + request.asks_size() +
                   (request.waits() || request.ends() ? 0 : 1);
  const size_t runs = consumer->over_runs() + static_cast<size_t>(more);
  const bool fits = more == 0 || runs <= kMaxOverRuns + consumer->use->requests.load();
  if (!fits) {
    return absl::ResourceExhaustedError(
        "this consumer leaves old fetches open while it ends too many newer ones: end the old "
        "fetches first");
  }
  std::vector<std::shared_ptr<Entry>> entries;
  for (uint64_t serial : request.unwanted()) {
    auto it = peer->entries.find(serial);
    if (it == peer->entries.end()) continue;
    const std::shared_ptr<Entry> entry = it->second;
    EndByConsumer(entry, false, todo);
  }
  for (auto& [serial, entry] : peer->entries) {
    if (serial >= request.oldest_serial()) break;
    entries.push_back(entry);
  }
  for (uint64_t serial : request.over()) {
    auto it = peer->entries.find(serial);
    if (it != peer->entries.end()) entries.push_back(it->second);
    peer->over.Insert(serial);
  }
  for (auto& entry : entries) EndByConsumer(entry, true, todo);
  return peer;
}

void FetchServer::State::EndByConsumer(const std::shared_ptr<Entry>& entry, bool delivered,
                                       Todo* todo) {
  if (entry->over) return;
  if (!delivered) {
    // Otherwise it goes back when the take ends.
    if (entry->outcome != nullptr) GiveBack(entry, todo);
  } else if (entry->outcome != nullptr && entry->outcome->header.code() == 0) {
    ++counts_.tensors;
    counts_.bytes += entry->outcome->tensor.bytes();
  }
  Forget(entry, todo);
}

void FetchServer::State::GiveUp(const std::shared_ptr<Entry>& entry, Todo* todo) {
  if (!entry->over && !entry->sent && entry->outcome != nullptr) GiveBack(entry, todo);
  Forget(entry, todo);
}

void FetchServer::State::GiveBack(const std::shared_ptr<Entry>& entry, Todo* todo) {
  if (entry->taken == nullptr || entry->giving_back) return;
  entry->giving_back = true;
  ++counts_.given_back;
  todo->give_back.push_back(entry);
}

void FetchServer::State::Forget(const std::shared_ptr<Entry>& entry, Todo* todo) {
  if (entry->over) return;
  entry->over = true;
  TraceEnd(*entry);
  SetAttended(entry.get());
  if (Peer* peer = FindPeer(*entry->peer)) {
    peer->entries.erase(entry->serial);
    peer->over.Insert(entry->serial);
    if (peer->entries.empty()) {
      counts_.bursts_over += std::exchange(peer->most_entries, 0) >= Poller::kLargeBurst;
    }
  }
  if (entry->outcome == nullptr) {
    --counts_.waiting;
    counts_.parked -= entry->parked;
    todo->cancel.push_back(entry);
    if (entry->taking) ++leaving_[{entry->step_id, entry->key}].takes;
  }
  if (entry->stream != nullptr) todo->end.emplace_back(entry->stream, grpc::Status::OK);
  // A stream keeps its entry until gRPC is done with it, but not the tensor, which may hold one of
  // a few slots that others wait for.
  if (entry->outcome != nullptr && entry->taken != nullptr && !entry->giving_back) {
    todo->let_go.push_back(std::move(entry->taken));
  }
  todo->release.push_back(std::move(entry->outcome));
}

void FetchServer::State::SetAlone(const std::shared_ptr<Entry>& entry, Todo* todo) {
  entry->alone_since_ns = std::max<int64_t>(1, alarms_->clock().NowNs());
  TraceEntry(entry.get());
  if (entry->outcome != nullptr) counts_.kept_bytes += entry->outcome->tensor.bytes();
  entry->alone_at = alone_.insert(alone_.end(), entry);
  DropAlone(0, todo);
  SetAlarm();
}

void FetchServer::State::SetAlarm() {
  if (alarm_ != Alarms::kNoToken || closing_ || consumers_.empty()) return;
  int64_t since_ns = alarms_->clock().NowNs();  // Then some may have been silent for as long.
  if (!alone_.empty()) since_ns = std::min(since_ns, alone_.front()->alone_since_ns);
  for (const auto& [worker, consumer] : consumers_) {
    for (const auto& [id, peer] : consumer->channels) {
      if (peer.no_waiter_ns == 0 || peer.entries.empty()) continue;
      since_ns = std::min(since_ns, peer.no_waiter_ns);
    }
  }
  auto self = weak_from_this();
  alarm_ =
      alarms_->Set(Deadline::AtNs(since_ns + absl::ToInt64Nanoseconds(options_.keep_for)), [self] {
        if (auto state = self.lock()) state->OnAlarm();
      });
}

void FetchServer::State::SetAttended(Entry* entry) {
  if (entry->alone_since_ns != 0) {
    if (entry->outcome != nullptr) counts_.kept_bytes -= entry->outcome->tensor.bytes();
    alone_.erase(entry->alone_at);  // The caller holds the entry.
  }
  entry->alone_since_ns = 0;
  TraceEntry(entry);
}

void FetchServer::State::TraceEntry(Entry* entry) const {
  const WaitsFor what = entry->alone_since_ns != 0  ? WaitsFor::kConsumer
                        : entry->outcome == nullptr ? WaitsFor::kLocalSend
                                                    : WaitsFor::kAcceptance;
  entry->span.Enter(what, alarms_->clock().NowNs());
}

void FetchServer::State::TraceEnd(const Entry& entry) {
  if (options_.trace == nullptr) return;
  const bool has_it = entry.outcome != nullptr;
  const auto answer = has_it ? static_cast<absl::StatusCode>(entry.outcome->header.code())
                             : absl::StatusCode::kCancelled;
  // A tensor that goes back was not accepted.
  const bool goes_back = entry.giving_back && answer == absl::StatusCode::kOk;
  options_.trace->End(entry.span, entry.peer->track, entry.step_id, entry.key,
                      has_it ? entry.outcome->tensor.tensor_bytes() : 0,
                      goes_back ? absl::StatusCode::kCancelled : answer, alarms_->clock().NowNs());
}

// Drops the entries that lost their stream before `before_ns`, then the oldest until the bytes fit.
void FetchServer::State::DropAlone(int64_t before_ns, Todo* todo) {
  while (!alone_.empty()) {
    const std::shared_ptr<Entry> entry = alone_.front();
    if (entry->alone_since_ns >= before_ns && counts_.kept_bytes <= options_.max_kept_bytes) return;
    ++counts_.dropped;
    GiveUp(entry, todo);
  }
}

void FetchServer::State::OnAlarm() {
  Todo todo;
  {
    MutexLock lock(&mu_);
    alarm_ = Alarms::kNoToken;
    const int64_t before_ns =
        alarms_->clock().NowNs() - absl::ToInt64Nanoseconds(options_.keep_for) + 1;
    DropAlone(before_ns, &todo);
    DropParked(before_ns, &todo);
    SetSilentAside(before_ns);
    SetAlarm();
  }
  Run(&todo);
}

void FetchServer::State::DropParked(int64_t before_ns, Todo* todo) {
  std::vector<std::shared_ptr<Entry>> entries;
  for (const auto& [worker, consumer] : consumers_) {
    for (auto& [id, peer] : consumer->channels) {
      if (peer.no_waiter_ns == 0 || peer.no_waiter_ns >= before_ns) continue;
      peer.no_waiter_ns = 0;
      for (const auto& [serial, entry] : peer.entries) {
        if (!entry->parked) continue;  // It has, or had, a call of its own.
        entries.push_back(entry);
        // If the consumer comes back, its call for this serial is told that it has ended.
        peer.ready.Push(serial);
      }
    }
  }
  counts_.dropped += entries.size();
  for (const auto& entry : entries) GiveUp(entry, todo);
}

void FetchServer::State::SetSilentAside(int64_t before_ns) {
  for (auto at = consumers_.begin(); at != consumers_.end();) {
    const auto next = std::next(at);
    if (at->second->heard_ns < before_ns && !at->second->holds()) {
      if (silent_.size() == kMostSilent) silent_.clear();
      if (at->second->channels.size() + at->second->over_runs() <= kMostOfSilent &&
          at->second->to_tell() <= kMostToTellSilent) {
        silent_.emplace(at->first, std::move(at->second));
      }
      consumers_.erase(at);
    }
    at = next;
  }
  if (consumers_.empty()) consumers_ = {};  // Its slots, of which there may have been many.
}

rpc::FetchHeader FetchServer::State::Header() const {
  rpc::FetchHeader header;
  header.set_producer_incarnation(incarnation_);
  if (options_.takes_batches) header.set_parcel_bytes(kParcelBytes);
  return header;
}

std::shared_ptr<const Outcome> FetchServer::State::Failure(const absl::Status& status) const {
  auto outcome = std::make_shared<Outcome>();
  outcome->header = Header();
  outcome->header.set_code(status.raw_code());
  outcome->header.set_message(std::string(status.message()));
  outcome->header.set_is_derived(IsDerived(status));
  return outcome;
}

void FetchServer::State::OnRequest(const std::shared_ptr<Stream>& stream,
                                   const std::string& bytes) {
  const auto refuse = [this, &stream](const absl::Status& why) {
    {
      MutexLock lock(&mu_);
      ++counts_.refused;
    }
    stream->End(ToGrpc(why));
  };
  const absl::StatusOr<Caller> caller = authorize_(stream->context(), bytes);
  if (!caller.ok()) return refuse(caller.status());
  rpc::FetchRequest request;
  if (!request.ParseFromString(bytes) || (request.serial() == 0) != request.waits() ||
      request.over_size() > kMaxOver || request.unwanted_size() > kMaxOver ||
      request.asks_size() > kMaxAsks || (request.waits() && !options_.takes_batches)) {
    return refuse(
        absl::InvalidArgumentError("this release cannot read the consumer's request "
                                   "(FetchRequest): run the same release on both"));
  }
  if (request.sealed() && !options_.token.empty()) {
    stream->Seal(options_.token);
  } else if (options_.seals && (!request.ends() || request.waits())) {
    return refuse(absl::FailedPreconditionError(
        "this worker encrypts what it sends, and the consumer does not read that: it runs a "
        "release before 0.3.0, or has encrypt=off; set both alike"));
  }
  stream->digests = options_.digests || request.digests();
  stream->takes_parcels = request.takes_parcels();
  if (request.waits()) return OnBatch(*caller, request, stream);
  if (request.ends()) return OnNote(*caller, request, stream.get());
  const absl::StatusOr<TensorKey> key = TensorKey::Parse(request.key());
  if (!key.ok()) return refuse(key.status());
  const absl::Status admitted = admit_(*caller, *key);
  if (!admitted.ok()) return refuse(admitted);
  if (request.producer_incarnation() != 0 && request.producer_incarnation() != incarnation_) {
    return stream->Send(OtherLife(key->src().worker, request.producer_incarnation()), 0);
  }

  Todo todo;
  absl::Status refused;
  std::shared_ptr<const Outcome> outcome;
  std::shared_ptr<Entry> take;
  {
    MutexLock lock(&mu_);
    absl::StatusOr<Consumer*> consumer = Find(*caller, &todo);
    if (closing_) {
      refused = absl::UnavailableError("the producer is stopping");
    } else if (!consumer.ok()) {
      refused = consumer.status();
    } else if (auto found = TakeOver(*consumer, *caller, request, &todo); !found.ok()) {
      refused = found.status();
    } else {
      Peer& peer = **found;
      auto it = peer.entries.find(request.serial());
      if (it != peer.entries.end()) {
        Entry* entry = it->second.get();
        if (!std::exchange(entry->parked, false)) {
          ++counts_.repetitions;
        } else if (entry->outcome == nullptr) {
          --counts_.parked;
        }
        if (entry->stream != nullptr) {
          todo.end.emplace_back(entry->stream,
                                grpc::Status(grpc::StatusCode::ABORTED, "asked again"));
        }
        SetAttended(entry);
        entry->stream = stream;
        stream->entry = it->second;
        outcome = entry->outcome;
        entry->sent |= outcome != nullptr;
      } else if (peer.over.Contains(request.serial()) || request.offset() != 0) {
        outcome = Failure(
            absl::AbortedError(absl::StrCat("fetch ", request.serial(), " of ", caller->worker,
                                            " has ended already: it was repeated, or its consumer "
                                            "did not come back for the tensor in time")));
      } else if (IsFull(*peer.use)) {
        refused = absl::ResourceExhaustedError(
            "too many requests of this consumer wait at this worker: send more once some have "
            "ended");
      } else {
        take = NewEntry(&peer, request.serial(), request.step_id(), *key);
        take->stream = stream;
        stream->entry = take;
        if (!MayTake(take)) take = nullptr;
      }
    }
  }
  Run(&todo);
  if (!refused.ok()) return refuse(refused);
  if (outcome != nullptr) return stream->Send(outcome, request.offset());
  if (take != nullptr) Take(take);
}

void FetchServer::State::OnNote(const Caller& caller, const rpc::FetchRequest& request,
                                Stream* stream) {
  Todo todo;
  absl::Status known;
  {
    MutexLock lock(&mu_);
    absl::StatusOr<Consumer*> consumer = Find(caller, &todo);
    known =
        consumer.ok() ? TakeOver(*consumer, caller, request, &todo).status() : consumer.status();
  }
  Run(&todo);
  stream->End(ToGrpc(known));
}

FetchServer::State::Peer* FetchServer::State::PeerOf(Consumer* consumer, const Caller& caller,
                                                     uint64_t channel) {
  Peer& peer = consumer->channels[channel];
  if (peer.name == nullptr) {
    peer.use = consumer->use;
    TraceTrack* const track = options_.trace == nullptr
                                  ? nullptr
                                  : options_.trace->Track(TraceRole::kServe, caller.worker, "grpc");
    peer.name = std::make_shared<FetchServerPeer>(
        FetchServerPeer{caller.worker, caller.incarnation, channel, track});
  }
  return &peer;
}

FetchServer::State::Peer* FetchServer::State::FindPeer(const FetchServerPeer& name) {
  const auto consumer = consumers_.find(name.worker);
  if (consumer == consumers_.end() || consumer->second->incarnation != name.incarnation) {
    return nullptr;
  }
  const auto peer = consumer->second->channels.find(name.channel);
  return peer == consumer->second->channels.end() ? nullptr : &peer->second;
}

std::shared_ptr<Entry> FetchServer::State::NewEntry(Peer* peer, uint64_t serial, int64_t step_id,
                                                    const TensorKey& key) {
  ++counts_.requests;
  ++counts_.waiting;
  auto entry = std::make_shared<Entry>(peer->use, key);
  entry->peer = peer->name;
  entry->serial = serial;
  entry->step_id = step_id;
  entry->span.Begin(WaitsFor::kLocalSend, alarms_->clock().NowNs());
  entry->span.id = TraceId(peer->name->incarnation ^ peer->name->channel, serial, step_id);
  peer->entries.emplace(serial, entry);
  peer->most_entries = std::max(peer->most_entries, peer->entries.size());
  return entry;
}

bool FetchServer::State::MayTake(const std::shared_ptr<Entry>& entry) {
  const auto leaving = leaving_.find({entry->step_id, entry->key});
  if (leaving != leaving_.end()) {
    leaving->second.behind.push_back(entry);
    return false;
  }
  return entry->taking = true;
}

void FetchServer::State::Park(Peer* peer, const rpc::FetchAsk& ask, const TensorKey* key,
                              std::vector<std::shared_ptr<Entry>>* takes) {
  const uint64_t serial = ask.serial();
  const auto known = peer->entries.find(serial);
  if (known != peer->entries.end()) {
    if (known->second->outcome != nullptr) peer->ready.Push(serial);
    return;
  }
  // A call for it will be told what is wrong.
  if (serial == 0 || key == nullptr || peer->over.Contains(serial) || IsFull(*peer->use)) {
    peer->ready.Push(serial);
    return;
  }
  std::shared_ptr<Entry> entry = NewEntry(peer, serial, ask.step_id(), *key);
  entry->parked = true;
  ++counts_.parked;
  if (MayTake(entry)) takes->push_back(std::move(entry));
}

void FetchServer::State::OnBatch(const Caller& caller, const rpc::FetchRequest& request,
                                 const std::shared_ptr<Stream>& stream) {
  const uint64_t asked_of = request.producer_incarnation();
  if (asked_of != 0 && asked_of != incarnation_) {
    return stream->Send(OtherLife("the producer", asked_of), 0);
  }
  std::vector<absl::StatusOr<TensorKey>> keys;
  keys.reserve(static_cast<size_t>(request.asks_size()));
  for (const rpc::FetchAsk& ask : request.asks()) {
    keys.push_back(TensorKey::Parse(ask.key()));
    if (!keys.back().ok()) continue;
    const absl::Status admitted = admit_(caller, *keys.back());
    if (!admitted.ok()) keys.back() = admitted;
  }
  std::shared_ptr<const FetchServerPeer> name;
  absl::Status refused;
  std::vector<std::shared_ptr<Entry>> takes;
  Todo todo;
  {
    MutexLock lock(&mu_);
    absl::StatusOr<Consumer*> consumer = Find(caller, &todo);
    if (closing_) {
      refused = absl::UnavailableError("the producer is stopping");
    } else if (!consumer.ok()) {
      refused = consumer.status();
    } else if (auto found = TakeOver(*consumer, caller, request, &todo); !found.ok()) {
      refused = found.status();
    } else {
      Peer* peer = *found;
      name = peer->name;
      if (request.heard() < peer->answers) {
        for (uint64_t serial : peer->told) peer->ready.Push(serial);
      }
      // More, if we have forgotten it: an answer must have a number that it has not heard.
      peer->answers = std::max(peer->answers, request.heard());
      peer->told.clear();
      if (std::exchange(peer->away, false)) {
        for (uint64_t serial : peer->ready) {
          const auto it = peer->entries.find(serial);
          if (it != peer->entries.end() && it->second->parked) SetAttended(it->second.get());
        }
      }
      if ((*consumer)->to_tell() > options_.max_requests) (*consumer)->TellLess(peer);
      if ((*consumer)->to_tell() > options_.max_requests) {
        refused = absl::ResourceExhaustedError(
            "too many requests of this consumer wait at this worker: send more once some have "
            "ended");
      } else {
        for (int i = 0; i < request.asks_size(); ++i) {
          const auto& key = keys[static_cast<size_t>(i)];
          Park(peer, request.asks(i), key.ok() ? &*key : nullptr, &takes);
        }
      }
    }
  }
  Run(&todo);
  if (!refused.ok()) {
    {
      MutexLock lock(&mu_);
      ++counts_.refused;
    }
    return stream->End(ToGrpc(refused));
  }
  for (const auto& entry : takes) Take(entry);
  Todo then;
  {
    MutexLock lock(&mu_);
    Peer* peer = FindPeer(*name);
    if (peer == nullptr || closing_) {
      then.end.emplace_back(stream, grpc::Status(grpc::StatusCode::UNAVAILABLE, "it is over"));
    } else {
      if (peer->waiter != nullptr) Answer(peer, {}, 0, &then);
      peer->waiter = stream;
      peer->no_waiter_ns = 0;
      stream->waits_for = name;
      // The consumer does not know our incarnation yet. Tell it now, so that it can tell a broken
      // connection from a restarted producer.
      if (asked_of == 0 && peer->ready.empty()) Answer(peer, {}, 0, &then);
      TellReady(peer, &then);
    }
  }
  Run(&then);
}

void FetchServer::State::TellReady(Peer* peer, Todo* todo) {
  if (peer->waiter == nullptr || peer->ready.empty()) return;
  std::vector<uint64_t> ready;
  while (!peer->ready.empty() && ready.size() < kMaxReady) {
    const auto it = peer->entries.find(peer->ready.front());
    if (it == peer->entries.end() || it->second->parked) ready.push_back(peer->ready.front());
    peer->ready.PopFront();
  }
  if (ready.empty()) return;
  peer->told = ready;
  Answer(peer, ready, ++peer->answers, todo);
}

void FetchServer::State::Answer(Peer* peer, const std::vector<uint64_t>& ready, uint64_t number,
                                Todo* todo) {
  auto outcome = std::make_shared<Outcome>();
  outcome->header = Header();
  outcome->header.set_number(number);
  for (uint64_t serial : ready) outcome->header.add_ready(serial);
  if (peer->waiter->takes_parcels) Pack(*peer, ready, &outcome->header);
  todo->answer.emplace_back(std::exchange(peer->waiter, nullptr), std::move(outcome));
}

void FetchServer::State::Pack(const Peer& peer, const std::vector<uint64_t>& ready,
                              rpc::FetchHeader* header) {
  size_t bytes = 0;
  for (uint64_t serial : ready) {
    const auto it = peer.entries.find(serial);
    if (it == peer.entries.end() || it->second->outcome == nullptr) continue;
    const Outcome& outcome = *it->second->outcome;
    const size_t most = outcome.tensor.bytes() + outcome.header.ByteSizeLong();
    if (outcome.tensor.bytes() > kParcelBytes || bytes + most > kMostParcelBytes) continue;
    bytes += most;
    rpc::FetchParcel* parcel = header->add_parcels();
    parcel->set_serial(serial);
    parcel->set_response(outcome.tensor.Parcel(outcome.header, peer.waiter->digests));
    it->second->sent = true;
    ++counts_.parcels;
  }
}

// The last event of a batch's call. A live consumer comes back at once.
void FetchServer::State::OnWaiterDone(Stream* stream) {
  Peer* peer = FindPeer(*stream->waits_for);
  if (peer == nullptr || (peer->waiter != nullptr && peer->waiter.get() != stream)) return;
  if (peer->no_waiter_ns == 0 && !closing_) {
    peer->no_waiter_ns = std::max<int64_t>(1, alarms_->clock().NowNs());
  }
  // Nothing is ready that it could have been told of.
  if (std::exchange(peer->waiter, nullptr) != nullptr) peer->away = true;
  SetAlarm();
}

std::shared_ptr<const Outcome> FetchServer::State::OtherLife(absl::string_view self,
                                                             uint64_t asked) const {
  auto outcome = std::make_shared<Outcome>(*Failure(Restarted(self, asked, incarnation_)));
  outcome->header.set_is_other_incarnation(true);
  return outcome;
}

void FetchServer::State::LetGoOn(const Entry& entry, Todo* todo) {
  const auto leaving = leaving_.find({entry.step_id, entry.key});
  if (leaving == leaving_.end() || --leaving->second.takes > 0) return;
  for (std::shared_ptr<Entry>& next : leaving->second.behind) {
    if (next->over) continue;
    next->taking = true;
    todo->take.push_back(std::move(next));
  }
  leaving_.erase(leaving);
}

void FetchServer::State::Run(Todo* todo) {
  todo->Run(source_);
  for (auto& entry : todo->take) Take(entry);
}

void FetchServer::State::Take(const std::shared_ptr<Entry>& entry) {
  RecvArgs args;
  args.cancellation = &entry->cancellation;
  auto self = shared_from_this();
  source_->Take(entry->step_id, entry->key, args,
                [self, entry](Received&& taken) { self->OnTaken(entry, std::move(taken)); });
}

void FetchServer::State::OnTaken(const std::shared_ptr<Entry>& entry, Received&& taken) {
  const absl::Status status = taken.status;
  const Tensor tensor = taken.tensor;
  const bool is_dead = taken.is_dead;
  if (status.ok()) entry->taken = std::make_unique<Received>(std::move(taken));
  std::shared_ptr<const Outcome> outcome;
  absl::StatusOr<OutgoingTensor> out =
      status.ok() ? OutgoingTensor::Make(tensor, is_dead) : absl::StatusOr<OutgoingTensor>(status);
  if (out.ok()) {
    auto made = std::make_shared<Outcome>();
    made->header = Header();
    *made->header.mutable_tensor() = out->metadata();
    made->tensor = *std::move(out);
    outcome = std::move(made);
  } else {
    outcome = Failure(out.status());
  }
  Todo todo;
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    // It is not wanted any more, or cannot be sent from here, so the next take gets it.
    if (entry->over || outcome->header.code() != 0) GiveBack(entry, &todo);
    entry->taking = false;
    if (entry->over) {
      LetGoOn(*entry, &todo);
    } else {
      --counts_.waiting;
      counts_.parked -= entry->parked;
      entry->outcome = outcome;
      TraceEntry(entry.get());
      stream = entry->stream;
      entry->sent = stream != nullptr;
      Peer* const peer = entry->parked ? FindPeer(*entry->peer) : nullptr;
      if (peer != nullptr) {
        peer->ready.Push(entry->serial);
        if (peer->away) SetAlone(entry, &todo);
        TellReady(peer, &todo);
      } else if (entry->alone_since_ns != 0) {
        counts_.kept_bytes += outcome->tensor.bytes();
        DropAlone(0, &todo);
      }
    }
  }
  Run(&todo);
  if (stream != nullptr) stream->Send(std::move(outcome), 0);
}

void FetchServer::State::Start(grpc::ServerCompletionQueue* queue, NextCall next) {
  queue_ = queue;
  next_ = std::move(next);
  for (int i = 0; i < kCallsAwaited; ++i) AwaitCall();
}

void FetchServer::State::AwaitCall() {
  {
    MutexLock lock(&mu_);
    ++streams_;
  }
  std::make_shared<Stream>(shared_from_this())
      ->Wait([this](grpc::ServerContext* context, CallStream* stream, void* tag) {
        next_(context, stream, queue_, tag);
      });
}

void FetchServer::State::OnCall(bool ok) {
  if (ok) return AwaitCall();
  MutexLock lock(&mu_);
  if (--streams_ == 0) no_streams_.NotifyAll();
}

void FetchServer::State::AwaitEnd() {
  MutexLock lock(&mu_);
  while (streams_ > 0) no_streams_.Wait(&mu_);
}

void FetchServer::State::OnStreamDone(Stream* stream) {
  Todo todo;
  {
    MutexLock lock(&mu_);
    std::shared_ptr<Entry> entry = std::move(stream->entry);
    if (entry != nullptr && entry->stream.get() == stream) {
      entry->stream = nullptr;
      if (!entry->over) SetAlone(entry, &todo);
    }
    if (stream->waits_for != nullptr) OnWaiterDone(stream);
    if (--streams_ == 0) no_streams_.NotifyAll();
  }
  Run(&todo);
}

void FetchServer::State::Shutdown() {
  Todo todo;
  Alarms::Token alarm;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    alarm = std::exchange(alarm_, Alarms::kNoToken);
    std::vector<std::shared_ptr<Entry>> entries;
    for (auto& [worker, consumer] : consumers_) {
      for (auto& [id, peer] : consumer->channels) {
        for (auto& [serial, entry] : peer.entries) {
          // A transfer under way may still land.
          if (entry->outcome == nullptr || entry->stream == nullptr) entries.push_back(entry);
        }
        if (peer.waiter == nullptr) continue;
        todo.end.emplace_back(std::move(peer.waiter),
                              grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping"));
        peer.waiter = nullptr;
      }
    }
    for (auto& entry : entries) {
      if (entry->stream != nullptr) {
        todo.end.emplace_back(std::move(entry->stream),
                              grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping"));
        entry->stream = nullptr;
      }
      Forget(entry, &todo);
    }
    alone_.clear();
  }
  if (alarm != Alarms::kNoToken) alarms_->Cancel(alarm);
  Run(&todo);
}

FetchServer::Counts FetchServer::State::counts() const {
  MutexLock lock(&mu_);
  Counts counts = counts_;
  counts.alone = alone_.size();
  counts.consumers = consumers_.size();
  counts.silent = silent_.size();
  for (const auto& [worker, consumer] : consumers_) {
    for (const auto& [id, peer] : consumer->channels) {
      for (const auto& [serial, entry] : peer.entries) {
        counts.sending += entry->outcome != nullptr && entry->stream != nullptr;
      }
    }
  }
  return counts;
}

void FetchServer::State::ListOps(LiveOps* ops) const {
  MutexLock lock(&mu_);
  for (const auto& [worker, consumer] : consumers_) {
    for (const auto& [id, peer] : consumer->channels) {
      for (const auto& [serial, entry] : peer.entries) {
        const uint64_t bytes = entry->outcome != nullptr ? entry->outcome->tensor.bytes() : 0;
        ops->Add({TraceRole::kServe, worker, "grpc", entry->step_id, entry->key, entry->span, bytes,
                  ""});
      }
    }
  }
}

FetchServer::FetchServer(TensorSource* source, Alarms* alarms, uint64_t incarnation,
                         Authorize authorize, Admit admit, FetchServerOptions options)
    : state_(std::make_shared<State>(source, alarms, incarnation, std::move(authorize),
                                     std::move(admit), options)) {}

FetchServer::~FetchServer() = default;

void FetchServer::Start(grpc::ServerCompletionQueue* queue, NextCall next) {
  state_->Start(queue, std::move(next));
}

void FetchServer::Join() { state_->AwaitEnd(); }

void FetchServer::Shutdown() { state_->Shutdown(); }

FetchServer::Counts FetchServer::counts() const { return state_->counts(); }

void FetchServer::ListOps(LiveOps* ops) const { state_->ListOps(ops); }

}  // namespace tryst
