#include "server/weights/etcd_decider.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "server/etcd/member_record.h"

namespace tryst {
namespace {

using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;

constexpr uint64_t kBaseEvery = kKeptEntries / 2;  // Then the kept entries go on from the base.
constexpr std::chrono::milliseconds kPause{100};

// ---- Values begin with two numbers, which etcdctl can show ----

constexpr size_t kNumbersBytes = 33;
std::string Numbers(uint64_t first, uint64_t second) {
  return absl::StrFormat("%016x %016x", first, second);
}
bool ReadNumbers(absl::string_view text, uint64_t* first, uint64_t* second) {
  return text.size() >= kNumbersBytes && text[16] == ' ' &&
         absl::SimpleHexAtoi(text.substr(0, 16), first) &&
         absl::SimpleHexAtoi(text.substr(17, 16), second);
}

// ---- Transactions ----

void RequireValue(const std::string& key, const std::string& value, TxnRequest* request) {
  etcdserverpb::Compare* compare = request->add_compare();
  compare->set_target(etcdserverpb::Compare::VALUE);
  compare->set_key(key);
  compare->set_value(value);
}
void RequireNone(const std::string& key, TxnRequest* request) {
  etcdserverpb::Compare* compare = request->add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(key);
  compare->set_create_revision(0);
}
void Write(const std::string& key, std::string value, int64_t lease, RequestOp* op) {
  op->mutable_request_put()->set_key(key);
  op->mutable_request_put()->set_value(std::move(value));
  op->mutable_request_put()->set_lease(lease);
}
void Read(const std::string& key, RequestOp* op) { op->mutable_request_range()->set_key(key); }
// What the `index`th request read; empty: there is no such key.
std::string ValueIn(const etcdserverpb::TxnResponse& response, int index) {
  if (index >= response.responses_size()) return "";
  const etcdserverpb::RangeResponse& range = response.responses(index).response_range();
  return range.kvs_size() == 0 ? "" : range.kvs(0).value();
}

uint64_t DrawNumber() {
  absl::BitGen random;
  return absl::Uniform<uint64_t>(random) | 1;  // Not 0, which stands for none.
}

}  // namespace

std::string EtcdDecider::Prefix(const std::string& cluster, const std::string& set) {
  // No set's name has a '|', so the keys of one set never begin with the prefix of another.
  return absl::StrCat("/tryst.weights/", cluster, "/", absl::StrReplaceAll(set, {{"/", "|"}}), "/");
}

EtcdDecider::EtcdDecider(Options options, std::function<void(const DeciderAnswer&)> answer)
    : options_(std::move(options)),
      prefix_(Prefix(options_.cluster, options_.set)),
      head_key_(prefix_ + "head"),
      leader_key_(prefix_ + "leader"),
      base_key_(prefix_ + "base"),
      self_(DrawNumber()),
      answer_(std::move(answer)),
      thread_([this] { Run(); }) {}

EtcdDecider::~EtcdDecider() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void EtcdDecider::Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) {
  Put(&log_ask_, {What::kAppend, call, length, lease, entry});
}
void EtcdDecider::ReadFrom(uint64_t call, uint64_t index) {
  Put(&log_ask_, {What::kRead, call, index, 0, {}});
}
void EtcdDecider::TakeLease(uint64_t call) { Put(&lease_ask_, {What::kTakeLease, call, 0, 0, {}}); }
void EtcdDecider::KeepLease(uint64_t call, uint64_t lease) {
  Put(&lease_ask_, {What::kKeepLease, call, 0, lease, {}});
}

void EtcdDecider::Put(std::optional<Ask>* slot, Ask ask) {
  MutexLock lock(&mu_);
  *slot = std::move(ask);
  changed_.NotifyAll();
}

std::string EtcdDecider::Trouble() const {
  MutexLock lock(&mu_);
  return trouble_;
}

// ---- Its thread ----

std::optional<EtcdDecider::Ask> EtcdDecider::Next() {
  MutexLock lock(&mu_);
  while (!closing_ && !lease_ask_.has_value() && !log_ask_.has_value()) changed_.Wait(&mu_);
  if (closing_) return std::nullopt;
  return std::exchange(lease_ask_.has_value() ? lease_ask_ : log_ask_, std::nullopt);
}

void EtcdDecider::Run() {
  absl::BitGen random;
  size_t at = absl::Uniform<size_t>(random, 0, options_.access.endpoints.size());
  for (;;) {
    const std::string& endpoint = options_.access.endpoints[at];
    EtcdClient client(options_.access, endpoint);
    absl::Status ended = client.Authenticate(options_.access);
    if (ended.ok()) ended = Serve(&client);
    if (ended.ok()) {
      if (lease_ != 0) client.RevokeLease(static_cast<int64_t>(lease_));
      return;
    }
    at = (at + 1) % options_.access.endpoints.size();
    NoteTrouble(endpoint, ended);
    const auto until = std::chrono::steady_clock::now() + kPause;
    MutexLock lock(&mu_);
    while (!closing_ && !changed_.WaitUntil(&mu_, until)) {
    }
    if (closing_) return;
  }
}

