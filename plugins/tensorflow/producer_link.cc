#include "plugins/tensorflow/producer_link.h"

#include <algorithm>
#include <utility>

#include "plugins/tensorflow/keys.h"

namespace tryst_tensorflow {
namespace {

constexpr int kBatchesOut = 2;
constexpr size_t kLongestKey = 3072;

// A batch under way. The library refers to its bytes.
struct Batch {
  std::string bytes;
  std::function<void()> taken;
};

void OnBatchTaken(void* batch) {
  std::unique_ptr<Batch> taken(static_cast<Batch*>(batch));
  taken->taken();
}

bool IsLinksFault(tryst_code code) {
  return code == TRYST_UNAVAILABLE || code == TRYST_ABORTED || code == TRYST_CANCELLED;
}

}  // namespace

ProducerLink::ProducerLink(Worker* worker, const Peer& producer, uint32_t number)
    : worker_(worker), producer_(producer), number_(number) {}

ProducerLink::~ProducerLink() {
  if (worker_->stopped()) return;
  for (uint32_t lane = 0; lane < lanes_; ++lane) {
    worker_->library().tryst_step_cleanup(worker_->server(), StepOfLane(number_, lane));
  }
  worker_->library().tryst_step_cleanup(worker_->server(), StepOfLane(number_, kAskLane));
}

std::shared_ptr<ProducerLink::Key> ProducerLink::KeyFor(std::string_view text, bool* is_new) {
  std::string key(text);
  const auto it = keys_.find(key);
  *is_new = it == keys_.end();
  if (!*is_new) return it->second;
  if (keys_.size() == kMaxKeys) {
    keys_.clear();
    first_lane_ = lanes_;
    Ask forget;
    forget.kind = Ask::kForget;
    AppendAsk(forget, &gathered_);
  }
  auto made = std::make_shared<Key>();
  made->id = static_cast<uint32_t>(keys_.size());
  made->name = TrystKey(worker_->library(), text, producer_, worker_->self().name);
  made->next_lane = first_lane_;
  if (made->name.empty()) return nullptr;
  keys_.emplace(std::move(key), made);
  return made;
}

bool ProducerLink::Fetch(int64_t step, std::string_view text, Done done) {
  if (text.size() > kLongestKey) return false;
  auto fetching = std::make_unique<Fetching>();
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Ask ask;
    bool is_new = false;
    fetching->key = KeyFor(text, &is_new);
    Key* key = fetching->key.get();
    if (key == nullptr) return false;
    if (key->free_lanes.empty()) {
      fetching->lane = key->next_lane++;
      lanes_ = std::max(lanes_, key->next_lane);
    } else {
      fetching->lane = key->free_lanes.back();
      key->free_lanes.pop_back();
    }
    ask.kind = is_new ? Ask::kNewTensor : Ask::kTensor;
    ask.id = key->id;
    ask.step = step;
    ask.lane = fetching->lane;
    ask.key = text;
    AppendAsk(ask, &gathered_);
  }
  fetching->link = shared_from_this();
  fetching->done = std::move(done);
  const std::string& name = fetching->key->name;
  const int64_t lane = StepOfLane(number_, fetching->lane);
  SendAsks();
  Fetching* out = fetching.release();
  worker_->library().tryst_recv_async(worker_->server(), lane, name.c_str(), nullptr, OnTensor,
                                      out);
  return true;
}

void ProducerLink::OnTensor(void* arg, const tryst_status* failed, tryst_tensor* tensor,
                            int is_dead) {
  std::unique_ptr<Fetching> fetching(static_cast<Fetching*>(arg));
  ProducerLink* link = fetching->link.get();
  if (failed != nullptr) {
    if (IsLinksFault(link->worker_->library().tryst_status_code(failed))) link->broken_ = true;
  } else {
    const std::lock_guard<std::mutex> lock(link->mu_);
    fetching->key->free_lanes.push_back(fetching->lane);
  }
  fetching->done(failed, tensor, is_dead != 0);
}

void ProducerLink::Cancel(int64_t step) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    // All fetches of a step are cancelled together, so one request is enough.
    if (step == last_cancelled_) return;
    last_cancelled_ = step;
    Ask ask;
    ask.kind = Ask::kCancel;
    ask.step = step;
    AppendAsk(ask, &gathered_);
  }
  SendAsks();
}

void ProducerLink::SendAsks() {
  auto batch = std::make_unique<Batch>();
  uint64_t n = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (gathered_.empty() || batches_out_ == kBatchesOut) return;
    batch->bytes.swap(gathered_);
    ++batches_out_;
    n = next_batch_++;
  }
  ++batches_;
  batch->taken = [weak = weak_from_this()] {
    const std::shared_ptr<ProducerLink> link = weak.lock();
    if (link == nullptr) return;
    {
      const std::lock_guard<std::mutex> lock(link->mu_);
      --link->batches_out_;
    }
    link->SendAsks();
  };
  const Library& library = worker_->library();
  const auto bytes = static_cast<int64_t>(batch->bytes.size());
  tryst_tensor* tensor = nullptr;
  Batch* out = batch.release();
  tryst_status* failed = library.tryst_tensor_adopt(out->bytes.data(), TRYST_UINT8, &bytes, 1,
                                                    OnBatchTaken, out, &tensor);
  if (failed == nullptr) {
    const std::string key = AskKey(library, worker_->self(), producer_.name, n);
    failed =
        library.tryst_send(worker_->server(), StepOfLane(number_, kAskLane), key.c_str(), tensor);
  }
  if (failed != nullptr) broken_ = true;
  library.tryst_status_free(failed);
  library.tryst_tensor_free(tensor);
}

}  // namespace tryst_tensorflow
