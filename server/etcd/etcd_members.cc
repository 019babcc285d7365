#include "server/etcd/etcd_members.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "channel/trace/json_text.h"
#include "server/etcd/member_record.h"

namespace tryst {
namespace {

// How often the lease is renewed. A renewal also shows whether etcd is there. This and the time
// limit of a call decide how soon we leave a server that is cut off: after 1.4 s.
constexpr absl::Duration kKeepEvery = absl::Milliseconds(700);
constexpr absl::Duration kShortestPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

std::chrono::steady_clock::time_point In(absl::Duration time) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(time);
}

}  // namespace

EtcdMembers::EtcdMembers(Options options, Membership* members, const Clock* clock)
    : options_(std::move(options)),
      prefix_(MemberKeyPrefix(options_.cluster)),
      clock_(clock),
      mirror_(prefix_, options_.self.worker, members),
      thread_([this] { Run(); }) {}

EtcdMembers::~EtcdMembers() {
  {
    MutexLock lock(&mu_);
    closing_.store(true, std::memory_order_release);
    changed_.NotifyAll();
  }
  thread_.join();
}

void EtcdMembers::Run() {
  absl::BitGen random;  // Random, so that a thousand workers do not all ask the same server first.
  size_t next = absl::Uniform<size_t>(random, 0, options_.access.endpoints.size());
  int failures = 0;
  while (!Closing()) {
    const std::string& endpoint = options_.access.endpoints[next];
    {
      MutexLock lock(&mu_);
      view_.endpoint = endpoint;
      ++view_.sessions;
    }
    EtcdClient client(options_.access, endpoint);
    const int64_t began_ns = clock_->NowNs();
    const absl::Status ended = Serve(&client);
    if (Closing()) {
      if (lease_ != 0) client.RevokeLease(lease_);
      return;
    }
    failures = clock_->NowNs() - began_ns > 5'000'000'000 ? 0 : failures + 1;
    Heard(absl::StrCat(endpoint, ": ", ended.message()));
    // Tries each server once before it warns: one server that stops is not worth a warning.
    if (failures == static_cast<int>(options_.access.endpoints.size())) {
      TRYST_LOG(Warning)
          << "no server of etcd answers, and this worker keeps its list of workers until one does: "
          << ended.message();
    }
    next = (next + 1) % options_.access.endpoints.size();
    Pause(failures);
  }
}

void EtcdMembers::Pause(int failures) {
  absl::BitGen random;
  const absl::Duration most = std::min(kShortestPause * failures, kLongestPause);
  const auto until = In(most * absl::Uniform(random, 0.5, 1.0));
  MutexLock lock(&mu_);
  while (!Closing() && !changed_.WaitUntil(&mu_, until)) {
  }
}

void EtcdMembers::Heard(const std::string& trouble) {
  MutexLock lock(&mu_);
  view_.trouble = trouble;
  if (trouble.empty()) heard_ns_ = clock_->NowNs();
}

absl::Status EtcdMembers::Register(EtcdClient* client) {
  const std::string key = MemberKey(options_.cluster, options_.self.worker);
  const std::string value = MemberValue(options_.self);
  if (lease_ == 0) {
    const absl::StatusOr<int64_t> lease = client->GrantLease(options_.lease);
    if (!lease.ok()) return lease.status();
    lease_ = *lease;
    MutexLock lock(&mu_);
    ++view_.leases;
  }
  // A new incarnation replaces an older one's key. An older one that comes back does not; nor one
  // whose first call had no answer, so what it may replace is read once.
  if (!former_.has_value() && !Closing()) {
    const auto former = client->Range(key, "", 1);
    if (!former.ok()) return former.status();
    former_ = former->kvs().empty() ? 0 : former->kvs(0).mod_revision();
  }
  if (Closing()) return absl::OkStatus();
  const absl::StatusOr<bool> ours = client->PutUnlessOthers(key, value, lease_, *former_);
  if (!ours.ok()) return ours.status();
  bool was_superseded = false;
  {
    MutexLock lock(&mu_);
    was_superseded = std::exchange(view_.superseded, !*ours);
  }
  if (!*ours && !was_superseded) {
    TRYST_LOG(Error) << "a newer process has registered in etcd under the name of this worker, "
                     << options_.self.worker << ", and others call that one: stop one of the two";
  }
  return absl::OkStatus();
}

