#include "plugins/nixl/worker.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"

namespace tryst::nixl {
namespace {

constexpr char kName[] = "nixl";
constexpr char kEdge[] = "|nixl|";
constexpr char kRecord[] = "record|";  // Asks for the record of a question.
constexpr int64_t kStopMs = 2000;
constexpr int64_t kAgainMs = 60'000;

// What peers may make us hold until it is answered.
constexpr size_t kMaxQuestionsOfPeer = 4096;
constexpr size_t kMaxQuestions = 16'384;
constexpr uint64_t kMaxHeldBytesOfPeer = 64 << 20;
constexpr uint64_t kMaxHeldBytes = 256 << 20;
constexpr int64_t kRecordMs = 30'000;  // In which the asker has to give its record.

std::string DeviceOf(const std::string& worker) { return absl::StrCat(worker, "/device:CPU:0"); }

const tryst_tensor* Yes() {
  static const tryst_tensor* const yes = [] {
    auto made = CopyOf("1");
    return made.ok() ? made->release() : nullptr;
  }();
  return yes;
}

}  // namespace

void Ask::End(const absl::Status& status) {
  if (status.ok()) return EndWith(*Yes());
  tryst_ask* const ask = std::exchange(ask_, nullptr);
  tryst_ask_answer(ask, nullptr, static_cast<tryst_code>(status.code()),
                   std::string(status.message()).c_str());
}

void Ask::EndWith(const tryst_tensor& tensor) {
  tryst_ask_answer(std::exchange(ask_, nullptr), &tensor, TRYST_OK, nullptr);
}

// Gives back what a question has taken of our room.
struct Worker::Taken {
  ~Taken() {
    MutexLock lock(&worker->mu_);
    const auto of_peer = worker->held_by_.find(peer);
    for (Held* const held : {&worker->held_, &of_peer->second}) {
      --held->questions;
      held->bytes -= bytes;
    }
    if (of_peer->second.questions == 0) worker->held_by_.erase(of_peer);
  }
  Worker* worker;
  std::string peer;
  uint64_t bytes;
};

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const std::vector<std::string>& settings,
                                                      HeardFn heard) {
  std::vector<const char*> words;
  for (const std::string& setting : settings) words.push_back(setting.c_str());
  tryst_server* server = nullptr;
  absl::Status status = StatusOf(tryst_server_create(words.data(), words.size(), &server));
  if (status.ok()) status = StatusOf(tryst_server_start(server));
  if (!status.ok()) {
    tryst_server_free(server);
    return status;
  }
  std::unique_ptr<Worker> worker(new Worker(server, std::move(heard)));
  status = StatusOf(tryst_queue_create(&worker->queue_));
  if (status.ok()) {
    worker->thread_ = std::thread([worker = worker.get()] { worker->Run(); });
    status = StatusOf(
        tryst_answers_open(server, kName, &Worker::OnAsk, worker.get(), &worker->answers_));
  }
  if (!status.ok()) return status;
  return worker;
}

Worker::Worker(tryst_server* server, HeardFn heard) : server_(server), heard_(std::move(heard)) {
  name_.worker = tryst_server_worker(server);
  name_.address = tryst_server_address(server);
  name_.incarnation = tryst_server_incarnation(server);
}

Worker::~Worker() {
  Stop();
  if (queue_ != nullptr) tryst_queue_free(queue_);
  StatusOf(tryst_server_stop(server_, kStopMs)).IgnoreError();  // It has cut off what was left.
  tryst_server_free(server_);
}

void Worker::Stop() {
  tryst_answers_free(std::exchange(answers_, nullptr));
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [op, ended] : waiting_) tryst_op_cancel(op);
    while (!waiting_.empty()) changed_.Wait(&mu_);
  }
  // An operation without a tag wakes the thread.
  const std::string key = Key(name_, "stop");
  const tryst_recv_item item = {key.c_str(), nullptr};
  tryst_op* op = nullptr;
  StatusOf(tryst_recv_start(server_, kStep, &item, 1, nullptr, 0, queue_, nullptr, &op))
      .IgnoreError();  // It looks again by itself, though later.
  thread_.join();
  tryst_op_free(op);
}

absl::Status Worker::AddPeer(const PeerName& peer) const {
  return StatusOf(
      tryst_server_add_peer(server_, absl::StrCat(peer.worker, "@", peer.address).c_str()));
}

