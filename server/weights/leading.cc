#include "server/weights/leading.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

absl::Status NoLease() {
  return absl::UnavailableError("this owner of weights has no lease to lead by at this moment");
}

}  // namespace

Leading::Leading(Parts parts)
    : parts_(std::move(parts)),
      leader_(parts_.leads, this, parts_.covers,
              [this](const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Say(answer); }) {
  MutexLock lock(&mu_);
  if (parts_.make_decider == nullptr) store_.emplace(parts_.life, parts_.leads.times.lease_ns);
}

Leading::~Leading() { Close(); }

void Leading::Open() {
  MutexLock lock(&mu_);
  if (parts_.make_decider != nullptr) {
    decider_ = parts_.make_decider([this](const DeciderAnswer& answer) { Hear(answer); });
  }
}

void Leading::Close() {
  std::unique_ptr<Decider> decider;  // Ends without the lock, which Hear() takes.
  {
    MutexLock lock(&mu_);
    decider = std::move(decider_);
    store_.reset();
  }
}

void Leading::Hear(const DeciderAnswer& answer) {
  std::vector<Answer> news;
  {
    MutexLock lock(&mu_);
    decided_.push_back(answer);
    Settle();
    news.swap(news_);
  }
  if (!news.empty()) parts_.tell(std::move(news));
  parts_.wake();
}

// The leader makes these calls, under the lock.
void Leading::Append(uint64_t call, uint64_t length, uint64_t lease,
                     const LogEntry& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (decider_ != nullptr) decider_->Append(call, length, lease, entry);
  if (store_.has_value()) Decided(call, store_->Append(length, lease, entry));
}

void Leading::ReadFrom(uint64_t call, uint64_t index) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (decider_ != nullptr) decider_->ReadFrom(call, index);
  if (store_.has_value()) Decided(call, store_->ReadFrom(index));
}

void Leading::TakeLease(uint64_t call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (decider_ != nullptr) decider_->TakeLease(call);
  if (store_.has_value()) Decided(call, store_->TakeLease(clock_.NowNs()));
}

void Leading::KeepLease(uint64_t call, uint64_t lease) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (decider_ != nullptr) decider_->KeepLease(call, lease);
  if (store_.has_value()) Decided(call, store_->KeepLease(lease, clock_.NowNs()));
}

void Leading::Decided(uint64_t call, DeciderAnswer answer) {
  answer.call = call;
  decided_.push_back(std::move(answer));
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
  if (!news.empty()) parts_.tell(std::move(news));
  return next_ns;
}

absl::StatusOr<Answer> Leading::OnQuestion(const Question& question, absl::string_view worker) {
  std::optional<Answer> reply;
  std::vector<Answer> news;
  bool leads = false;
  {
    MutexLock lock(&mu_);
    leader_.OnQuestion(question, clock_.NowNs(), worker);
    leads = leader_.leads(clock_.NowNs());
    reply.swap(reply_);
    Settle();
    news.swap(news_);
  }
  if (!news.empty()) parts_.tell(std::move(news));
  if (reply.has_value()) return *std::move(reply);
  if (!leads) return NoLease();
  return absl::FailedPreconditionError(
      "the leader of the set of weights has heard a later question of the same worker");
}

absl::StatusOr<std::vector<Holder>> Leading::HoldersOf(const WeightVersion& version,
                                                       uint64_t asker) const {
  MutexLock lock(&mu_);
  if (!leader_.leads(clock_.NowNs())) return NoLease();
  return leader_.HoldersOf(version, asker, clock_.NowNs());
}

std::string Leading::Explain() const {
  MutexLock lock(&mu_);
  const std::string trouble = decider_ == nullptr ? "" : decider_->Trouble();
  return absl::StrCat(leader_.Explain(clock_.NowNs()), trouble.empty() ? "" : "; etcd: ", trouble);
}

std::optional<uint32_t> Leading::LostOwner() const {
  MutexLock lock(&mu_);
  if (!leader_.leads(clock_.NowNs())) return std::nullopt;  // It hears nobody.
  return leader_.LostOwner(clock_.NowNs());
}

void Leading::View(WeightView* view) const {
  constexpr size_t kMostAwaited = 16;
  MutexLock lock(&mu_);
  view->leads = leader_.leads(clock_.NowNs());
  view->members = leader_.state().members.size();
  view->behind = leader_.behind();
  view->awaited = leader_.Awaited();
  if (view->awaited.size() > kMostAwaited) view->awaited.resize(kMostAwaited);
}

}  // namespace tryst
