#include "server/weights/leading.h"

#include <utility>

namespace tryst {

Leading::Leading(const WeightLeader::Options& options, uint64_t life, Covers* covers, TellFn tell)
    : tell_(std::move(tell)),
      store_(life, options.times.lease_ns),
      leader_(options, this, covers,
              [this](const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Say(answer); }) {}

void Leading::Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {  // The leader calls it, under the lock.
  decided_.push_back(store_.Append(length, lease, entry));
  decided_.back().call = call;
}

void Leading::ReadFrom(uint64_t call, uint64_t index) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  decided_.push_back(store_.ReadFrom(index));
  decided_.back().call = call;
}

void Leading::TakeLease(uint64_t call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  decided_.push_back(store_.TakeLease(clock_.NowNs()));
  decided_.back().call = call;
}

void Leading::KeepLease(uint64_t call, uint64_t lease) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  decided_.push_back(store_.KeepLease(lease, clock_.NowNs()));
  decided_.back().call = call;
}

void Leading::Say(const Answer& answer) {
  if (answer.question == 0) {
    news_.push_back(answer);
  } else {
    reply_ = answer;
  }
}

void Leading::Settle() {
  while (!decided_.empty()) {
    const DeciderAnswer answer = std::move(decided_.front());
    decided_.pop_front();
    leader_.OnDecider(answer, clock_.NowNs());
  }
}

int64_t Leading::Advance() {
  int64_t next_ns = 0;
  std::vector<Answer> news;
  {
    MutexLock lock(&mu_);
    next_ns = leader_.Advance(clock_.NowNs());
    Settle();
    news.swap(news_);
  }
  if (!news.empty()) tell_(std::move(news));
  return next_ns;
}

absl::StatusOr<Answer> Leading::OnQuestion(const Question& question) {
  std::optional<Answer> reply;
  std::vector<Answer> news;
  {
    MutexLock lock(&mu_);
    leader_.OnQuestion(question, clock_.NowNs());
    reply.swap(reply_);
    Settle();
    news.swap(news_);
  }
  if (!news.empty()) tell_(std::move(news));
  if (reply.has_value()) return *std::move(reply);
  return absl::FailedPreconditionError(
      "the leader of the set of weights cannot answer: it has no lease at this moment, or has "
      "heard a later question of the same worker");
}

std::string Leading::Explain() const {
  MutexLock lock(&mu_);
  return leader_.Explain(clock_.NowNs());
}

}  // namespace tryst
