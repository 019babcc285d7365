#include "tests/doubles/server/pretended_etcd.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "grpcpp/server_builder.h"

namespace tryst {
namespace {

using std::chrono::steady_clock;

constexpr char kToken[] = "of a login";

int64_t SteadyNs() { return steady_clock::now().time_since_epoch().count(); }

grpc::Status NoSuchLease() {
  return grpc::Status(grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found");
}

grpc::Status NotLoggedIn() {
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token");
}

}  // namespace

class PretendedEtcd::Keys final : public etcdserverpb::KV::Service {
 public:
  explicit Keys(PretendedEtcd* etcd) : etcd_(etcd) {}

  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    MutexLock lock(&etcd_->mu_);
    if (!etcd_->Admits(*context)) return NotLoggedIn();
    if (!etcd_->answers_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no leader");
    RangeHere(*request, response);
    return grpc::Status::OK;
  }
  grpc::Status Put(grpc::ServerContext* context, const etcdserverpb::PutRequest* request,
                   etcdserverpb::PutResponse*) override {
    MutexLock lock(&etcd_->mu_);
    return etcd_->Admits(*context) ? PutHere(*request) : NotLoggedIn();
  }
  grpc::Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    std::function<void()> meanwhile;
    const grpc::Status done = DoTxn(context, request, response, &meanwhile);
    if (!meanwhile) return done;
    meanwhile();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the answer was lost");
  }

 private:
  grpc::Status DoTxn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                     etcdserverpb::TxnResponse* response, std::function<void()>* meanwhile) {
    MutexLock lock(&etcd_->mu_);
    if (!etcd_->Admits(*context)) return NotLoggedIn();
    if (!etcd_->answers_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no leader");
    bool all = true;
    for (const etcdserverpb::Compare& compare : request->compare()) all &= Holds(compare);
    response->set_succeeded(all);
    for (const etcdserverpb::RequestOp& op : all ? request->success() : request->failure()) {
      etcdserverpb::ResponseOp* said = response->add_responses();
      if (op.has_request_range()) {
        RangeHere(op.request_range(), said->mutable_response_range());
        continue;
      }
      said->mutable_response_put();
      const grpc::Status put = PutHere(op.request_put());
      if (!put.ok()) return put;
      *meanwhile = std::exchange(etcd_->after_write_, nullptr);
    }
    if (std::exchange(etcd_->lose_answer_, false)) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the answer was lost");
    }
    return grpc::Status::OK;
  }

  // A request without an end is for one key.
  void RangeHere(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(etcd_->mu_) {
    response->mutable_header()->set_revision(etcd_->revision_);
    const std::string end =
        request.range_end().empty() ? request.key() + '\0' : request.range_end();
    const auto last = etcd_->keys_.lower_bound(end);
    for (auto at = etcd_->keys_.lower_bound(request.key()); at != last; ++at) {
      *response->add_kvs() = at->second;
    }
    response->set_count(response->kvs_size());
  }
  bool Holds(const etcdserverpb::Compare& compare) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(etcd_->mu_) {
    const auto found = etcd_->keys_.find(compare.key());
    const bool is_there = found != etcd_->keys_.end();
    if (compare.target() == etcdserverpb::Compare::VALUE) {
      return is_there && found->second.value() == compare.value();
    }
    if (compare.target() == etcdserverpb::Compare::MOD) {
      return (is_there ? found->second.mod_revision() : 0) == compare.mod_revision();
    }
    TRYST_CHECK(compare.target() == etcdserverpb::Compare::CREATE);
    return (is_there ? found->second.create_revision() : 0) == compare.create_revision();
  }
  grpc::Status PutHere(const etcdserverpb::PutRequest& put)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(etcd_->mu_) {
    if (put.lease() != 0 && etcd_->leases_.count(put.lease()) == 0) return NoSuchLease();
    etcd_->Set(put.key(), put.value(), put.lease());
    return grpc::Status::OK;
  }

  PretendedEtcd* const etcd_;
};

class PretendedEtcd::Leases final : public etcdserverpb::Lease::Service {
 public:
  explicit Leases(PretendedEtcd* etcd) : etcd_(etcd) {}

