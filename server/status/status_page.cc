#include "server/status/status_page.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <openssl/sha.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "channel/signing/caller.h"
#include "server/status/status_html.h"
#include "server/status/status_visitors.h"

namespace tryst {
namespace {

constexpr unsigned kConnections = 32;
constexpr unsigned kTimeoutSeconds = 10;
constexpr size_t kConnectionBytes = 32 << 10;
constexpr size_t kTraceRecords = 2000;

struct Place {
  sockaddr_storage address{};
  bool is_v6 = false;
  bool is_loopback = false;
  std::string host;
};

absl::StatusOr<Place> ParsePlace(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("status_listen is '", listen, "', and should be host:port, by numbers"));
  }
  Place place;
  place.host = listen.substr(0, colon);
  std::string host = place.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&place.address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&place.address);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    place.is_loopback = ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    place.is_v6 = true;
    place.is_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("status_listen: '", host,
                     "' is not an IP address: write it in numbers, as in 127.0.0.1:8080"));
  }
  return place;
}

bool Knows(absl::string_view token, absl::string_view authorization) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(authorization, absl::MaxSplits(' ', 1));
  // A scheme is written in any case (RFC 9110), and one blank or more follow it.
  authorization = absl::StripLeadingAsciiWhitespace(parts.second);
  if (absl::EqualsIgnoreCase(parts.first, "Bearer")) return SameSecret(authorization, token);
  if (!absl::EqualsIgnoreCase(parts.first, "Basic")) return false;
  std::string text;
  if (!absl::Base64Unescape(authorization, &text)) return false;
  const size_t colon = text.find(':');
  return colon != std::string::npos && SameSecret(text.substr(colon + 1), token);
}

bool IsLoopbackName(absl::string_view host) {
  if (host == "[::1]" || absl::StartsWith(host, "[::1]:")) return true;
  host = host.substr(0, host.find(':'));
  // Only numeric addresses count: anybody can register the name 127.evil.example.
  in_addr number;
  return host == "localhost" || (inet_pton(AF_INET, std::string(host).c_str(), &number) == 1 &&
                                 ntohl(number.s_addr) >> 24 == 127);
}

// The hashes, for the Content-Security-Policy, of the page's own texts between such tags.
std::string HashesOf(absl::string_view html, absl::string_view open, absl::string_view close) {
  std::string out;
  for (size_t at = html.find(open); at != absl::string_view::npos; at = html.find(open, at)) {
    at += open.size();
    const absl::string_view inside = html.substr(at, html.find(close, at) - at);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(inside.data()), inside.size(), digest);
    absl::StrAppend(&out, " 'sha256-",
                    absl::Base64Escape(
                        absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest))),
                    "'");
  }
  return out;
}

std::string PolicyOf(absl::string_view html) {
  return absl::StrCat("default-src 'none'; script-src", HashesOf(html, "<script>", "</script>"),
                      "; style-src", HashesOf(html, "<style>", "</style>"),
                      "; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
                      "form-action 'none'");
}

struct Answer {
  unsigned code = MHD_HTTP_OK;
  std::string type = "application/json";
  std::string body;
};

class StatusPageImpl final : public StatusPage {
 public:
  StatusPageImpl(const Place& place, const StatusPageOptions& options, const Insight* insight,
                 PageFn other)
      : loopback_only_(place.is_loopback),
        options_(options),
        insight_(insight),
        other_(std::move(other)) {}
  ~StatusPageImpl() override {
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }
  const std::string& address() const override { return address_; }

