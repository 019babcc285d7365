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

absl::string_view AnswerText(const Tensor& answer) {
  return {answer.data_as<char>(), answer.bytes()};
}

}  // namespace

// What callbacks of the server's share with the link, which may be gone when they run.
class LeaderLink::Shared {
 public:
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
  void EndQuestion(absl::StatusOr<Tensor> bytes) {
    absl::StatusOr<Answer> answer =
        bytes.ok() ? DecodeAnswer(AnswerText(*bytes)) : absl::StatusOr<Answer>(bytes.status());
    {
      MutexLock lock(&mu_);
      --out_;
      // A question that another one overtook is refused; the leader is there.
      if (!absl::IsFailedPrecondition(answer.status())) trouble_ = answer.status();
    }
    if (answer.ok()) Hear(*std::move(answer));
  }
  bool BeginListening() {
    MutexLock lock(&mu_);
    return !std::exchange(listens_, true);
  }
  // Whether it may listen again at once.
  void EndListening(absl::StatusOr<Tensor> bytes) {
    const bool told = bytes.ok() && bytes->bytes() > 0;
    absl::StatusOr<Answer> answer =
        told ? DecodeAnswer(AnswerText(*bytes)) : absl::StatusOr<Answer>(absl::UnknownError(""));
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
  size_t out_ ABSL_GUARDED_BY(mu_) = 0;  // Questions without an answer.
  Heard heard_ ABSL_GUARDED_BY(mu_);     // Few: the questions that are out, and one news.
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);
};

LeaderLink::LeaderLink(Parts parts)
    : parts_(std::move(parts)),
      shared_(std::make_shared<Shared>()),
      calls_(parts_.server, parts_.set),
      thread_([this] { Run(); }) {}

LeaderLink::~LeaderLink() { Stop(); }

void LeaderLink::Stop() {
  shared_->Close();
  cancellation_.StartCancel();
  if (thread_.joinable()) thread_.join();
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
    if (parts_.own != nullptr) {
      next_ns = std::min(next_ns, parts_.own->Advance());
    } else {
      Listen();
    }
    shared_->AwaitTurn(next_ns);
  }
}

void LeaderLink::Send(const Question& question) {
  if (parts_.own != nullptr) {
    absl::StatusOr<Answer> answer = parts_.own->OnQuestion(question);
    if (answer.ok()) shared_->Hear(*std::move(answer));
    return;
  }
  if (!shared_->BeginQuestion()) return;
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kQuestion;
  ask.question = EncodeQuestion(question);
  calls_.Start(
      {parts_.leader, std::move(ask)},
      Patience(absl::Nanoseconds(parts_.patience_ns), &cancellation_),
      [shared = shared_](absl::StatusOr<Tensor> bytes) { shared->EndQuestion(std::move(bytes)); });
}

// Keeps one ask out by which the leader tells what nobody asked.
void LeaderLink::Listen() {
  if (!shared_->BeginListening()) return;
  // Who cannot be asked a question is not listened to: to find that out waits.
  if (!shared_->trouble().ok()) return shared_->EndListening(absl::UnavailableError(""));
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kNews;
  ask.incarnation = parts_.incarnation;
  calls_.Start(
      {parts_.leader, std::move(ask)}, Patience(kListens, &cancellation_),
      [shared = shared_](absl::StatusOr<Tensor> bytes) { shared->EndListening(std::move(bytes)); });
}

}  // namespace tryst