void EtcdDecider::NoteTrouble(const std::string& endpoint, const absl::Status& ended) {
  constexpr size_t kRemembered = 16;
  const std::string trouble = absl::StrCat(endpoint, ": ", ended.message());
  {
    MutexLock lock(&mu_);
    trouble_ = trouble;
  }
  // The leader asks again and again, and several servers take turns to refuse it.
  if (told_.size() >= kRemembered) told_.clear();
  if (!told_.insert(trouble).second) return;
  TRYST_LOG(Warning) << "nothing is decided of the set of weights " << options_.set
                     << " until etcd answers: " << trouble;
}

// Serves requests until a call fails. OK: the decider closes.
absl::Status EtcdDecider::Serve(EtcdClient* client) {
  for (;;) {
    const std::optional<Ask> ask = Next();
    if (!ask.has_value()) return absl::OkStatus();
    AnswerOr answer = Do(client, *ask);
    const bool renews = ask->what == What::kKeepLease;
    if (!answer.ok()) {
      of_log_ = !renews;
      return answer.status();
    }
    // A lease may be renewed although the log cannot be read.
    if (!renews || !of_log_) {
      of_log_ = false;
      MutexLock lock(&mu_);
      trouble_.clear();
    }
    answer->call = ask->call;
    answer_(*answer);
  }
}

EtcdDecider::AnswerOr EtcdDecider::Do(EtcdClient* client, const Ask& ask) {
  switch (ask.what) {
    case What::kAppend:
      return DoAppend(client, ask);
    case What::kRead:
      return DoRead(client, ask.number);
    case What::kTakeLease:
      return DoTakeLease(client);
    case What::kKeepLease:
      break;
  }
  return DoKeepLease(client, ask.lease);
}

DeciderAnswer EtcdDecider::Say(DeciderOutcome outcome) const {
  DeciderAnswer answer;
  answer.outcome = outcome;
  answer.lease = lease_;
  answer.log = life_;
  answer.length = length_;
  return answer;
}

// ---- The lease ----

EtcdDecider::AnswerOr EtcdDecider::DoTakeLease(EtcdClient* client) {
  lease_ = 0;
  const auto now = client->Range(leader_key_, leader_key_ + '\0', 1);
  if (!now.ok()) return now.status();
  if (now->kvs_size() != 0) {
    uint64_t leader = 0, lease = 0;
    const bool read = ReadNumbers(now->kvs(0).value(), &leader, &lease);
    if (!read || leader != self_) return Say(DeciderOutcome::kNoLease);
    // An append under it may still be on its way, so it has to be another one.
    client->RevokeLease(static_cast<int64_t>(lease));
  }
  const int64_t seconds = (options_.lease_ns + 999'999'999) / 1'000'000'000;
  const absl::StatusOr<int64_t> lease = client->GrantLease(absl::Seconds(seconds));
  if (!lease.ok()) return lease.status();
  TxnRequest request;
  RequireNone(leader_key_, &request);
  Write(leader_key_, Numbers(self_, static_cast<uint64_t>(*lease)), *lease, request.add_success());
  const auto response = client->Transact(request);
  if (!response.ok()) return response.status();
  if (!response->succeeded()) {
    client->RevokeLease(*lease);
    return Say(DeciderOutcome::kNoLease);
  }
  if (absl::Status begun = BeginLog(client); !begun.ok()) return begun;
  lease_ = static_cast<uint64_t>(*lease);
  return Say(DeciderOutcome::kDone);
}

EtcdDecider::AnswerOr EtcdDecider::DoKeepLease(EtcdClient* client, uint64_t lease) {
  if (lease_ == 0 || lease != lease_) return Say(DeciderOutcome::kNoLease);
  const absl::StatusOr<bool> kept = client->KeepLease(static_cast<int64_t>(lease));
  if (!kept.ok()) return kept.status();
  if (!*kept) lease_ = 0;
  return Say(*kept ? DeciderOutcome::kDone : DeciderOutcome::kNoLease);
}

// ---- The log ----

// Begins a log where there is none.
absl::Status EtcdDecider::BeginLog(EtcdClient* client) {
  const std::string head = Numbers(DrawNumber(), 0);
  TxnRequest request;
  RequireNone(head_key_, &request);
  Write(head_key_, head, 0, request.add_success());
  Read(head_key_, request.add_failure());
  const auto response = client->Transact(request);
  if (!response.ok()) return response.status();
  return HearHead(response->succeeded() ? head : ValueIn(*response, 0));
}

