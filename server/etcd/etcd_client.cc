#include "server/etcd/etcd_client.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr int kMostMessageBytes = 32 << 20;  // Enough for every member of a large cluster.

absl::Status FromEtcd(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("etcd: ", status.error_message()));
}

std::shared_ptr<grpc::Channel> Connect(const EtcdAccess& access, const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostMessageBytes);
  // Each client has its own connection, so that one's back-off does not delay another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!access.ca.empty()) {
    credentials = grpc::SslCredentials({access.ca, access.key, access.certificate});
  }
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

}  // namespace

EtcdClient::EtcdClient(const EtcdAccess& access, const std::string& endpoint)
    : channel_(Connect(access, endpoint)),
      kv_(etcdserverpb::KV::NewStub(channel_)),
      leases_(etcdserverpb::Lease::NewStub(channel_)),
      watches_(etcdserverpb::Watch::NewStub(channel_)) {}

void EtcdClient::Prepare(grpc::ClientContext* context) const {
  context->set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoMilliseconds(kCallTimeout));
  if (!token_.empty()) context->AddMetadata("token", token_);
}

absl::Status EtcdClient::Authenticate(const EtcdAccess& access) {
  if (access.user.empty()) return absl::OkStatus();
  etcdserverpb::AuthenticateRequest request;
  request.set_name(access.user);
  request.set_password(access.password);
  etcdserverpb::AuthenticateResponse response;
  grpc::ClientContext context;
  Prepare(&context);
  const grpc::Status status =
      etcdserverpb::Auth::NewStub(channel_)->Authenticate(&context, request, &response);
  token_ = response.token();
  return FromEtcd(status);
}

absl::StatusOr<int64_t> EtcdClient::GrantLease(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl));
  etcdserverpb::LeaseGrantResponse response;
  grpc::ClientContext context;
  Prepare(&context);
  const grpc::Status status = leases_->LeaseGrant(&context, request, &response);
  if (!status.ok()) return FromEtcd(status);
  if (!response.error().empty() || response.id() == 0) {
    return absl::UnavailableError(absl::StrCat(
        "etcd refuses a lease, which a worker needs to be listed or to lead: ", response.error()));
  }
  return response.id();
}

absl::StatusOr<bool> EtcdClient::KeepLease(int64_t lease) {
  grpc::ClientContext context;
  Prepare(&context);
  const auto stream = leases_->LeaseKeepAlive(&context);
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  const bool answered = stream->Write(request) && stream->Read(&response);
  if (answered) {
    context.TryCancel();  // The answer is complete; the stream need not end by itself.
    (void)stream->Finish();
    return response.ttl() > 0;
  }
  const absl::Status status = FromEtcd(stream->Finish());
  return status.ok() ? absl::UnavailableError("etcd does not answer") : status;
}

void EtcdClient::RevokeLease(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  grpc::ClientContext context;
  Prepare(&context);
  (void)leases_->LeaseRevoke(&context, request, &response);
}

absl::StatusOr<bool> EtcdClient::PutUnlessOthers(const std::string& key, const std::string& value,
                                                 int64_t lease, int64_t former) {
  // A transaction needs all of its comparisons to hold, so there is one for each: "the value is
  // ours" first, then "the key does not exist", then "it is the former one".
  etcdserverpb::Compare ours, none, replaced;
  ours.set_target(etcdserverpb::Compare::VALUE);
  ours.set_value(value);
  none.set_target(etcdserverpb::Compare::CREATE);
  none.set_create_revision(0);
  replaced.set_target(etcdserverpb::Compare::MOD);
  replaced.set_mod_revision(former);
  for (const etcdserverpb::Compare& may : {ours, none, replaced}) {
    etcdserverpb::TxnRequest request;
    etcdserverpb::Compare* compare = request.add_compare();
    *compare = may;
    compare->set_key(key);
    etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key(key);
    put->set_value(value);
    put->set_lease(lease);
    const auto response = Transact(request);
    if (!response.ok()) return response.status();
    if (response->succeeded()) return true;
  }
  return false;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Transact(
    const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  grpc::ClientContext context;
  Prepare(&context);
  const grpc::Status status = kv_->Txn(&context, request, &response);
  if (!status.ok()) return FromEtcd(status);
  return response;
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(const std::string& key,
                                                              const std::string& end,
                                                              int64_t most) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  request.set_range_end(end);
  request.set_limit(most);
  etcdserverpb::RangeResponse response;
  grpc::ClientContext context;
  Prepare(&context);
  const grpc::Status status = kv_->Range(&context, request, &response);
  if (!status.ok()) return FromEtcd(status);
  return response;
}

absl::Status EtcdClient::Watch(
    const std::string& key, const std::string& end, int64_t revision,
    const std::function<void(const etcdserverpb::WatchResponse&)>& on_events) {
  if (!token_.empty()) watching_.AddMetadata("token", token_);
  // An etcd server that has lost its leader then reports that, instead of going silent.
  watching_.AddMetadata("hasleader", "true");
  const auto stream = watches_->Watch(&watching_);
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_range_end(end);
  request.mutable_create_request()->set_start_revision(revision);
  etcdserverpb::WatchResponse response;
  bool cancelled = false;
  (void)stream->Write(request);  // Where that fails, there is nothing to read.
  while (!cancelled && stream->Read(&response)) {
    cancelled = response.canceled();
    if (!cancelled) on_events(response);
  }
  watching_.TryCancel();
  const absl::Status status = FromEtcd(stream->Finish());
  if (cancelled) return absl::AbortedError(absl::StrCat("etcd: ", response.cancel_reason()));
  return status.ok() ? absl::UnavailableError(
                           "etcd closed the connection over which this worker hears of changes")
                     : status;
}

}  // namespace tryst
