#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/only_fields.h"
#include "proto/weights_log.pb.h"
#include "weights/questions.h"
#include "weights/stage_table.h"

namespace tryst {
namespace {

absl::Status NoQuestion(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("a question about weights: ", why));
}

absl::Status NoAnswer(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("an answer about weights: ", why));
}

std::string RootBytes(const WeightRoot& root) {
  return std::string(reinterpret_cast<const char*>(root.data()), root.size());
}

bool RootOfBytes(const std::string& bytes, WeightRoot* root) {
  if (bytes.size() != root->size()) return false;
  memcpy(root->data(), bytes.data(), root->size());
  return true;
}

}  // namespace

std::string EncodeQuestion(const Question& question) {
  rpc::WeightQuestion message;
  message.set_incarnation(question.incarnation);
  message.set_question(question.question);
  message.set_log(question.log);
  message.set_length(question.length);
  message.set_floor(question.floor);
  message.set_wish(question.wish.number);
  message.set_wish_mode(static_cast<uint32_t>(question.wish.mode));
  message.set_wish_timeout_ns(question.wish.timeout_ns);
  message.set_member(question.member);
  message.set_serving(question.serving.number);
  message.set_serving_birth(question.serving.birth);
  message.set_stage(question.stage.number);
  message.set_stage_birth(question.stage.birth);
  message.set_stage_state(static_cast<uint32_t>(question.stage_state));
  message.set_owner(question.owner);
  message.set_rank(question.rank);
  message.set_owners(question.owners);
  message.set_term(question.term);
  message.set_layout(RootBytes(question.layout));
  for (const OwnerReady& ready : question.ready) {
    rpc::WeightReady* const one = message.add_ready();
    one->set_term(ready.term);
    one->set_number(ready.number);
    one->set_digest(RootBytes(ready.digest));
  }
  message.set_holder(question.holder);
  for (const WeightVersion& held : question.held) {
    message.add_held(held.number);
    message.add_held_births(held.birth);
  }
  return message.SerializeAsString();
}

absl::StatusOr<Question> DecodeQuestion(absl::string_view bytes) {
  rpc::WeightQuestion message;
  if (bytes.size() > kMaxQuestionBytes ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return NoQuestion(absl::StrCat(bytes.size(), " bytes cannot be parsed"));
  }
  Question question;
  question.incarnation = message.incarnation();
  question.question = message.question();
  question.log = message.log();
  question.length = message.length();
  question.floor = message.floor();
  if (message.wish_mode() > static_cast<uint32_t>(ActivateMode::kBarrier) ||
      message.wish_timeout_ns() < 0 || message.wish_timeout_ns() > kMaxWishNs) {
    return NoQuestion("what it wishes is out of bounds");
  }
  question.wish = {message.wish(), static_cast<ActivateMode>(message.wish_mode()),
                   message.wish_timeout_ns()};
  question.member = message.member();
  question.serving = {message.serving(), message.serving_birth()};
  question.stage = {message.stage(), message.stage_birth()};
  if (message.stage_state() >= kStageStateCount) return NoQuestion("its stage's state is unknown");
  question.stage_state = static_cast<StageState>(message.stage_state());
  question.owner = message.owner();
  question.rank = message.rank();
  question.owners = message.owners();
  question.term = message.term();
  if (question.rank >= kMaxOwners || question.owners > kMaxOwners ||
      !RootOfBytes(message.layout(), &question.layout) ||
      message.ready_size() > static_cast<int>(kMaxReady)) {
    return NoQuestion("what its owner says is out of bounds");
  }
  for (const rpc::WeightReady& one : message.ready()) {
    OwnerReady ready{one.term(), one.number(), {}};
    if (!RootOfBytes(one.digest(), &ready.digest)) return NoQuestion("a digest has another length");
    question.ready.push_back(ready);
  }
  question.holder = message.holder();
  if (message.held_size() > static_cast<int>(kMaxHeldVersions) ||
      message.held_size() != message.held_births_size()) {
    return NoQuestion("what it has for others is out of bounds");
  }
  for (int i = 0; i < message.held_size(); ++i) {
    question.held.push_back({message.held(i), message.held_births(i)});
  }
  return question;
}

std::string EncodeAnswer(const Answer& answer) {
  rpc::WeightAnswer message;
  message.set_incarnation(answer.incarnation);
  message.set_question(answer.question);
  message.set_log(answer.log);
  if (answer.slice.base.has_value()) message.set_base(EncodeState(*answer.slice.base));
  message.set_first(answer.slice.first);
  for (const LogEntry& entry : answer.slice.entries) message.add_entries(EncodeEntry(entry));
  message.set_length(answer.length);
  message.set_prepare(answer.prepare.number);
  message.set_prepare_birth(answer.prepare.birth);
  message.set_hold(answer.hold);
  message.set_permit(answer.permit);
  message.set_settled(answer.settled);
  return message.SerializeAsString();
}

absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes) {
  rpc::WeightAnswer message;
  constexpr int kFields = 12, kEntries = 6;
  if (bytes.size() > kMaxAnswerBytes ||
      !HasOnlyFields(bytes, kFields, kEntries, kEntriesInAnswer,
                     [](absl::string_view) { return true; }) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return NoAnswer(absl::StrCat(bytes.size(), " bytes cannot be parsed"));
  }
  Answer answer;
  answer.incarnation = message.incarnation();
  answer.question = message.question();
  answer.log = message.log();
  if (!message.base().empty()) {
    absl::StatusOr<LogState> base = DecodeState(message.base());
    if (!base.ok()) return base.status();
    answer.slice.base = *std::move(base);
  }
  answer.slice.first = message.first();
  for (const std::string& one : message.entries()) {
    absl::StatusOr<LogEntry> entry = DecodeEntry(one);
    if (!entry.ok()) return entry.status();
    answer.slice.entries.push_back(*std::move(entry));
  }
  answer.length = message.length();
  answer.prepare = {message.prepare(), message.prepare_birth()};
  answer.hold = message.hold();
  answer.permit = message.permit();
  answer.settled = message.settled();
  return answer;
}

std::vector<Answer> TakeFor(uint64_t incarnation, std::vector<Answer>* answers) {
  const auto own = std::stable_partition(
      answers->begin(), answers->end(),
      [incarnation](const Answer& answer) { return answer.incarnation != incarnation; });
  std::vector<Answer> taken(std::make_move_iterator(own), std::make_move_iterator(answers->end()));
  answers->erase(own, answers->end());
  return taken;
}

}  // namespace tryst
