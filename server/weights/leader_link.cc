#include "server/weights/leader_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace tryst {
namespace {

constexpr size_t kMostQuestionsOut = 8;
constexpr absl::Duration kListens = absl::Seconds(30);  // Then it listens anew.

}  // namespace

// What callbacks of the server's share with the link, which may be gone when they run.
class LeaderLink::Shared {
 public:
  explicit Shared(size_t leaders) : leaders_(leaders) {}
  void Close() {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  void Wake() {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.NotifyAll();
  }
  void Hear(Answer answer) {
    MutexLock lock(&mu_);
    heard_.answers.push_back(std::move(answer));
    woken_ = true;
    changed_.NotifyAll();
  }
  bool BeginQuestion() {
    MutexLock lock(&mu_);
    if (out_ >= kMostQuestionsOut) return false;
    ++out_;
    return true;
  }
  void EndQuestion(size_t leader, absl::StatusOr<Tensor> bytes) {
    {
      MutexLock lock(&mu_);
      --out_;
    }
    HearOf(leader,
           bytes.ok() ? DecodeAnswer(TextOf(*bytes)) : absl::StatusOr<Answer>(bytes.status()));
  }
  // That one of those that may lead has answered so.
  void HearOf(size_t leader, absl::StatusOr<Answer> answer) {
    {
      MutexLock lock(&mu_);
      // A question that another one overtook is refused; the leader is there.
      if (!absl::IsFailedPrecondition(answer.status())) trouble_ = answer.status();
      answered_ = trouble_.ok();
      if (answer.ok()) {
        failed_ = 0;
      } else if (leader == leader_ && !trouble_.ok() && failed_++ > 0) {
        // It is not just one answer that was lost. All are tried at once, and then again when it is
        // time to ask.
        leader_ = (leader_ + 1) % leaders_;
        if (failed_ % leaders_ != 0) {
          heard_.ask_soon = true;
          woken_ = true;
          changed_.NotifyAll();
        }
      }
    }
    if (answer.ok()) Hear(*std::move(answer));
  }
  size_t leader() {
    MutexLock lock(&mu_);
    return leader_;
  }
  bool BeginListening() {
    MutexLock lock(&mu_);
    return !std::exchange(listens_, true);
  }
  // Whether it may listen again at once.
  void EndListening(absl::StatusOr<Tensor> bytes) {
    const bool told = bytes.ok() && bytes->bytes() > 0;
    absl::StatusOr<Answer> answer =
        told ? DecodeAnswer(TextOf(*bytes)) : absl::StatusOr<Answer>(absl::UnknownError(""));
    MutexLock lock(&mu_);
    listens_ = false;
    if (!bytes.ok() || (told && !answer.ok())) return;  // The next turn tries again.
    if (answer.ok()) heard_.answers.push_back(*std::move(answer));
    heard_.ask_soon = heard_.ask_soon || !told;
    woken_ = true;
    changed_.NotifyAll();
  }
  // False: the link goes.
  bool TakeHeard(Heard* heard) {
    MutexLock lock(&mu_);
    woken_ = false;
    *heard = std::exchange(heard_, {});
    return !closing_;
  }
  void AwaitTurn(int64_t at_ns) {
    const auto at =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(at_ns - BootClock().NowNs());
    MutexLock lock(&mu_);
    while (!closing_ && !woken_ && !changed_.WaitUntil(&mu_, at)) {
    }
  }
  // Whether the last question was answered.
  bool answered() {
    MutexLock lock(&mu_);
    return answered_;
  }
  absl::Status trouble() {
    MutexLock lock(&mu_);
    return trouble_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool listens_ ABSL_GUARDED_BY(mu_) = false;
  const size_t leaders_;
  size_t leader_ ABSL_GUARDED_BY(mu_) = 0;  // Who is asked.
  size_t failed_ ABSL_GUARDED_BY(mu_) = 0;  // How often one after the other did not answer.
  size_t out_ ABSL_GUARDED_BY(mu_) = 0;     // Questions without an answer.
  Heard heard_ ABSL_GUARDED_BY(mu_);        // Few: the questions that are out, and one news.
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);
};

std::vector<std::string> LeaderLink::LeadersOf(const std::vector<std::string>& owners) {
  return {owners.begin(), owners.begin() + std::min(owners.size(), kMostLeaders)};
}

LeaderLink::LeaderLink(Parts parts)
    : parts_(std::move(parts)),
      shared_(std::make_shared<Shared>(parts_.leaders.size())),
      calls_(parts_.server, parts_.set),
      thread_([this] { Run(); }) {}

LeaderLink::~LeaderLink() { Stop(); }

void LeaderLink::Stop() {
  shared_->Close();
  cancellation_.StartCancel();
  if (thread_.joinable()) thread_.join();
  listening_.reset();
}

void LeaderLink::Wake() { shared_->Wake(); }

void LeaderLink::Hear(Answer answer) { shared_->Hear(std::move(answer)); }

std::string LeaderLink::Note() const {
  const absl::Status trouble = shared_->trouble();
  return trouble.ok() ? "" : absl::StrCat("the leader does not answer: ", trouble.ToString());
}

void LeaderLink::Run() {
  Heard heard;
  std::vector<Question> questions;
  while (shared_->TakeHeard(&heard)) {
    questions.clear();
    int64_t next_ns = parts_.turn(heard, &questions);
    for (const Question& question : questions) Send(question);
    if (parts_.own != nullptr) next_ns = std::min(next_ns, parts_.own->Advance());
    Listen();
    shared_->AwaitTurn(next_ns);
  }
}

bool LeaderLink::IsOwn(size_t leader) const {
  return parts_.own != nullptr && parts_.leaders[leader] == parts_.server->worker();
}

void LeaderLink::Send(const Question& question) {
  const size_t leader = shared_->leader();
  if (IsOwn(leader)) return shared_->HearOf(leader, parts_.own->OnQuestion(question));
  if (!shared_->BeginQuestion()) return;
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kQuestion;
  ask.question = EncodeQuestion(question);
  WeightCalls::Call call{parts_.leaders[leader], std::move(ask)};
  if (parts_.leaders.size() > 1) call.reach = absl::Nanoseconds(parts_.patience_ns) / 3;
  calls_.Start(call, Patience(absl::Nanoseconds(parts_.patience_ns), &cancellation_),
               [shared = shared_, leader](absl::StatusOr<Tensor> bytes) {
                 shared->EndQuestion(leader, std::move(bytes));
               });
}

// Keeps one ask out by which the leader tells what nobody asked.
void LeaderLink::Listen() {
  const size_t leader = shared_->leader();
  if (leader != listened_to_) listening_.reset();  // What it asked of the other one ends.
  listened_to_ = leader;
  if (IsOwn(leader) || !shared_->BeginListening()) return;
  // Who cannot be asked a question is not listened to: to find that out waits.
  if (!shared_->answered()) return shared_->EndListening(absl::UnavailableError(""));
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kNews;
  ask.incarnation = parts_.incarnation;
  listening_ = std::make_unique<HangingCancellation>(&cancellation_);
  WeightCalls::Call call{parts_.leaders[leader], std::move(ask)};
  call.reach = absl::Nanoseconds(parts_.patience_ns) / 3;
  calls_.Start(
      call, Patience(kListens, listening_->get()),
      [shared = shared_](absl::StatusOr<Tensor> bytes) { shared->EndListening(std::move(bytes)); });
}

}  // namespace tryst