// Empty: the log is gone, and with it whatever was read.
absl::Status EtcdDecider::HearHead(const std::string& head) {
  uint64_t life = 0, length = 0;
  if (!head.empty() && !ReadNumbers(head, &life, &length)) {
    return absl::DataLossError(
        absl::StrCat("somebody else has written the key ", head_key_, ", which Tryst uses"));
  }
  if (life == life_ && length < state_.length) {
    return absl::DataLossError(absl::StrCat(
        "the log of weights ", options_.set, " had ", state_.length, " entries and has ", length,
        ": etcd was set back, perhaps from a backup. Delete all keys that begin with ", prefix_,
        ", so that a new log begins"));
  }
  if (life != life_) state_ = {};
  life_ = life;
  length_ = length;
  return absl::OkStatus();
}

EtcdDecider::AnswerOr EtcdDecider::DoAppend(EtcdClient* client, const Ask& ask) {
  if (lease_ == 0 || ask.lease != lease_) return Say(DeciderOutcome::kNoLease);
  // A leader makes the same check before it asks. If it fails here, the leader has read more of the
  // log than this state.
  if (ask.number != state_.length || !state_.Check(ask.entry).ok()) {
    return Say(DeciderOutcome::kOtherLength);
  }
  LogState after = state_;
  after.Apply(ask.entry);
  const std::string leader = Numbers(self_, lease_);
  TxnRequest request;
  RequireValue(leader_key_, leader, &request);
  RequireValue(head_key_, Numbers(life_, ask.number), &request);
  Write(head_key_, Numbers(life_, after.length), 0, request.add_success());
  Write(absl::StrFormat("%sentry/%02d", prefix_, ask.number % kKeptEntries),
        Numbers(life_, ask.number) + EncodeEntry(ask.entry), 0, request.add_success());
  if (after.length % kBaseEvery == 0) {
    Write(base_key_, Numbers(life_, after.length) + EncodeState(after), 0, request.add_success());
  }
  Read(leader_key_, request.add_failure());
  Read(head_key_, request.add_failure());
  const auto response = client->Transact(request);
  if (!response.ok()) return response.status();
  if (response->succeeded()) {
    state_ = std::move(after);
    length_ = state_.length;
    return Say(DeciderOutcome::kDone);
  }
  if (absl::Status heard = HearHead(ValueIn(*response, 1)); !heard.ok()) return heard;
  if (ValueIn(*response, 0) == leader) return Say(DeciderOutcome::kOtherLength);
  lease_ = 0;
  return Say(DeciderOutcome::kNoLease);
}

EtcdDecider::AnswerOr EtcdDecider::DoRead(EtcdClient* client, uint64_t index) {
  // All keys by one question, so that they are of one moment.
  const auto keys = client->Range(prefix_, EndOfPrefix(prefix_), kKeptEntries + 3);
  if (!keys.ok()) return keys.status();
  std::map<std::string, absl::string_view> values;
  for (const etcdserverpb::KeyValue& one : keys->kvs()) values[one.key()] = one.value();
  if (absl::Status heard = HearHead(std::string(values[head_key_])); !heard.ok()) return heard;

  // What is of another life is left of a log whose head somebody has deleted.
  DeciderAnswer answer = Say(DeciderOutcome::kDone);
  uint64_t life = 0, number = 0;
  if (ReadNumbers(values[base_key_], &life, &number) && life == life_) {
    absl::StatusOr<LogState> base = DecodeState(values[base_key_].substr(kNumbersBytes));
    if (!base.ok()) return base.status();
    answer.slice.base = *std::move(base);
  }
  // Where `index` is kept, the base is not needed.
  const uint64_t kept = length_ < kKeptEntries ? 0 : length_ - kKeptEntries;
  const uint64_t first = std::min(index, state_.length);
  if (first >= kept) answer.slice.base.reset();
  answer.slice.first = answer.slice.base.has_value() ? answer.slice.base->length : first;
  for (uint64_t i = answer.slice.first; i < length_; ++i) {
    const absl::string_view value =
        values[absl::StrFormat("%sentry/%02d", prefix_, i % kKeptEntries)];
    if (!ReadNumbers(value, &life, &number) || life != life_ || number != i) {
      return absl::DataLossError(absl::StrCat(
          "the log of weights ", options_.set, " lacks entry ", i, " of ", length_,
          ". Delete all keys of etcd that begin with ", prefix_, ", so that a new log begins"));
    }
    absl::StatusOr<LogEntry> entry = DecodeEntry(value.substr(kNumbersBytes));
    if (!entry.ok()) return entry.status();
    answer.slice.entries.push_back(*std::move(entry));
  }
  const absl::StatusOr<bool> applied = ApplySlice(answer.slice, &state_);
  if (!applied.ok()) return applied.status();
  return answer;
}

}  // namespace tryst
