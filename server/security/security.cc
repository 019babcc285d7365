#include "server/security/security.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/security/certificate_files.h"
#include "server/security/grpc_arguments.h"
#include "server/security/loopback.h"

namespace tryst {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

bool UsesTls(const SecurityOptions& options) {
  return !options.certificate_file.empty() || !options.key_file.empty() || !options.ca_file.empty();
}

CertificatePaths PathsOf(const SecurityOptions& options) {
  return {options.certificate_file, options.key_file, options.ca_file};
}

// Checks which worker a certificate names, after gRPC has checked the chain.
class WorkerVerifier final : public ExternalCertificateVerifier {
 public:
  WorkerVerifier(std::string cluster, std::string worker)
      : cluster_(std::move(cluster)), worker_(std::move(worker)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (grpc::string_ref uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    if (!UriNames(uris, cluster_, worker_)) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             absl::StrCat("the certificate names ", absl::StrJoin(uris, " "),
                                          ", not ", worker_, " of cluster ", cluster_));
    }
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string cluster_;
  const std::string worker_;
};

}  // namespace

class Security::Files {
 public:
  explicit Files(const SecurityOptions& options)
      : checked_(PathsOf(options), options.reload_period),
        provider_(std::make_shared<FileWatcherCertificateProvider>(
            checked_.watched().key, checked_.watched().certificate, checked_.watched().ca,
            kSecondsBetweenReads)) {}
  void ReadSoon() { checked_.ReadSoon(); }
  uint64_t published() const { return checked_.published(); }
  const std::shared_ptr<FileWatcherCertificateProvider>& provider() const { return provider_; }

 private:
  // So often gRPC has each new set before connections are made anew with it. It reads copies in
  // memory, or the files themselves where the kernel makes none.
  static constexpr unsigned kSecondsBetweenReads = 1;

  CertificateFiles checked_;
  const std::shared_ptr<FileWatcherCertificateProvider> provider_;
};

absl::Status Security::Check(const SecurityOptions& options, absl::string_view address) {
  const int ways = UsesTls(options) + !options.token.empty() + options.insecure;
  if (ways != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(ways,
                     " ways of security are set, and it must be one: set certificate_file, "
                     "key_file and ca_file; or token_file; or insecure"));
  }
  if (UsesTls(options)) {
    for (const std::string* file :
         {&options.certificate_file, &options.key_file, &options.ca_file}) {
      if (file->empty()) {
        return absl::InvalidArgumentError(
            "mutual TLS needs all of certificate_file, key_file and ca_file: set all three");
      }
    }
    return ReadCertificates(PathsOf(options)).status();
  }
  if (!options.token.empty() && options.token.size() < 16) {
    return absl::InvalidArgumentError(
        "the token in token_file has fewer than 16 bytes: use a longer one");
  }
  if (options.insecure && !options.insecure_anywhere && !IsLoopback(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("insecure lets everybody in, and ", address,
                     " can be reached by other hosts: use certificates or token_file, or set "
                     "insecure_anywhere if nobody else is in that network"));
  }
  return absl::OkStatus();
}

Security::Security(SecurityOptions options, std::string cluster)
    : options_(std::move(options)),
      cluster_(std::move(cluster)),
      files_(UsesTls(options_) ? std::make_unique<Files>(options_) : nullptr) {}

Security::~Security() = default;

void Security::Reload() {
  if (files_ != nullptr) files_->ReadSoon();
}

uint64_t Security::certificates_read() const { return files_ == nullptr ? 0 : files_->published(); }

std::shared_ptr<grpc::ServerCredentials> Security::ForServer() const {
  if (files_ == nullptr) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions tls(files_->provider());
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  // gRPC checks the chain. CheckCertificate() checks for each call which worker the certificate
  // names.
  tls.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsServerCredentials(tls);
}

Keepalive KeepaliveFor(absl::Duration patience) {
  return {std::clamp(patience / 4, absl::Seconds(6), absl::Seconds(20)),
          std::clamp(patience / 8, absl::Seconds(1), absl::Seconds(10))};
}

std::shared_ptr<grpc::Channel> Security::Connect(const std::string& worker,
                                                 const std::string& address) const {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (files_ == nullptr) {
    credentials = grpc::InsecureChannelCredentials();
  } else {
    grpc::experimental::TlsChannelCredentialsOptions tls;
    tls.set_certificate_provider(files_->provider());
    tls.watch_root_certs();
    tls.watch_identity_key_cert_pairs();
    tls.set_verify_server_certs(true);
    // Our certificates name workers, and a worker's address may be anything.
    tls.set_check_call_host(false);
    tls.set_certificate_verifier(
        ExternalCertificateVerifier::Create<WorkerVerifier>(cluster_, worker));
    credentials = grpc::experimental::TlsCredentials(tls);
  }
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  const auto longest = static_cast<int>(absl::ToInt64Milliseconds(options_.longest_pause));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, longest);
  // Also the time limit of a connect.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, std::min(1000, longest));
  const Keepalive keepalive = KeepaliveFor(options_.patience);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
              static_cast<int>(absl::ToInt64Milliseconds(keepalive.ask_after)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
              static_cast<int>(absl::ToInt64Milliseconds(keepalive.answer_within)));
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Most peers are called only until the data plane is open.
  args.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS,
              static_cast<int>(absl::ToInt64Milliseconds(options_.idle)));
  SetTransportArguments([&args](const char* name, int value) { args.SetInt(name, value); });
  // gRPC would otherwise share connections between the servers of one process.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // By default gRPC resolves a name at most every 30 s, so a pod that comes back at another address
  // would be found that late.
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, credentials, args);
}

absl::Status Security::CheckCertificate(const grpc::AuthContext& context,
                                        absl::string_view worker) const {
  if (files_ == nullptr) return absl::OkStatus();
  std::vector<std::string> uris;
  for (grpc::string_ref uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  if (UriNames(uris, cluster_, worker)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the caller says it is ", worker, " of cluster ", cluster_,
                   "; its certificate names ", uris.empty() ? "nobody" : absl::StrJoin(uris, " ")));
}

bool UriNames(const std::vector<std::string>& uris, absl::string_view cluster,
              absl::string_view worker) {
  const std::string full = absl::StrCat("tryst://", cluster, worker);
  for (absl::string_view uri : uris) {
    while (absl::ConsumeSuffix(&uri, "/")) {
    }
    if (uri.size() < 8 + cluster.size()) continue;  // It is shorter than the cluster's name.
    if (full == uri || absl::StartsWith(full, absl::StrCat(uri, "/"))) return true;
  }
  return false;
}

}  // namespace tryst