  absl::Status Listen(const Place& place) {
    unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD;
    if (place.is_v6) flags |= MHD_USE_IPv6;
    std::vector<MHD_OptionItem> tls;
    if (options_.speaks_tls()) {
      if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return absl::UnimplementedError(
            "status_certificate_file cannot be used, as this machine's libmicrohttpd was built "
            "without TLS: unset it, or install another libmicrohttpd");
      }
      flags |= MHD_USE_TLS;
      tls.push_back(
          {MHD_OPTION_HTTPS_MEM_CERT, 0, const_cast<char*>(options_.certificate.c_str())});
      tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, const_cast<char*>(options_.key.c_str())});
    }
    tls.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = MHD_start_daemon(
        flags, 0, nullptr, nullptr, &OnRequest, this,  //
        MHD_OPTION_ARRAY, tls.data(),                  //
        MHD_OPTION_SOCK_ADDR, &place.address,          //
        MHD_OPTION_CONNECTION_LIMIT, 2 * kConnections, MHD_OPTION_NOTIFY_CONNECTION, &OnConnection,
        this, MHD_OPTION_NOTIFY_COMPLETED, &OnCompleted, this, MHD_OPTION_CONNECTION_TIMEOUT,
        kTimeoutSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 0u, MHD_OPTION_END);
    if (daemon_ == nullptr) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen for the status page on ", place.host,
          options_.speaks_tls() ? ", or use its certificate and key: " : ": ", strerror(errno)));
    }
    const MHD_DaemonInfo* bound = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT);
    address_ = absl::StrCat(place.host, ":", bound != nullptr ? bound->port : 0);
    return absl::OkStatus();
  }

 private:
  static int SocketOf(MHD_Connection* connection) {
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  }
  static void OnConnection(void* self, MHD_Connection* connection, void**,
                           MHD_ConnectionNotificationCode code) {
    StatusVisitors& visitors = static_cast<StatusPageImpl*>(self)->visitors_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      visitors.Come(SocketOf(connection));
    } else {
      visitors.Go(SocketOf(connection));
    }
  }
  static void OnCompleted(void* self, MHD_Connection* connection, void**,
                          MHD_RequestTerminationCode) {
    static_cast<StatusPageImpl*>(self)->visitors_.Served(SocketOf(connection));
  }
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url,
                              const char* method, const char*, const char*, size_t* upload_bytes,
                              void** state) {
    // libmicrohttpd calls it first with the headers alone, then with uploaded data, which we
    // ignore.
    static char seen;
    if (*state == nullptr) {
      *state = &seen;
      return MHD_YES;
    }
    *upload_bytes = 0;
    const Answer answer = static_cast<StatusPageImpl*>(self)->Respond(connection, url, method);
    MHD_Response* response = MHD_create_response_from_buffer(
        answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", answer.type.c_str());
    if (answer.code == MHD_HTTP_UNAUTHORIZED) {
      MHD_add_response_header(response, "WWW-Authenticate", "Basic realm=\"tryst\"");
    }
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    const bool is_html = absl::StartsWith(answer.type, "text/html");
    MHD_add_response_header(response, "Content-Security-Policy",
                            PolicyOf(is_html ? answer.body : "").c_str());
    const MHD_Result queued = MHD_queue_response(connection, answer.code, response);
    MHD_destroy_response(response);
    return queued;
  }

  Answer Respond(MHD_Connection* connection, absl::string_view url,
                 absl::string_view method) const {
    if (method != "GET" && method != "HEAD") {
      return {MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "for reading only\n"};
    }
    const char* host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    if (loopback_only_ && (host == nullptr || !IsLoopbackName(host))) {
      return {MHD_HTTP_FORBIDDEN, "text/plain", "open this page as localhost or 127.0.0.1\n"};
    }
    const char* proof = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    if (!options_.token.empty() && !Knows(options_.token, proof == nullptr ? "" : proof)) {
      return {MHD_HTTP_UNAUTHORIZED, "text/plain",
              "send the token of status_token_file to see this page\n"};
    }
    if (other_ != nullptr) {
      Answer answer{MHD_HTTP_OK, "", ""};
      if (!other_(url, &answer.type, &answer.body)) {
        return {MHD_HTTP_NOT_FOUND, "text/plain", "this address has no page\n"};
      }
      return answer;
    }
    if (url == "/") return {MHD_HTTP_OK, "text/html; charset=utf-8", std::string(StatusHtml())};
    if (url == "/metrics") {
      return {MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", insight_->Metrics()};
    }
    if (url == "/paths.json") return {MHD_HTTP_OK, "application/json", insight_->PathsJson("")};
    if (url == "/waiting.json") return {MHD_HTTP_OK, "application/json", insight_->WaitingJson(-1)};
    if (url == "/trace.json") {
      TraceFilter filter;
      filter.most = kTraceRecords;
      const TraceDump dump = insight_->Dump(filter);
      return {MHD_HTTP_OK, "application/json", ChromeTrace({&dump, 1})};
    }
    return {MHD_HTTP_NOT_FOUND, "text/plain",
            "there is /, /metrics, /paths.json, /waiting.json, "
            "/trace.json\n"};
  }

  const bool loopback_only_;
  const StatusPageOptions options_;
  const Insight* const insight_;
  const PageFn other_;
  std::string address_;
  StatusVisitors visitors_{kConnections};
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace

absl::Status StatusPage::Check(const StatusPageOptions& options) {
  const auto place = ParsePlace(options.listen);
  if (!place.ok()) return place.status();
  if (!options.token.empty() && options.token.size() < 16) {
    return absl::InvalidArgumentError(
        "the token in status_token_file has fewer than 16 bytes: use a longer one");
  }
  if (options.certificate.empty() != options.key.empty()) {
    return absl::InvalidArgumentError(
        "status_certificate_file and status_key_file must both be set, or neither");
  }
  if (place->is_loopback || !options.token.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the status page on ", options.listen,
                   " can be reached by others, whom it would show all keys and peers: listen on "
                   "127.0.0.1, or set status_token_file"));
}

absl::StatusOr<std::unique_ptr<StatusPage>> StatusPage::Start(const StatusPageOptions& options,
                                                              const Insight* insight,
                                                              PageFn other) {
  absl::Status checked = Check(options);
  if (!checked.ok()) return checked;
  const auto place = ParsePlace(options.listen);
  auto page = std::make_unique<StatusPageImpl>(*place, options, insight, std::move(other));
  absl::Status listening = page->Listen(*place);
  if (!listening.ok()) return listening;
  return page;
}

}  // namespace tryst