void EtcdMembers::NoteMembers() {
  MutexLock lock(&mu_);
  view_.members = mirror_.size();
  view_.refused = mirror_.refused();
  listed_ = mirror_.Has(options_.self);
}

// One session: registers, reads all members, then renews the lease while another thread watches.
// When we close no further call begins, because each may take its time.
absl::Status EtcdMembers::Serve(EtcdClient* client) {
  absl::Status status = client->Authenticate(options_.access);
  if (status.ok() && lease_ != 0 && !Closing()) {
    const absl::StatusOr<bool> kept = client->KeepLease(lease_);
    status = kept.status();
    if (kept.ok() && !*kept) lease_ = 0;
  }
  // A key that is there is not written again, because every watcher would be told.
  if (status.ok() && lease_ == 0 && !Closing()) status = Register(client);
  if (!status.ok() || Closing()) return status;
  const std::string end = EndOfPrefix(prefix_);
  const auto all = client->Range(prefix_, end, MemberMirror::kMostMembers + 1);
  if (!all.ok() || Closing()) return all.status();
  mirror_.SetAll(*all, clock_->NowNs());
  NoteMembers();
  {
    MutexLock lock(&mu_);
    watching_ = true;
  }
  Heard("");
  const auto watch = [this, client, &end, revision = all->header().revision() + 1] {
    const absl::Status ended =
        client->Watch(prefix_, end, revision, [this](const etcdserverpb::WatchResponse& response) {
          for (const etcdserverpb::Event& event : response.events()) {
            mirror_.OnEvent(event, clock_->NowNs());
          }
          NoteMembers();
        });
    MutexLock lock(&mu_);
    watching_ = false;
    watch_end_ = ended;
    changed_.NotifyAll();
  };
  std::thread watcher;
  try {
    watcher = std::thread(watch);
  } catch (const std::system_error& error) {
    MutexLock lock(&mu_);
    watching_ = false;
    return absl::UnavailableError(
        absl::StrCat("cannot start a thread that talks to etcd: ", error.what()));
  }
  status = Watch(client);
  client->CancelWatch();
  watcher.join();
  return status;
}

// Runs until an error, or until we close.
absl::Status EtcdMembers::Watch(EtcdClient* client) {
  for (;;) {
    bool listed = true;
    {
      const auto until = In(std::min(kKeepEvery, options_.lease / 3));
      MutexLock lock(&mu_);
      while (!Closing() && watching_ && !changed_.WaitUntil(&mu_, until)) {
      }
      if (Closing()) return absl::CancelledError("this worker is stopping");
      if (!watching_) return watch_end_;
      listed = listed_;
    }
    const absl::StatusOr<bool> kept = client->KeepLease(lease_);
    if (!kept.ok()) return kept.status();
    if (!*kept) {
      lease_ = 0;
      TRYST_LOG(Warning)
          << "etcd has dropped this worker, whose lease has expired: the worker registers again";
    }
    if ((!*kept || !listed) && !Closing()) {
      absl::Status registered = Register(client);
      if (!registered.ok()) return registered;
    }
    Heard("");
  }
}

EtcdMembers::View EtcdMembers::Look() const {
  MutexLock lock(&mu_);
  View view = view_;
  if (heard_ns_ != 0) view.age_s = static_cast<double>(clock_->NowNs() - heard_ns_) / 1e9;
  return view;
}

std::string EtcdMembers::Text() const {
  const View view = Look();
  std::string out = absl::StrCat("members by etcd at ", view.endpoint, ": ");
  if (view.age_s < 0) {
    absl::StrAppend(&out, "no answer yet");
  } else {
    absl::StrAppendFormat(&out, "%d, as of %.1f s ago", view.members, view.age_s);
  }
  if (!view.trouble.empty()) absl::StrAppend(&out, " (", view.trouble, ")");
  if (view.superseded) absl::StrAppend(&out, "; ANOTHER PROCESS HAS OUR NAME");
  return out + "\n";
}

std::string EtcdMembers::Json() const {
  const View view = Look();
  return absl::StrFormat(
      "{\"by\":\"etcd\",\"endpoint\":%s,\"age_s\":%.3f,\"members\":%d,\"sessions\":%d,"
      "\"leases\":%d,\"refused\":%d,\"superseded\":%s,\"trouble\":%s}",
      JsonText(view.endpoint), view.age_s, view.members, view.sessions, view.leases, view.refused,
      view.superseded ? "true" : "false", JsonText(view.trouble));
}

}  // namespace tryst
