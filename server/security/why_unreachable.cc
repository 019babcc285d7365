#include "server/security/why_unreachable.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/security/free_with.h"

namespace tryst {
namespace {

constexpr size_t kMostPeers = 1024;
constexpr absl::Duration kLookTimeout = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Seconds(5);
constexpr std::chrono::seconds kLongestEnd(2);
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

using Context = std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, FreeWith<SSL_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;

// OpenSSL writes to sockets whose peer may have closed them, and the embedding program may not
// ignore SIGPIPE. So this blocks the signal while it lives.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now = {};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

class Socket {
 public:
  explicit Socket(absl::Duration timeout) : until_(Deadline::After(clock_, timeout)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

  // Connects; returns what went wrong, or "".
  std::string Connect(const std::string& address) {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) return absl::StrCat("'", address, "' is no host:port");
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    }
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int failed = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
    const std::unique_ptr<addrinfo, FreeWith<freeaddrinfo>> found(list);
    if (failed != 0) {
      return absl::StrCat("the name ", host, " does not resolve (", gai_strerror(failed),
                          "): is it spelled right, and in DNS or /etc/hosts?");
    }
    int error = 0;
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
      error = ConnectTo(*at);
      if (error == 0) return "";
    }
    if (error == ECONNREFUSED) {
      return absl::StrCat("nobody listens at ", address,
                          " (connection refused): is it running, and is this its address?");
    }
    return absl::StrCat(address, " cannot be reached (", std::strerror(error),
                        "): is the host up, and does a firewall drop the packets?");
  }
  bool Await(short events) const {
    constexpr int64_t kNsOfMs = 1'000'000;
    const int64_t left_ms = (until_.at_ns() - clock_.NowNs()) / kNsOfMs;
    pollfd waiting = {fd_, events, 0};
    return left_ms > 0 &&
           poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left_ms, INT_MAX))) > 0;
  }

 private:
  int ConnectTo(const addrinfo& to) {
    if (fd_ >= 0) close(fd_);
    fd_ = socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return errno;
    if (connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (!Await(POLLOUT)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }

  const SteadyClock clock_;
  const Deadline until_;
  int fd_ = -1;
};

std::string NameOf(const X509_NAME* name) {
  char text[256] = "";
  X509_NAME_oneline(name, text, sizeof(text));
  return text;
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const std::unique_ptr<GENERAL_NAMES, FreeWith<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

std::string TimeOf(const ASN1_TIME* time) {
  tm parts = {};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(parts, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

// Why the peer would not accept our certificate; "": no reason seen.
std::string WhyNotOurs(SSL_CTX* context, const SecurityOptions& options) {
  X509* own = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0) {
    return absl::StrCat("our certificate ", options.certificate_file, " expired at ",
                        TimeOf(X509_get0_notAfter(own)), ": renew it");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0) {
    return absl::StrCat("our certificate ", options.certificate_file, " is valid only from ",
                        TimeOf(X509_get0_notBefore(own)), ": wait, or set the clock");
  }
  return "";
}

std::string WhyNotTheirs(const std::string& worker, const std::string& address, long verdict,
                         X509* theirs, const SecurityOptions& options) {
  const std::string whose = absl::StrCat("the certificate of the process at ", address);
  if (verdict == X509_V_ERR_CERT_HAS_EXPIRED) {
    return absl::StrCat(whose, " expired at ", TimeOf(X509_get0_notAfter(theirs)),
                        ": renew it there");
  }
  if (verdict == X509_V_ERR_CERT_NOT_YET_VALID) {
    return absl::StrCat(whose, " is valid only from ", TimeOf(X509_get0_notBefore(theirs)),
                        ": compare the clocks of both hosts");
  }
  return absl::StrCat(whose, " was signed by ", NameOf(X509_get_issuer_name(theirs)),
                      ", which our ca_file ", options.ca_file, " does not hold (",
                      X509_verify_cert_error_string(verdict), "): give ", worker,
                      " a certificate of this cluster's authority, or add that one to ca_file");
}

class TlsGreeting {
 public:
  TlsGreeting(const std::string& worker, const std::string& address, const SecurityOptions& options,
              const std::string& cluster, const Socket& socket)
      : worker_(worker), address_(address), options_(options), cluster_(cluster), socket_(socket) {}

  std::string Why() {
    std::string unusable = Prepare();
    if (!unusable.empty()) return unusable;
    ERR_clear_error();
    const int result = Drive([this] { return SSL_connect(session_.get()); });
    const Certificate theirs(SSL_get1_peer_certificate(session_.get()));
    if (theirs != nullptr && SSL_get_verify_result(session_.get()) != X509_V_OK) {
      return WhyNotTheirs(worker_, address_, SSL_get_verify_result(session_.get()), theirs.get(),
                          options_);
    }
    if (result != 1) return WhyNotConnected();
    const std::vector<std::string> uris = UrisOf(theirs.get());
    if (!UriNames(uris, cluster_, worker_)) {
      return absl::StrCat("the certificate of the process at ", address_, " names ",
                          uris.empty() ? "nobody" : absl::StrJoin(uris, " "), ", not ", worker_,
                          " of cluster ", cluster_,
                          ": is this its address, and is its certificate for tryst://", cluster_,
                          worker_, "?");
    }
    return WhyHungUpOn();
  }

 private:
  std::string Prepare() {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX* context = context_.get();
    if (SSL_CTX_use_certificate_chain_file(context, options_.certificate_file.c_str()) != 1) {
      return absl::StrCat(options_.certificate_file, " holds no certificate that can be used");
    }
    if (SSL_CTX_use_PrivateKey_file(context, options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
      return absl::StrCat(options_.key_file, " is not the key of ", options_.certificate_file,
                          ": put the two that were made together there");
    }
    if (SSL_CTX_load_verify_locations(context, options_.ca_file.c_str(), nullptr) != 1) {
      return absl::StrCat(options_.ca_file, " holds no certificate of an authority");
    }
    // The handshake goes on despite a bad certificate: the verdict is read afterwards, when the
    // certificate can be read, too.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
    session_.reset(SSL_new(context));
    SSL_set_fd(session_.get(), socket_.fd());
    static constexpr unsigned char kHttp2[] = "\2h2";
    SSL_set_alpn_protos(session_.get(), kHttp2, sizeof(kHttp2) - 1);
    return "";
  }

  template <typename Step>
  int Drive(Step step) {
    for (;;) {
      const int result = step();
      if (result > 0) return result;
      last_error_ = SSL_get_error(session_.get(), result);
      const bool reads = last_error_ == SSL_ERROR_WANT_READ;
      if (!reads && last_error_ != SSL_ERROR_WANT_WRITE) return result;
      if (!socket_.Await(reads ? POLLIN : POLLOUT)) return result;
    }
  }

  std::string WhyNotConnected() const {
    const unsigned long error = ERR_peek_error();
    const int reason = ERR_GET_REASON(error);
    if (last_error_ == SSL_ERROR_SSL && reason > SSL_AD_REASON_OFFSET) return WhyRefused(error);
    if (last_error_ == SSL_ERROR_SSL) {
      return absl::StrCat("the process at ", address_, " does not speak TLS (",
                          ERR_reason_error_string(error),
                          "): all workers of a cluster need the same way of security, and it runs "
                          "with token_file or insecure");
    }
    if (last_error_ == SSL_ERROR_WANT_READ) {
      return absl::StrCat("the process at ", address_,
                          " says nothing to a TLS greeting: is it a worker, and does it run?");
    }
    return absl::StrCat("the process at ", address_,
                        " hangs up at a TLS greeting: is it a worker with mutual TLS?");
  }

  std::string WhyRefused(unsigned long error) const {
    const std::string ours = WhyNotOurs(context_.get(), options_);
    X509* own = SSL_CTX_get0_certificate(context_.get());
    return absl::StrCat(
        "the process at ", address_, " does not accept our certificate",
        error == 0 ? std::string() : absl::StrCat(" (", ERR_reason_error_string(error), ")"), ": ",
        ours.empty() ? absl::StrCat("does its ca_file hold ", NameOf(X509_get_issuer_name(own)),
                                    ", which signed our ", options_.certificate_file, "?")
                     : ours);
  }

  // With TLS 1.3 the peer checks our certificate only after our side of the handshake is done, so
  // its verdict comes with the first read.
  std::string WhyHungUpOn() {
    ERR_clear_error();
    (void)Drive([this] { return SSL_write(session_.get(), kPreface, sizeof(kPreface) - 1); });
    char byte;
    if (Drive([this, &byte] { return SSL_read(session_.get(), &byte, 1); }) > 0) return "";
    // The peer is slow, and nothing more is known.
    if (last_error_ == SSL_ERROR_WANT_READ) return "";
    return WhyRefused(last_error_ == SSL_ERROR_SSL ? ERR_peek_error() : 0);
  }

  const std::string& worker_;
  const std::string& address_;
  const SecurityOptions& options_;
  const std::string& cluster_;
  const Socket& socket_;
  Context context_;
  Session session_;
  int last_error_ = 0;
};

std::string WhyNotPlain(const std::string& address, const Socket& socket) {
  if (send(socket.fd(), kPreface, sizeof(kPreface) - 1, MSG_NOSIGNAL) < 0) return "";
  if (!socket.Await(POLLIN)) return "";
  unsigned char answer[9] = {};
  const ssize_t got = recv(socket.fd(), answer, sizeof(answer), 0);
  // HTTP/2 greets with a settings frame (4). A TLS record that holds an alert begins with 21.
  if (got == static_cast<ssize_t>(sizeof(answer)) && answer[3] == 4) return "";
  if (got <= 0 || answer[0] == 21) {
    return absl::StrCat(
        "the process at ", address,
        " hangs up on a greeting without TLS: it runs with certificates, so set "
        "certificate_file, key_file and ca_file (all workers of a cluster need the same way)");
  }
  return absl::StrCat("the process at ", address, " does not speak gRPC: is this its address?");
}

}  // namespace

std::string WhyUnreachable(const std::string& worker, const std::string& address,
                           const SecurityOptions& options, const std::string& cluster,
                           absl::Duration timeout) {
  if (absl::StartsWith(address, "dns:") || absl::StartsWith(address, "unix:")) {
    const size_t slash = address.rfind('/');
    if (address[0] == 'u' || slash == std::string::npos) return "";
    return WhyUnreachable(worker, address.substr(slash + 1), options, cluster, timeout);
  }
  const NoPipeSignal no_signal;
  Socket socket(timeout);
  std::string why = socket.Connect(address);
  if (!why.empty()) return why;
  if (options.certificate_file.empty()) return WhyNotPlain(address, socket);
  return TlsGreeting(worker, address, options, cluster, socket).Why();
}

// What the thread uses, which may outlive UnreachablePeers.
class UnreachablePeers::Looker final : public std::enable_shared_from_this<Looker> {
 public:
  Looker(SecurityOptions options, std::string cluster)
      : options_(std::move(options)), cluster_(std::move(cluster)) {}
  void Close();
  std::string Why(const std::string& worker, const std::string& address);

 private:
  struct Seen {
    std::string address;
    std::string why;
    Deadline until = Deadline::AtNs(0);  // Then another try finds out anew.
    bool wanted = false;
  };
  void Look();

  const SecurityOptions options_;
  const std::string cluster_;
  const SteadyClock clock_;
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool looks_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Seen> peers_ ABSL_GUARDED_BY(mu_);  // By worker; at most kMostPeers.
  std::thread thread_;                                      // The first question starts it.
};

UnreachablePeers::UnreachablePeers(SecurityOptions options, std::string cluster)
    : looker_(std::make_shared<Looker>(std::move(options), std::move(cluster))) {}

UnreachablePeers::~UnreachablePeers() { looker_->Close(); }

std::string UnreachablePeers::Why(const std::string& worker, const std::string& address) {
  return looker_->Why(worker, address);
}

void UnreachablePeers::Looker::Close() {
  const auto until = std::chrono::steady_clock::now() + kLongestEnd;
  bool looks = false;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
    while (looks_ && !changed_.WaitUntil(&mu_, until)) {
    }
    looks = looks_;
  }
  if (!thread_.joinable()) return;
  looks ? thread_.detach() : thread_.join();
}

std::string UnreachablePeers::Looker::Why(const std::string& worker, const std::string& address) {
  if (address.empty()) return "";
  MutexLock lock(&mu_);
  if (closing_ || (peers_.size() == kMostPeers && peers_.count(worker) == 0)) return "";
  Seen& seen = peers_[worker];
  if (seen.address != address) seen = {address, "", Deadline::AtNs(0), false};
  if (seen.until.Passed(clock_.NowNs()) && !seen.wanted) {
    seen.wanted = true;
    if (!looks_) {
      try {
        thread_ = std::thread([self = shared_from_this()] { self->Look(); });
      } catch (const std::system_error&) {  // The system has no more threads for us.
        seen.wanted = false;
        return "";
      }
      looks_ = true;
    }
    changed_.NotifyAll();
  }
  return seen.why;
}

void UnreachablePeers::Looker::Look() {
  for (;;) {
    std::string worker;
    std::string address;
    {
      MutexLock lock(&mu_);
      while (!closing_ && worker.empty()) {
        for (const auto& [name, seen] : peers_) {
          if (!seen.wanted) continue;
          worker = name;
          address = seen.address;
        }
        if (worker.empty()) changed_.Wait(&mu_);
      }
      if (closing_) {
        looks_ = false;
        changed_.NotifyAll();
        return;
      }
    }
    std::string why = WhyUnreachable(worker, address, options_, cluster_, kLookTimeout);
    MutexLock lock(&mu_);
    Seen& seen = peers_[worker];
    seen.wanted = false;
    if (seen.address != address) continue;
    seen.until = Deadline::After(clock_, kLookAgain);
    seen.why = std::move(why);
  }
}

}  // namespace tryst