std::string Worker::Key(const PeerName& peer, const std::string& edge) const {
  char* key = nullptr;
  const absl::Status made =
      StatusOf(tryst_key(DeviceOf(peer.worker).c_str(), peer.incarnation,
                         DeviceOf(name_.worker).c_str(), edge.c_str(), 0, 0, &key));
  const Owned<char> owned(key);
  return made.ok() ? std::string(key) : std::string();  // Whoever uses it is told.
}

absl::Status Worker::StartOp(
    const std::function<tryst_status*(tryst_queue* queue, void* tag, tryst_op** op)>& start,
    EndedFn ended) {
  MutexLock lock(&mu_);
  if (stopping_) return absl::CancelledError("the agent goes");
  tryst_op* op = nullptr;
  absl::Status status = StatusOf(start(queue_, this, &op));
  if (status.ok()) waiting_.emplace(op, std::move(ended));
  return status;
}

void Worker::Run() {
  for (;;) {
    tryst_op* ops[16];
    const size_t count = tryst_queue_take(queue_, ops, 16, kAgainMs);
    for (size_t i = 0; i < count; ++i) {
      if (tryst_op_tag(ops[i]) == nullptr) continue;  // Only to wake us; its starter frees it.
      EndedFn ended;
      {
        MutexLock lock(&mu_);
        ended = std::move(waiting_.at(ops[i]));
      }
      ended(ops[i]);
      MutexLock lock(&mu_);
      waiting_.erase(ops[i]);
      tryst_op_free(ops[i]);
      changed_.NotifyAll();
    }
    MutexLock lock(&mu_);
    if (stopping_ && waiting_.empty()) return;
  }
}

absl::StatusOr<std::shared_ptr<void>> Worker::Take(const std::string& peer, uint64_t bytes) {
  MutexLock lock(&mu_);
  const auto of_peer = held_by_.find(peer);
  const Held by_peer = of_peer == held_by_.end() ? Held() : of_peer->second;
  if (by_peer.bytes + bytes > kMaxHeldBytesOfPeer || by_peer.questions >= kMaxQuestionsOfPeer ||
      held_.bytes + bytes > kMaxHeldBytes || held_.questions >= kMaxQuestions) {
    return absl::ResourceExhaustedError(absl::StrCat("the agent at ", name_.worker,
                                                     " has as many WRITEs and notifications as it ",
                                                     "may hold: post fewer at a time"));
  }
  for (Held* const held : {&held_, &held_by_[peer]}) {
    ++held->questions;
    held->bytes += bytes;
  }
  return std::shared_ptr<void>(new Taken{this, peer, bytes});
}

void Worker::OnAsk(void* arg, tryst_ask* ask, const char* peer, const char* text) {
  // The text lasts as long as the ask, which may be answered in here.
  static_cast<Worker*>(arg)->Hear(Ask(ask), peer, std::string(text));
}

void Worker::Hear(Ask ask, const std::string& peer, absl::string_view text) {
  if (absl::ConsumePrefix(&text, kRecord)) return AnswerWithRecord(std::move(ask), text);
  absl::StatusOr<nixl::Question> question = ReadQuestion(text);
  if (!question.ok()) return ask.End(question.status());
  question->asker.worker = peer;
  if (question->verb == "stop" && question->record_bytes == 0) {
    // Whoever may have us hold no more may have us let go of it.
    return heard_(this, question->verb, question->asker, question->record, std::move(ask), nullptr);
  }
  const uint64_t bytes = question->record_bytes + question->record.size();
  absl::StatusOr<std::shared_ptr<void>> taken = Take(peer, bytes);
  if (!taken.ok()) return ask.End(taken.status());
  const absl::Status added = AddPeer(question->asker);
  if (!added.ok()) return ask.End(added);
  if (question->record_bytes > 0) {
    return HearLong(std::move(ask), question->asker, *question, *std::move(taken));
  }
  heard_(this, question->verb, question->asker, question->record, std::move(ask),
         *std::move(taken));
}