  grpc::Status LeaseGrant(grpc::ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* response) override {
    int64_t pause_ms = 0;
    {
      MutexLock lock(&etcd_->mu_);
      ++etcd_->leases_asked_;
      pause_ms = etcd_->pause_ms_;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    MutexLock lock(&etcd_->mu_);
    if (etcd_->refuses_leases_) return grpc::Status::OK;
    response->set_id(etcd_->next_lease_++);
    response->set_ttl(request->ttl());
    etcd_->leases_[response->id()] = {request->ttl(), SteadyNs() + request->ttl() * 1'000'000'000};
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse*) override {
    MutexLock lock(&etcd_->mu_);
    if (etcd_->leases_.count(request->id()) == 0) return NoSuchLease();
    etcd_->End(request->id());
    return grpc::Status::OK;
  }
  // A lease that is lost is answered with a TTL of 0.
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      etcdserverpb::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      {
        MutexLock lock(&etcd_->mu_);
        const auto found = etcd_->leases_.find(request.id());
        if (found != etcd_->leases_.end()) {
          ++etcd_->renewals_;
          found->second.until_ns = SteadyNs() + found->second.ttl_s * 1'000'000'000;
          response.set_ttl(found->second.ttl_s);
        }
      }
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  PretendedEtcd* const etcd_;
};

class PretendedEtcd::Watches final : public etcdserverpb::Watch::Service {
 public:
  explicit Watches(PretendedEtcd* etcd) : etcd_(etcd) {}

  grpc::Status Watch(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<etcdserverpb::WatchResponse,
                                              etcdserverpb::WatchRequest>* stream) override {
    etcdserverpb::WatchRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    const etcdserverpb::WatchCreateRequest& watched = request.create_request();
    etcdserverpb::WatchResponse response;
    response.set_created(true);
    auto next = static_cast<size_t>(watched.start_revision() - 2);
    uint64_t ended_before = 0;
    {
      MutexLock lock(&etcd_->mu_);
      if (!etcd_->Admits(*context)) return NotLoggedIn();
      ended_before = etcd_->watches_ended_;
    }
    while (stream->Write(response)) {
      response.Clear();
      MutexLock lock(&etcd_->mu_);
      const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(etcd_->mu_) {
        return etcd_->stopping_ || context->IsCancelled() || etcd_->watches_ended_ != ended_before;
      };
      while (next >= etcd_->events_.size() && !is_over()) {
        etcd_->changed_.WaitUntil(&etcd_->mu_, steady_clock::now() + std::chrono::milliseconds(50));
      }
      if (is_over()) break;
      for (; next < etcd_->events_.size(); ++next) {
        const etcdserverpb::Event& event = etcd_->events_[next];
        const std::string& key = event.kv().key();
        if (key >= watched.key() && key < watched.range_end()) *response.add_events() = event;
      }
      response.mutable_header()->set_revision(etcd_->revision_);
    }
    return grpc::Status::OK;
  }

 private:
  PretendedEtcd* const etcd_;
};

class PretendedEtcd::Logins final : public etcdserverpb::Auth::Service {
 public:
  grpc::Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest* request,
                            etcdserverpb::AuthenticateResponse* response) override {
    if (request->name() != "tryst" || request->password() != "secret") {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                          "etcdserver: authentication failed, invalid user ID or password");
    }
    response->set_token(kToken);
    return grpc::Status::OK;
  }
};

PretendedEtcd::PretendedEtcd(const std::shared_ptr<grpc::ServerCredentials>& credentials)
    : keys_service_(std::make_unique<Keys>(this)),
      leases_service_(std::make_unique<Leases>(this)),
      watches_service_(std::make_unique<Watches>(this)),
      logins_service_(std::make_unique<Logins>()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
  builder.RegisterService(keys_service_.get());
  builder.RegisterService(leases_service_.get());
  builder.RegisterService(watches_service_.get());
  builder.RegisterService(logins_service_.get());
  server_ = builder.BuildAndStart();
  TRYST_CHECK(server_ != nullptr && port_ != 0);
  expirer_ = std::thread([this] { ExpireLeases(); });
}

PretendedEtcd::~PretendedEtcd() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  expirer_.join();
  server_->Shutdown(std::chrono::system_clock::now());
}

std::string PretendedEtcd::address() const { return absl::StrCat("127.0.0.1:", port_); }

