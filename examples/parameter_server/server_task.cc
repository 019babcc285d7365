#include "examples/parameter_server/server_task.h"

#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "examples/loopback.h"
#include "examples/parameter_server/progress.h"
#include "server/members/membership.h"

namespace tryst {

// Serves one incarnation of one worker: waits for ids, answers with parameters, waits for
// gradients, and so on. Its callbacks keep it alive; one is under way at a time.
class ServerTask::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(ServerTask* task, const Member& worker, std::shared_ptr<Rendezvous> rendezvous)
      : task_(task),
        worker_(worker),
        step_(SessionStep(worker.incarnation, task->server_->incarnation())),
        rendezvous_(std::move(rendezvous)) {}

  const std::string& worker() const { return worker_.worker; }
  int64_t step() const { return step_; }

  void Ask() {
    RecvArgs args;
    args.executor = task_->server_->executor();
    rendezvous_->RecvAsync(From(kIdsEdge), args, [self = shared_from_this()](Received&& received) {
      self->OnIds(std::move(received.status), received.tensor);
    });
  }
  void Next() {
    ++iteration_;
    Ask();
  }
  // Another incarnation of the worker has come.
  void Replace() {
    rendezvous_->StartAbort(absl::AbortedError(absl::StrCat(worker_.worker, " has returned")));
  }

 private:
  TensorKey From(const char* edge) const {
    return LoopbackKey(worker_.worker, worker_.incarnation, task_->server_->worker(), edge,
                       iteration_);
  }
  TensorKey To(const char* edge) const {
    return LoopbackKey(task_->server_->worker(), task_->server_->incarnation(), worker_.worker,
                       edge, iteration_);
  }

  void OnIds(absl::Status status, const Tensor& ids) {
    if (status.ok()) status = Answer(ids);
    if (!status.ok()) return Fail(status);
    RecvArgs args;
    args.executor = task_->server_->executor();
    const TensorKey keys[] = {From(kRowGradientsEdge), From(kDenseGradientsEdge)};
    rendezvous_->RecvManyAsync(
        keys, args, [self = shared_from_this()](absl::Status first, absl::Span<Received> results) {
          self->OnGradients(std::move(first), results);
        });
  }

  // A peer's number must be checked before it is an index.
  absl::Status Answer(const Tensor& ids) {
    if (ids.dtype() != DType::kInt32 || ids.shape().rank() != 1) {
      return absl::InvalidArgumentError("ids should be int32 [n]");
    }
    ids_.assign(ids.data_as<int32_t>(), ids.data_as<int32_t>() + ids.shape().elements());
    const int rows = task_->layout_.sparse_rows(ServerIndex());
    if (!absl::c_all_of(ids_, [rows](int32_t id) { return id >= 0 && id < rows; })) {
      return absl::InvalidArgumentError(absl::StrCat("an id is not in [0, ", rows, ")"));
    }
    absl::Status sent = rendezvous_->Send(To(kRowsEdge), {}, task_->Rows(ids_), false);
    if (!sent.ok()) return sent;
    return rendezvous_->Send(To(kDenseEdge), {}, task_->Dense(), false);
  }

  void OnGradients(absl::Status status, absl::Span<Received> results) {
    if (!status.ok()) return Fail(status);
    Gradients gradients;
    if (!results[0].is_dead && !results[1].is_dead) {
      const int64_t count = static_cast<int64_t>(ids_.size());
      gradients = {ids_, std::move(results[0].tensor), std::move(results[1].tensor)};
      if (gradients.rows.dtype() != DType::kFloat || gradients.dense.dtype() != DType::kFloat ||
          gradients.rows.shape() != TensorShape({count, task_->layout_.embedding}) ||
          gradients.dense.shape() != TensorShape({task_->layout_.dense_elements(ServerIndex())})) {
        return Fail(absl::InvalidArgumentError("gradients of another shape"));
      }
    }
    if (iteration_ == 0) {
      std::printf("%s\n", PathLine(ReportPath(task_->server_, worker_.worker)).c_str());
      if (task_->detailed_) {
        std::printf("%s\n", ExplainPath(task_->server_, worker_.worker).c_str());
      }
    }
    task_->Contribute(shared_from_this(), std::move(gradients));
  }

  int ServerIndex() const { return static_cast<int>(task_->server_->config().task); }

  void Fail(const absl::Status& status) {
    if (task_->detailed_) {
      std::printf("no longer serves %s: %s\n", ShortName(worker_.worker).c_str(),
                  std::string(status.message()).c_str());
    }
    // Tells the worker, if it is there. Has no effect on a step that has ended.
    rendezvous_->StartAbort(status);
    task_->End(shared_from_this());
    task_->server_->steps()->CleanupStep(step_);
  }