void Worker::HearLong(Ask ask, const PeerName& peer, const nixl::Question& question,
                      std::shared_ptr<void> taken) {
  const auto waiting = std::make_shared<Ask>(std::move(ask));
  const std::string key = Key(peer, absl::StrCat(kEdge, kRecord, absl::Hex(question.record_id)));
  const tryst_recv_item item = {key.c_str(), nullptr};
  const absl::Status started = StartOp(
      [&](tryst_queue* queue, void* tag, tryst_op** op) {
        return tryst_recv_start(server_, kStep, &item, 1, nullptr, kRecordMs, queue, tag, op);
      },
      [this, waiting, peer, question, taken = std::move(taken)](tryst_op* op) {
        Owned<tryst_tensor> record;
        const absl::Status status = EndOf(op, &record);
        if (!status.ok()) return waiting->End(status);
        if (record == nullptr || tryst_tensor_dtype(record.get()) != TRYST_UINT8 ||
            tryst_tensor_bytes(record.get()) != question.record_bytes) {
          return waiting->End(
              absl::InvalidArgumentError("a record has another size than was said"));
        }
        const std::string bytes(static_cast<const char*>(tryst_tensor_data(record.get())),
                                question.record_bytes);
        heard_(this, question.verb, peer, bytes, std::move(*waiting), taken);
      });
  if (!started.ok()) waiting->End(started);
}

void Worker::AnswerWithRecord(Ask ask, absl::string_view text) {
  uint64_t id = 0;
  const bool is_number = absl::SimpleHexAtoi(text, &id);
  MutexLock lock(&mu_);
  const auto found = records_.find(id);
  if (!is_number || found == records_.end()) {
    return ask.End(absl::NotFoundError("the record is no longer there"));
  }
  ask.EndWith(*found->second);
}

std::string Worker::EdgeOf(const std::string& verb, std::string record, uint64_t* record_id) {
  nixl::Question question;
  question.verb = verb;
  question.asker = name_;
  *record_id = 0;
  if (record.size() <= kMaxShortRecord) {
    question.record = std::move(record);
  } else if (absl::StatusOr<Owned<tryst_tensor>> kept = CopyOf(record); kept.ok()) {
    MutexLock lock(&mu_);
    *record_id = question.record_id = ++last_record_;
    question.record_bytes = record.size();
    records_.emplace(*record_id, *std::move(kept));
  }
  return absl::StrCat(kEdge, WriteQuestion(question));
}

void Worker::DropRecord(uint64_t id) {
  Owned<tryst_tensor> gone;
  MutexLock lock(&mu_);
  const auto found = records_.find(id);
  if (found == records_.end()) return;
  gone = std::move(found->second);
  records_.erase(found);
}

Worker::Question::~Question() {
  op_ = nullptr;
  if (worker_ != nullptr) worker_->DropRecord(record_id_);
}

absl::StatusOr<std::unique_ptr<Worker::Question>> Worker::AskPeer(const PeerName& peer,
                                                                  const std::string& verb,
                                                                  std::string record,
                                                                  int64_t timeout_ms) {
  if (record.size() > kMaxRecord) {
    return absl::InvalidArgumentError(absl::StrCat("a WRITE of so many spans is described by ",
                                                   record.size(), " bytes, and may be by ",
                                                   kMaxRecord, ": post fewer spans at a time"));
  }
  auto question = std::make_unique<Question>();
  const std::string key = Key(peer, EdgeOf(verb, std::move(record), &question->record_id_));
  question->worker_ = this;
  const tryst_recv_item item = {key.c_str(), nullptr};
  tryst_op* op = nullptr;
  absl::Status status = StatusOf(
      tryst_recv_start(server_, kStep, &item, 1, nullptr, timeout_ms, nullptr, nullptr, &op));
  question->op_.reset(op);
  if (!status.ok()) return status;
  return question;
}

void Worker::AskPeer(const PeerName& peer, const std::string& verb, std::string record,
                     std::function<void(const absl::Status&)> answered) {
  uint64_t record_id = 0;
  const std::string key = Key(peer, EdgeOf(verb, std::move(record), &record_id));
  const tryst_recv_item item = {key.c_str(), nullptr};
  const absl::Status started = StartOp(
      [&](tryst_queue* queue, void* tag, tryst_op** op) {
        return tryst_recv_start(server_, kStep, &item, 1, nullptr, -1, queue, tag, op);
      },
      [this, record_id, answered](tryst_op* op) {
        const absl::Status status = EndOf(op);
        DropRecord(record_id);
        answered(status);
      });
  if (started.ok()) return;
  DropRecord(record_id);
  answered(started);
}

}  // namespace tryst::nixl
