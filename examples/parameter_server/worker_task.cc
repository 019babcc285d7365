#include "examples/parameter_server/worker_task.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "examples/loopback.h"
#include "examples/parameter_server/progress.h"

namespace tryst {
namespace {

constexpr size_t kBatch = 64;
constexpr size_t kHeldOutBatch = 512;
constexpr absl::Duration kReportEvery = absl::Milliseconds(250);
constexpr absl::Duration kEvaluateEvery = absl::Milliseconds(500);
// How long a server may be away, or up without serving us.
constexpr absl::Duration kServerPatience = absl::Seconds(20);

}  // namespace

struct ServerLink::Pull {
  Mutex mu;
  CondVar changed;
  int pending ABSL_GUARDED_BY(mu) = 2;
  absl::Status status ABSL_GUARDED_BY(mu);
  Tensor rows ABSL_GUARDED_BY(mu);

  void OnLanded(absl::Status ended, Tensor tensor, bool is_rows) {
    MutexLock lock(&mu);
    if (status.ok()) status = std::move(ended);
    if (is_rows) rows = std::move(tensor);
    --pending;
    changed.NotifyAll();
  }
};

ServerLink::ServerLink(Server* worker, const Layout& layout, int server,
                       const std::atomic<bool>* stop)
    : worker_(worker),
      layout_(layout),
      stop_(stop),
      name_(WorkerName("ps", server)),
      dense_(*Tensor::Allocate(DType::kFloat, {layout.dense_elements(server)})) {}

ServerLink::~ServerLink() {
  if (rendezvous_ != nullptr) worker_->steps()->CleanupStep(step_);
}

TensorKey ServerLink::To(const char* edge) const {
  return LoopbackKey(worker_->worker(), worker_->incarnation(), name_, edge, iteration_);
}

TensorKey ServerLink::From(const char* edge) const {
  return LoopbackKey(name_, incarnation_, worker_->worker(), edge, iteration_);
}

absl::Status ServerLink::Connect() {
  const absl::Time until = absl::Now() + kServerPatience;
  while (!*stop_) {
    auto heard = worker_->calls()->Ping(name_, absl::Milliseconds(500));
    if (heard.ok() && heard->self.incarnation != incarnation_) {
      incarnation_ = heard->self.incarnation;
      is_new_ = true;
      break;
    }
    if (absl::Now() > until) {
      return heard.ok() ? absl::UnavailableError(absl::StrCat(name_, " serves us no longer"))
                        : heard.status();
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  if (*stop_) return absl::CancelledError("told to stop");
  step_ = SessionStep(worker_->incarnation(), incarnation_);
  auto rendezvous = worker_->steps()->StartStep(step_);
  if (!rendezvous.ok()) return rendezvous.status();
  rendezvous_ = *std::move(rendezvous);
  iteration_ = 0;
  return absl::OkStatus();
}

void ServerLink::Ask() {
  pull_ = std::make_shared<Pull>();
  // The receives come first, so that the server can write as soon as it gets the ids.
  for (const bool is_rows : {true, false}) {
    RecvArgs args;
    if (!is_rows) args.destination = dense_;  // The server's NIC writes into it, without a copy.
    rendezvous_->RecvAsync(
        From(is_rows ? kRowsEdge : kDenseEdge), args, [pull = pull_, is_rows](Received&& received) {
          pull->OnLanded(std::move(received.status), std::move(received.tensor), is_rows);
        });
  }
  Tensor ids = *Tensor::Allocate(DType::kInt32, {static_cast<int64_t>(ids_.size())});
  std::memcpy(ids.mutable_data(), ids_.data(), ids.bytes());
  bytes_moved_ += static_cast<int64_t>(ids.bytes());
  Give(kIdsEdge, std::move(ids));
}

// A send is refused only when the session was aborted. Then the next pull fails and says why.
void ServerLink::Give(const char* edge, Tensor tensor) {
  const bool is_dead = !tensor.valid();
  (void)rendezvous_->Send(To(edge), {}, std::move(tensor), is_dead);
}

// Waits for the answer, or until we are told to stop.
absl::Status ServerLink::WaitForAnswer() {
  bool told = false;
  MutexLock lock(&pull_->mu);
  while (pull_->pending > 0) {
    pull_->changed.WaitUntil(&pull_->mu,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
    if (!*stop_ || told || pull_->pending == 0) continue;
    told = true;
    pull_->mu.Unlock();
    rendezvous_->StartAbort(absl::CancelledError("told to stop"));
    pull_->mu.Lock();
  }
  rows_ = std::move(pull_->rows);
  return pull_->status;
}

void ServerLink::StartPull(std::vector<int32_t> ids) {
  ids_ = std::move(ids);
  if (rendezvous_ != nullptr) Ask();
}

absl::Status ServerLink::Pulled() {
  for (;;) {
    if (rendezvous_ == nullptr) {
      absl::Status connected = Connect();
      if (!connected.ok()) return connected;
      Ask();
    }
    const absl::Status answer = WaitForAnswer();
    if (answer.ok()) break;
    if (*stop_) return absl::CancelledError("told to stop");
    std::printf("lost %s: %s\n", ShortName(name_).c_str(), answer.ToString().c_str());
    worker_->steps()->CleanupStep(step_);
    rendezvous_ = nullptr;
  }
  bytes_moved_ += static_cast<int64_t>(rows_.bytes() + dense_.bytes());
  return absl::OkStatus();
}

void ServerLink::Push(Tensor rows, Tensor dense) {
  bytes_moved_ += static_cast<int64_t>(rows.bytes() + dense.bytes());
  Give(kRowGradientsEdge, std::move(rows));
  Give(kDenseGradientsEdge, std::move(dense));
  ++iteration_;
}

namespace {

// What one worker has of the model, and its links.
class Trainer {
 public:
  Trainer(Server* worker, const Layout& layout, const std::atomic<bool>* stop)
      : layout_(layout), parameters_(layout), gradients_(layout) {
    for (int s = 0; s < layout.servers; ++s) {
      links_.push_back(std::make_unique<ServerLink>(worker, layout, s, stop));
    }
  }

  // Returns the loss of the batch. Learns from it, or only evaluates.
  absl::StatusOr<float> Step(const Batch& batch, bool learn) {
    absl::Status pulled = Pull(batch);
    if (!pulled.ok()) return pulled;
    const float loss = Loss(layout_, batch, parameters_, learn ? &gradients_ : nullptr);
    for (int s = 0; s < layout_.servers; ++s) {
      if (!learn) {
        links_[s]->Push(Tensor(), Tensor());
        continue;
      }
      Tensor dense = *Tensor::Allocate(DType::kFloat, {layout_.dense_elements(s)});
      WriteDense(layout_, s, gradients_, static_cast<float*>(dense.mutable_data()));
      links_[s]->Push(GradientRows(s), std::move(dense));
    }
    return loss;
  }

  const std::vector<std::unique_ptr<ServerLink>>& links() const { return links_; }
  int64_t bytes_moved() const {
    int64_t sum = 0;
    for (const auto& link : links_) sum += link->bytes_moved();
    return sum;
  }

 private:
  absl::Status Pull(const Batch& batch) {
    places_.assign(static_cast<size_t>(layout_.servers), {});
    std::vector<std::vector<int32_t>> ids(places_.size());
    for (size_t i = 0; i < batch.words.size(); ++i) {
      const int server = batch.words[i] % layout_.servers;
      places_[server].push_back(static_cast<int>(i));
      ids[server].push_back(batch.words[i] / layout_.servers);
    }
    for (size_t s = 0; s < ids.size(); ++s) links_[s]->StartPull(std::move(ids[s]));
    parameters_.rows.resize(static_cast<Eigen::Index>(batch.words.size()), layout_.embedding);
    for (int s = 0; s < layout_.servers; ++s) {
      absl::Status pulled = links_[s]->Pulled();
      if (!pulled.ok()) return pulled;
      const float* row = links_[s]->rows();
      for (int place : places_[s]) {
        std::copy_n(row, layout_.embedding, parameters_.rows.row(place).data());
        row += layout_.embedding;
      }
      ReadDense(layout_, s, links_[s]->dense(), &parameters_);
    }
    return absl::OkStatus();
  }

  Tensor GradientRows(int server) const {
    const int64_t count = static_cast<int64_t>(places_[server].size());
    Tensor rows = *Tensor::Allocate(DType::kFloat, {count, layout_.embedding});
    float* into = static_cast<float*>(rows.mutable_data());
    for (int place : places_[server]) {
      into = std::copy_n(gradients_.rows.row(place).data(), layout_.embedding, into);
    }
    return rows;
  }

  const Layout layout_;
  std::vector<std::unique_ptr<ServerLink>> links_;
  // By server: the places of its rows among the batch's words.
  std::vector<std::vector<int>> places_;
  Parameters parameters_;
  Parameters gradients_;
};

}  // namespace

absl::Status Work(Server* worker, const Layout& layout, std::vector<Example> examples,
                  std::vector<Example> held_out, bool detailed, const std::atomic<bool>* stop) {
  std::mt19937_64 random(worker->incarnation());
  std::shuffle(examples.begin(), examples.end(), random);
  held_out.resize(std::min(held_out.size(), kHeldOutBatch));
  const Batch to_look_at = held_out.empty() ? Batch() : MakeBatch(held_out, layout.context);
  Trainer trainer(worker, layout, stop);
  Progress progress;
  double losses = 0;
  int64_t batches = 0;
  int64_t bytes_told = 0;
  absl::Time report = absl::Now() + kReportEvery;
  absl::Time evaluate = absl::Now();
  for (size_t at = 0; !*stop; at += kBatch) {
    if (at + kBatch > examples.size()) at = 0;
    if (!held_out.empty() && absl::Now() >= evaluate) {
      auto loss = trainer.Step(to_look_at, /*learn=*/false);
      if (!loss.ok()) return *stop ? absl::OkStatus() : loss.status();
      progress.held_out = *loss;
      evaluate = absl::Now() + kEvaluateEvery;
    }
    auto loss = trainer.Step(MakeBatch({&examples[at], kBatch}, layout.context), /*learn=*/true);
    if (!loss.ok()) return *stop ? absl::OkStatus() : loss.status();
    for (const auto& link : trainer.links()) {
      if (!link->TakeIsNew()) continue;
      std::printf("%s\n", PathLine(ReportPath(worker, link->server())).c_str());
      if (detailed) std::printf("%s\n", ExplainPath(worker, link->server()).c_str());
    }
    losses += *loss;
    ++batches;
    progress.examples += kBatch;
    if (absl::Now() < report) continue;
    progress.bytes = trainer.bytes_moved() - std::exchange(bytes_told, trainer.bytes_moved());
    progress.loss = std::exchange(losses, 0) / static_cast<double>(std::exchange(batches, 0));
    std::printf("%s\n", ProgressLine(std::exchange(progress, {})).c_str());
    report = absl::Now() + kReportEvery;
  }
  return absl::OkStatus();
}

}  // namespace tryst