  ServerTask* const task_;
  const Member worker_;
  const int64_t step_;
  const std::shared_ptr<Rendezvous> rendezvous_;
  uint64_t iteration_ = 0;
  std::vector<int32_t> ids_;
};

ServerTask::ServerTask(Server* server, const Layout& layout, Shard* shard, bool synchronous,
                       bool detailed)
    : server_(server),
      layout_(layout),
      synchronous_(synchronous),
      detailed_(detailed),
      shard_(shard) {}

ServerTask::~ServerTask() = default;

void ServerTask::Watch() {
  for (const Member& member : server_->members()->Members()) {
    if (!absl::StartsWith(member.worker, "/job:worker/") || member.incarnation == 0) continue;
    std::shared_ptr<Session> old;
    {
      MutexLock lock(&mu_);
      uint64_t& seen = seen_[member.worker];
      if (seen == member.incarnation) continue;
      seen = member.incarnation;
      const auto it = sessions_.find(member.worker);
      if (it != sessions_.end()) old = it->second;
    }
    if (old != nullptr) old->Replace();
    auto rendezvous =
        server_->steps()->StartStep(SessionStep(member.incarnation, server_->incarnation()));
    if (!rendezvous.ok()) {
      std::printf("cannot serve %s: %s\n", member.worker.c_str(),
                  rendezvous.status().ToString().c_str());
      continue;
    }
    auto session = std::make_shared<Session>(this, member, *std::move(rendezvous));
    {
      MutexLock lock(&mu_);
      sessions_[member.worker] = session;
    }
    session->Ask();
  }
}

absl::Status ServerTask::Save(const std::string& path) {
  absl::optional<Shard> copy;
  {
    MutexLock lock(&mu_);
    copy.emplace(*shard_);
  }
  return copy->Save(path);
}

size_t ServerTask::sessions() {
  MutexLock lock(&mu_);
  return sessions_.size();
}

bool ServerTask::has_served() {
  MutexLock lock(&mu_);
  return !seen_.empty();
}

int64_t ServerTask::updates() {
  MutexLock lock(&mu_);
  return shard_->updates();
}

Tensor ServerTask::Rows(absl::Span<const int32_t> ids) {
  MutexLock lock(&mu_);
  return shard_->Rows(ids);
}

Tensor ServerTask::Dense() {
  MutexLock lock(&mu_);
  return shard_->Dense();
}

void ServerTask::Contribute(const std::shared_ptr<Session>& session, Gradients gradients) {
  std::vector<std::shared_ptr<Session>> ready;
  {
    MutexLock lock(&mu_);
    round_.emplace_back(session, std::move(gradients));
    ready = FinishRound();
  }
  for (const auto& one : ready) one->Next();
}

void ServerTask::End(const std::shared_ptr<Session>& session) {
  std::vector<std::shared_ptr<Session>> ready;
  {
    MutexLock lock(&mu_);
    const auto it = sessions_.find(session->worker());
    if (it != sessions_.end() && it->second == session) sessions_.erase(it);
    ready = FinishRound();
  }
  for (const auto& one : ready) one->Next();
}

std::vector<std::shared_ptr<ServerTask::Session>> ServerTask::FinishRound() {
  std::vector<std::shared_ptr<Session>> ready;
  if (round_.empty() || (synchronous_ && round_.size() < sessions_.size())) return ready;
  std::vector<float> sum;
  float count = 0;
  for (auto& [session, gradients] : round_) {
    ready.push_back(session);
    if (!gradients.dense.valid()) continue;
    count += 1;
    const float* dense = gradients.dense.data_as<float>();
    if (sum.empty()) sum.assign(static_cast<size_t>(shard_->dense_elements()), 0);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += dense[i];
  }
  if (count > 0) {
    for (float& x : sum) x /= count;
    shard_->ApplyDense(sum.data());
    // Workers' rows differ, so each worker's are applied in turn, divided by the number of workers.
    for (auto& [session, gradients] : round_) {
      if (!gradients.rows.valid()) continue;
      std::vector<float> rows(gradients.rows.data_as<float>(),
                              gradients.rows.data_as<float>() + gradients.rows.shape().elements());
      for (float& x : rows) x /= count;
      shard_->ApplyRows(gradients.ids, rows.data());
    }
    shard_->CountUpdate();
  }
  round_.clear();
  return ready;
}

}  // namespace tryst
