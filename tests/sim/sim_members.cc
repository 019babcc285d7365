#include "tests/sim/sim_members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kCheckNs = 100 * kMs;

}  // namespace

class SimMembers::WorldAlarms final : public Alarms {
 public:
  explicit WorldAlarms(SimWorld* world) : world_(world) {}
  Token Set(Deadline at, Callback callback) override {
    return world_->At(at.at_ns(),
                      [callback = std::move(callback)]() mutable { std::move(callback)(); });
  }
  bool Cancel(Token token) override { return world_->Cancel(token); }
  const Clock& clock() const override { return world_->clock(); }

 private:
  SimWorld* const world_;
};

// The calls of one host.
class SimMembers::Calls final : public HeartbeatCalls {
 public:
  Calls(SimMembers* all, uint32_t host) : all_(all), host_(host) {}

  void StartHeartbeat(const std::string& peer, const Member& self, HeartbeatWord word,
                      absl::Duration timeout, const std::string& after, HeardFn done) override {
    Host& from = all_->hosts_[host_];
    if (from.dying) return std::move(done)(absl::UnavailableError("this host is dead"));
    ++from.messages;
    const uint32_t to = all_->host_of_.at(peer);
    // Who says goodbye waits for the answers: there is one thread.
    if (word == HeartbeatWord::kLeaving) return std::move(done)(Answer(to, self, word, after));
    const uint64_t id = next_id_++;
    waiting_[id] = std::move(done);
    const int64_t now_ns = all_->world_.NowNs();
    const int64_t there_ns = now_ns + all_->random_.Between(kMs / 20, 2 * kMs);
    const int64_t back_ns = all_->random_.Between(kMs / 20, 2 * kMs);
    const int64_t out_ns = now_ns + absl::ToInt64Nanoseconds(timeout);
    auto* const all = all_;
    const uint32_t host = host_;
    const uint64_t life = self.incarnation;
    // What comes back to a host that has died meanwhile is nobody's.
    const auto end_at = [all, host, life, id](int64_t at_ns, absl::StatusOr<Heard> heard) {
      all->world_.At(at_ns, [all, host, life, id, heard = std::move(heard)]() mutable {
        Host& asker = all->hosts_[host];
        if (asker.incarnation == life) asker.calls->EndCall(id, std::move(heard));
      });
    };
    all_->world_.At(there_ns, [all, host, life, to, self, word, after, back_ns, out_ns, end_at] {
      if (all->hosts_[host].dark || all->hosts_[to].dark) {
        return end_at(out_ns, absl::DeadlineExceededError("no answer"));
      }
      // Its connection has ended with it.
      if (all->hosts_[host].incarnation != life) return;
      end_at(all->world_.NowNs() + back_ns, all->hosts_[host].calls->Answer(to, self, word, after));
    });
  }

  void EndCall(uint64_t id, absl::StatusOr<Heard> heard) {
    auto found = waiting_.find(id);
    HeardFn done = std::move(found->second);
    waiting_.erase(found);
    std::move(done)(std::move(heard));
  }
  void CancelAll() {
    while (!waiting_.empty()) EndCall(waiting_.begin()->first, absl::CancelledError("dead"));
  }

 private:
  absl::StatusOr<Heard> Answer(uint32_t to, const Member& self, HeartbeatWord word,
                               const std::string& after) {
    Host& peer = all_->hosts_[to];
    if (peer.incarnation == 0) return absl::UnavailableError("nobody listens there");
    ++peer.messages;
    absl::StatusOr<Heard> heard = AnswerHeartbeat({NameOf(to), AddressOf(to), peer.incarnation},
                                                  peer.members.get(), &self, word, after);
    if (heard.ok()) all_->members_told_ += heard->members.size();
    return heard;
  }

  SimMembers* const all_;
  const uint32_t host_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, HeardFn> waiting_;
};

SimMembers::SimMembers(uint64_t seed, uint32_t hosts, bool open)
    : world_(seed), random_(seed * 77 + 3), open_(open), hosts_(hosts) {
  for (uint32_t host = 0; host < hosts; ++host) host_of_[NameOf(host)] = host;
}

SimMembers::~SimMembers() {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].incarnation != 0) Kill(host);
  }
}

std::string SimMembers::NameOf(uint32_t host) {
  return absl::StrCat("/job:host/replica:0/task:", host);
}

std::string SimMembers::AddressOf(uint32_t host) { return absl::StrCat("host", host, ":2222"); }

void SimMembers::Start(uint32_t number) {
  Host& host = hosts_[number];
  host.incarnation = next_incarnation_++;
  host.dying = false;
  host.members = std::make_unique<Membership>(open_, nullptr);
  for (uint32_t other = 0; other < (open_ ? 1 : hosts_.size()); ++other) {
    host.members->Set(NameOf(other), AddressOf(other));
  }
  host.calls = std::make_unique<Calls>(this, number);
  host.alarms = std::make_unique<WorldAlarms>(&world_);
  const Member self{NameOf(number), AddressOf(number), host.incarnation};
  (void)host.members->Announce(self);
  host.announcer =
      std::make_unique<Announcer>(self, host.members.get(), host.calls.get(), host.alarms.get());
  host.announcer->Start();
}

void SimMembers::End(uint32_t number) {
  Host& host = hosts_[number];
  host.dying = true;
  host.calls->CancelAll();
  host.announcer.reset();
  host.incarnation = 0;
  host.calls.reset();
  host.alarms.reset();
  host.members.reset();
}

void SimMembers::Kill(uint32_t number) { End(number); }

void SimMembers::Leave(uint32_t number) {
  // Leave() waits for what is under way; here it is one thread.
  hosts_[number].calls->CancelAll();
  hosts_[number].announcer->Leave(absl::Milliseconds(500));
  End(number);
}

void SimMembers::Fetch(uint32_t from, uint32_t to) {
  hosts_[from].members->NoteIncarnation(NameOf(to), hosts_[to].incarnation);
}

void SimMembers::RunFor(int64_t ns) { world_.RunFor(ns); }

bool SimMembers::Settled() const {
  for (const Host& host : hosts_) {
    if (host.incarnation == 0) continue;
    size_t known = 0;
    for (const Member& member : host.members->Members()) {
      const Host& other = hosts_[host_of_.at(member.worker)];
      if (other.incarnation != 0 && other.incarnation == member.incarnation) ++known;
    }
    const auto up = static_cast<size_t>(std::count_if(
        hosts_.begin(), hosts_.end(), [](const Host& other) { return other.incarnation != 0; }));
    if (known != up) return false;
  }
  return true;
}

int64_t SimMembers::SettleNs(int64_t most_ns) {
  for (int64_t waited_ns = 0; waited_ns <= most_ns; waited_ns += kCheckNs) {
    if (Settled()) return waited_ns;
    world_.RunFor(kCheckNs);
  }
  return -1;
}

SimMembers::Messages SimMembers::TakeMessages() {
  Messages sum;
  for (Host& host : hosts_) {
    sum.most = std::max(sum.most, host.messages);
    sum.all += host.messages;
    host.messages = 0;
  }
  sum.members_told = std::exchange(members_told_, 0);
  return sum;
}

}  // namespace tryst
