#include "weights/owner.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

GroupOwner::~GroupOwner() {
  leaves_ = true;
  EndSeals(absl::CancelledError("this owner left the set of weights"));
  if (activated_) EndActivate(absl::CancelledError("this owner left the set of weights"));
}

// Each `done` may seal something else at once, which is not ended.
void GroupOwner::EndSeals(const absl::Status& status) {
  std::map<uint64_t, Sealing> seals;
  seals.swap(seals_);
  for (auto& seal : seals) seal.second.done(status);
}

bool GroupOwner::in_term() const {
  return self_.rank < state_.owners.size() && state_.owners[self_.rank] == self_.incarnation;
}

void GroupOwner::Seal(uint64_t number, const WeightRoot& digest, int64_t deadline_ns,
                      SealDone done) {
  if (leaves_) {
    done(absl::CancelledError("this owner left the set of weights"));
  } else if (superseded_) {
    done(absl::FailedPreconditionError(
        absl::StrCat("another process has taken rank ", self_.rank, " of the set: end this one")));
  } else if (const LogEntry* sealed = FindSealed(number);
             sealed != nullptr && IsMine(*sealed, digest)) {
    done(*sealed);  // Withdrawn, which the leader heard too late.
  } else if (number <= floor_) {
    done(absl::AlreadyExistsError(absl::StrCat("version ", number, " is too low: version ", floor_,
                                               " is sealed or dropped already")));
  } else if (seals_.count(number) != 0) {
    done(absl::AlreadyExistsError(absl::StrCat("version ", number, " is being sealed already")));
  } else if (seals_.size() >= kMaxReady) {
    done(absl::ResourceExhaustedError(absl::StrCat(
        kMaxReady, " versions are being sealed: wait until one is, and seal ", number, " then")));
  } else {
    seals_[number] = {in_term() ? state_.term : 0, digest, deadline_ns, std::move(done)};
    next_ns_ = 0;
  }
}

void GroupOwner::Activate(uint64_t number, ActivateMode mode, int64_t deadline_ns, Done done) {
  if (number == 0) {
    done(absl::InvalidArgumentError("0 stands for no version: activate one that was sealed"));
    return;
  }
  if (activated_) {
    done(absl::FailedPreconditionError(absl::StrCat(
        "version ", wish_.number, " is still being activated: wait until that has ended")));
    return;
  }
  const bool there = state_.FindOpen(number) != nullptr || state_.active.version.number == number;
  if (number <= state_.floor && !there) {
    done(absl::AbortedError(absl::StrCat("version ", number, " was dropped or replaced already")));
    return;
  }
  wish_ = {number, mode, 0};
  wish_deadline_ns_ = deadline_ns;
  activated_ = std::move(done);
  next_ns_ = 0;
}

void GroupOwner::Withdraw(uint64_t number) {
  if (seals_.count(number) == 0) return;
  EndSeal(number, absl::CancelledError("the caller of Seal() has stopped waiting"));
  next_ns_ = 0;
}

void GroupOwner::WithdrawActivate() {
  if (!activated_) return;
  EndActivate(absl::CancelledError("the caller of Activate() has stopped waiting"));
}

int64_t GroupOwner::Advance(int64_t now_ns) {
  Expire(now_ns);
  if (now_ns >= next_ns_) AskNow(now_ns);
  return next_ns_;
}

void GroupOwner::Expire(int64_t now_ns) {
  std::vector<uint64_t> late;
  for (const auto& seal : seals_) {
    if (now_ns >= seal.second.deadline_ns) late.push_back(seal.first);
  }
  for (const uint64_t number : late) {
    EndSeal(number, absl::DeadlineExceededError(
                        absl::StrCat("version ", number, " was not sealed within its deadline")));
    next_ns_ = 0;  // Who decides counts this owner as ready until it hears otherwise.
  }
  if (activated_ && now_ns >= wish_deadline_ns_) {
    EndActivate(absl::DeadlineExceededError(
        absl::StrCat("not every member has switched to version ", wish_.number,
                     " within the deadline; the version may still become active")));
  }
}

void GroupOwner::AskNow(int64_t now_ns) {
  Question question;
  question.incarnation = self_.incarnation;
  question.question = ++question_;
  question.log = lives_.current();
  question.length = state_.length;
  question.floor = floor_;
  if (activated_) {
    question.wish = wish_;
    question.wish.timeout_ns =
        std::min(std::max<int64_t>(wish_deadline_ns_ - now_ns, 0), kMaxWishNs);
  }
  question.owner = !superseded_;
  question.term = state_.term;
  question.rank = self_.rank;
  question.owners = self_.owners;
  question.layout = self_.layout;
  for (const auto& [number, seal] : seals_) {
    if (seal.term != 0) question.ready.push_back({seal.term, number, seal.digest});
  }
  next_ns_ = now_ns + times_.permit_ns / 3;
  ask_(question);
}