std::string PretendedEtcd::Get(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto found = keys_.find(key);
  return found == keys_.end() ? "" : found->second.value();
}

int64_t PretendedEtcd::LeaseOf(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto found = keys_.find(key);
  return found == keys_.end() ? 0 : found->second.lease();
}

uint64_t PretendedEtcd::renewals() const {
  MutexLock lock(&mu_);
  return renewals_;
}

uint64_t PretendedEtcd::expired() const {
  MutexLock lock(&mu_);
  return expired_;
}

void PretendedEtcd::Put(const std::string& key, const std::string& value) {
  MutexLock lock(&mu_);
  Set(key, value, 0);
}

std::map<std::string, std::string> PretendedEtcd::All() const {
  MutexLock lock(&mu_);
  std::map<std::string, std::string> all;
  for (const auto& [key, value] : keys_) all[key] = value.value();
  return all;
}

void PretendedEtcd::Erase(const std::string& key) {
  MutexLock lock(&mu_);
  keys_.erase(key);
}

void PretendedEtcd::SetAnswers(bool answers) {
  MutexLock lock(&mu_);
  answers_ = answers;
}

void PretendedEtcd::LoseNextAnswer() {
  MutexLock lock(&mu_);
  lose_answer_ = true;
}

void PretendedEtcd::LoseAnswerOfNextWrite(std::function<void()> meanwhile) {
  MutexLock lock(&mu_);
  after_write_ = std::move(meanwhile);
}

void PretendedEtcd::RefuseLeases() {
  MutexLock lock(&mu_);
  refuses_leases_ = true;
}

void PretendedEtcd::SetPause(int64_t ms) {
  MutexLock lock(&mu_);
  pause_ms_ = ms;
}

uint64_t PretendedEtcd::leases_asked() const {
  MutexLock lock(&mu_);
  return leases_asked_;
}

void PretendedEtcd::RequireLogin() {
  MutexLock lock(&mu_);
  requires_login_ = true;
}

void PretendedEtcd::EndWatches() {
  MutexLock lock(&mu_);
  ++watches_ended_;
  changed_.NotifyAll();
}

uint64_t PretendedEtcd::writes(const std::string& key) const {
  MutexLock lock(&mu_);
  uint64_t writes = 0;
  for (const etcdserverpb::Event& event : events_) writes += event.kv().key() == key;
  return writes;
}

bool PretendedEtcd::Admits(const grpc::ServerContext& context) const {
  const auto token = context.client_metadata().find("token");
  return !requires_login_ || (token != context.client_metadata().end() && token->second == kToken);
}

void PretendedEtcd::LoseLease(int64_t lease) {
  MutexLock lock(&mu_);
  TRYST_CHECK(leases_.count(lease) == 1);
  End(lease);
}

void PretendedEtcd::Set(const std::string& key, const std::string& value, int64_t lease) {
  etcdserverpb::KeyValue& entry = keys_[key];
  if (entry.key().empty()) entry.set_create_revision(revision_ + 1);
  entry.set_key(key);
  entry.set_value(value);
  entry.set_lease(lease);
  entry.set_mod_revision(revision_ + 1);
  etcdserverpb::Event event;
  *event.mutable_kv() = entry;
  Note(std::move(event));
}

void PretendedEtcd::End(int64_t lease) {
  leases_.erase(lease);
  for (auto at = keys_.begin(); at != keys_.end();) {
    if (at->second.lease() != lease) {
      ++at;
      continue;
    }
    etcdserverpb::Event event;
    event.set_type(etcdserverpb::Event::DELETE);
    event.mutable_kv()->set_key(at->first);
    at = keys_.erase(at);
    Note(std::move(event));
  }
}

void PretendedEtcd::Note(etcdserverpb::Event event) {
  ++revision_;
  events_.push_back(std::move(event));
  changed_.NotifyAll();
}

void PretendedEtcd::ExpireLeases() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    const int64_t now_ns = SteadyNs();
    std::vector<int64_t> over;
    for (const auto& [id, lease] : leases_) {
      if (lease.until_ns <= now_ns) over.push_back(id);
    }
    expired_ += over.size();
    for (const int64_t id : over) End(id);
    changed_.WaitUntil(&mu_, steady_clock::now() + std::chrono::milliseconds(50));
  }
}

}  // namespace tryst
