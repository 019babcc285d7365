#include "plugins/tensorflow/consumer_link.h"

#include <algorithm>
#include <utility>

#include "plugins/tensorflow/keys.h"

namespace tryst_tensorflow {
namespace {

// How many batches it listens for at once; the consumer has two under way.
constexpr uint64_t kAhead = 3;

// A receive fails when the consumer has not been reached for the time that `patience` says. It may
// only be paused, so it is listened to again: so often, after a pause. A receive that waited for as
// long as kWasThere shows that the consumer was there.
constexpr int kMostFailures = 60 * static_cast<int>(kAhead);
constexpr std::chrono::seconds kListenAgain(1);
constexpr std::chrono::hours kWasThere(1);

void DeleteText(void* text) { delete static_cast<std::string*>(text); }

}  // namespace

ConsumerLink::ConsumerLink(Worker* worker, const Peer& consumer, uint32_t number,
                           OnWanted on_wanted, OnCancel on_cancel)
    : worker_(worker),
      consumer_(consumer),
      number_(number),
      on_wanted_(std::move(on_wanted)),
      on_cancel_(std::move(on_cancel)) {}

ConsumerLink::~ConsumerLink() { CleanUpLanes(); }

void ConsumerLink::CleanUpLanes() {
  if (worker_->stopped()) return;
  for (uint32_t lane = 0; lane < lanes_; ++lane) {
    worker_->library().tryst_step_cleanup(worker_->server(), StepOfLane(number_, lane));
  }
}

void ConsumerLink::Listen() {
  for (uint64_t n = 0; n < kAhead; ++n) ListenFor(n);
}

// Ends the receives that are open: their callbacks keep this object alive.
void ConsumerLink::Close() {
  if (closed_.exchange(true) || worker_->stopped()) return;
  worker_->library().tryst_step_cleanup(worker_->server(), StepOfLane(number_, kAskLane));
  CleanUpLanes();
}

void ConsumerLink::ListenFor(uint64_t n) {
  const std::string key = AskKey(worker_->library(), consumer_, worker_->self().name, n);
  worker_->library().tryst_recv_async(
      worker_->server(), StepOfLane(number_, kAskLane), key.c_str(), nullptr, OnBatch,
      new Listening{shared_from_this(), n, std::chrono::steady_clock::now()});
}

bool ConsumerLink::MayReturn(const tryst_status* failed,
                             std::chrono::steady_clock::time_point since) {
  if (worker_->library().tryst_status_code(failed) != TRYST_UNAVAILABLE) return false;
  if (std::chrono::steady_clock::now() - since > kWasThere) failures_ = 0;
  return ++failures_ <= kMostFailures && !closed_ && !worker_->stopped();
}

void ConsumerLink::OnBatch(void* arg, const tryst_status* failed, tryst_tensor* tensor, int) {
  const std::unique_ptr<Listening> listening(static_cast<Listening*>(arg));
  ConsumerLink* link = listening->link.get();
  if (failed != nullptr && link->MayReturn(failed, listening->since)) {
    return link->worker_->RunLater(kListenAgain, [kept = listening->link, n = listening->n] {
      if (!kept->closed_) kept->ListenFor(n);
    });
  }
  if (failed != nullptr || tensor == nullptr) return link->Close();
  link->failures_ = 0;
  const Library& library = link->worker_->library();
  std::string batch(static_cast<const char*>(library.tryst_tensor_data(tensor)),
                    library.tryst_tensor_bytes(tensor));
  library.tryst_tensor_free(tensor);
  if (link->closed_) return;
  link->ListenFor(listening->n + kAhead);
  link->Hear(listening->n, std::move(batch));
}

void ConsumerLink::Hear(uint64_t n, std::string batch) {
  std::unique_lock<std::mutex> lock(mu_);
  early_.emplace(n, std::move(batch));
  if (heeding_) return;
  heeding_ = true;
  for (auto it = early_.find(next_); it != early_.end(); it = early_.find(next_)) {
    const std::string next = std::move(it->second);
    early_.erase(it);
    ++next_;
    lock.unlock();
    Heed(next);
    lock.lock();
  }
  heeding_ = false;
}

void ConsumerLink::Heed(const std::string& batch) {
  std::vector<Ask> asks;
  if (!ReadAsks(batch, &asks)) return Close();
  for (const Ask& ask : asks) HeedOne(ask);
}

void ConsumerLink::HeedOne(const Ask& ask) {
  if (ask.kind == Ask::kForget) return keys_.clear();
  if (ask.kind == Ask::kCancel) return on_cancel_(ask.step);
  if (ask.kind == Ask::kNewTensor) {
    auto key = std::make_shared<Key>();
    key->text.assign(ask.key);
    key->name = TrystKey(worker_->library(), ask.key, worker_->self(), consumer_.name);
    if (keys_.size() <= ask.id) keys_.resize(ask.id + 1);
    keys_[ask.id] = std::move(key);
  }
  if (ask.id >= keys_.size() || keys_[ask.id] == nullptr) return Close();
  lanes_ = std::max(lanes_.load(), ask.lane + 1);
  on_wanted_({shared_from_this(), keys_[ask.id], ask.step, ask.lane});
}

void ConsumerLink::Send(const Wanted& wanted, tryst_tensor* tensor) {
  const Library& library = worker_->library();
  // Nobody would take it. If the link closes now, its lanes are over, and refuse the tensor.
  if (closed_) return library.tryst_tensor_free(tensor);
  tryst_status* failed = library.tryst_send(worker_->server(), StepOfLane(number_, wanted.lane),
                                            wanted.key->name.c_str(), tensor);
  library.tryst_tensor_free(tensor);
  library.tryst_status_free(failed);  // The link is broken; the consumer notices by itself.
}

void ConsumerLink::Send(const Wanted& wanted, const Answer& answer) {
  auto* bytes = new std::string(WriteAnswer(answer));
  const int64_t dims[kAnswerRank] = {1, 1, 1, 1, 1, 1, 1, static_cast<int64_t>(bytes->size())};
  tryst_tensor* tensor = nullptr;
  const Library& library = worker_->library();
  library.tryst_status_free(library.tryst_tensor_adopt(bytes->data(), TRYST_UINT8, dims,
                                                       kAnswerRank, DeleteText, bytes, &tensor));
  if (tensor != nullptr) Send(wanted, tensor);
}

}  // namespace tryst_tensorflow