void GroupOwner::OnAnswer(const Answer& answer, int64_t now_ns) {
  const uint64_t former = lives_.current();
  if (answer.incarnation != self_.incarnation ||
      !lives_.Take(answer.log, answer.question == question_)) {
    return;
  }
  if (lives_.current() != former) {
    state_ = LogState();
    next_ns_ = 0;  // It is an owner once the leader has heard that it knows this log.
    // What was ready was so in a term of the log that is lost, if there was one.
    if (former != 0) {
      EndSeals(
          absl::AbortedError("the log of the set of weights was lost: seal the version again"));
    }
  }
  // One entry after the other, since the next one may say that what was sealed is over.
  LogSlice next{answer.slice.base, answer.slice.first, {}};
  for (size_t i = 0; i <= answer.slice.entries.size(); ++i) {
    const absl::StatusOr<bool> moved = ApplySlice(next, &state_);
    if (!moved.ok()) {
      TRYST_LOG(Error) << moved.status().ToString();
      return;
    }
    if (*moved) OnLog();
    if (i < answer.slice.entries.size()) {
      next = {std::nullopt, answer.slice.first + i, {answer.slice.entries[i]}};
    }
  }
  if (answer.length == state_.length) CheckActivate(answer.settled);
  if (answer.length > state_.length) AskNow(now_ns);
}

void GroupOwner::OnLog() {
  floor_ = std::max(floor_, state_.floor);
  // Another has its rank; this one is out of the set for good.
  superseded_ = superseded_ || state_.WasReplaced(self_.incarnation);
  std::vector<uint64_t> numbers;
  for (const auto& seal : seals_) numbers.push_back(seal.first);
  for (const uint64_t number : numbers) {
    if (const auto found = seals_.find(number); found != seals_.end()) {
      CheckSeal(number, &found->second);
    }
  }
  CheckActivate(std::nullopt);
}

const LogEntry* GroupOwner::FindSealed(uint64_t number) const {
  return state_.active.version.number == number ? &state_.active : state_.FindOpen(number);
}

bool GroupOwner::IsMine(const LogEntry& sealed, const WeightRoot& digest) const {
  return self_.rank < sealed.digests.size() && sealed.digests[self_.rank] == digest;
}

void GroupOwner::CheckSeal(uint64_t number, Sealing* sealing) {
  if (sealing->term == 0 && in_term()) {
    sealing->term = state_.term;
    next_ns_ = 0;
  }
  const LogEntry* sealed = FindSealed(number);
  if (sealed != nullptr) {
    // By another line-up, this owner's bytes are not the version's.
    if (sealed->term == sealing->term && IsMine(*sealed, sealing->digest)) {
      EndSeal(number, *sealed);
    } else {
      EndSeal(number, absl::AbortedError(absl::StrCat(
                          "version ", number,
                          " was sealed, and not with the bytes that this owner published")));
    }
  } else if (number <= state_.floor) {
    EndSeal(number, absl::AbortedError(absl::StrCat(
                        "version ", number, " was dropped, or a later version has replaced it")));
  } else if (sealing->term != 0 && sealing->term != state_.term) {
    EndSeal(number, absl::AbortedError(absl::StrCat(
                        "the owners of the set changed (term ", state_.term, ") after version ",
                        number, " was ready (term ", sealing->term, "): seal it again")));
  }
}

void GroupOwner::CheckActivate(std::optional<uint64_t> settled) {
  if (!activated_) return;
  const uint64_t number = wish_.number;
  if (settled == number) {
    EndActivate(absl::OkStatus());
  } else if (number <= state_.floor && state_.FindOpen(number) == nullptr &&
             state_.active.version.number != number) {
    EndActivate(absl::AbortedError(absl::StrCat("version ", number, " was dropped, or version ",
                                                state_.active.version.number, " has replaced it")));
  }
}

void GroupOwner::EndSeal(uint64_t number, absl::StatusOr<LogEntry> result) {
  SealDone done = std::move(seals_[number].done);
  seals_.erase(number);
  done(std::move(result));
}

void GroupOwner::EndActivate(absl::Status status) {
  Done done = std::move(activated_);
  activated_ = nullptr;
  done(std::move(status));
}

}  // namespace tryst
