#ifndef TRYST_SERVER_STATUS_STATUS_PAGE_H_
#define TRYST_SERVER_STATUS_STATUS_PAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/status/insight.h"

namespace tryst {

struct ServerConfig;

struct StatusPageOptions {
  std::string listen;  // A numeric "host:port"; port 0: any free one.
  // Every request must carry it, as a bearer token or as the password of any user. Empty: everybody
  // may read. With a token the page may listen beyond the loopback.
  std::string token;
  std::string certificate;  // PEM; with the key it turns TLS on.
  std::string key;
  bool speaks_tls() const { return !certificate.empty(); }
};

// Shows an Insight over HTTP, for reading only: / is a page for people, /metrics is for Prometheus,
// and /paths.json, /waiting.json and /trace.json (a Chrome trace of this worker) are for programs.
// It has one thread, which sleeps while nobody asks, and bounds what connections hold. It shows no
// tensor's content, but all keys and peers. So on the loopback it answers only requests that name a
// loopback host: otherwise a foreign web page could read it through a browser.
class StatusPage {
 public:
  virtual ~StatusPage() = default;                 // Cuts off what is being answered.
  virtual const std::string& address() const = 0;  // "127.0.0.1:41234"

  // Serves other pages than an Insight's, with the same guards. It returns false when there is no
  // page at `url`. It runs on the page's only thread, so other requests wait meanwhile.
  using PageFn = std::function<bool(absl::string_view url, std::string* type, std::string* body)>;
  // kInvalidArgument: the address is malformed, or reaches further than it may. kUnavailable: it is
  // taken, or the certificate does not belong to the key. `insight` outlives the page.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const StatusPageOptions& options,
                                                           const Insight* insight,
                                                           PageFn other = nullptr);
  // What Start() would say of the options alone.
  static absl::Status Check(const StatusPageOptions& options);
};

// Reads status_listen and the settings beside it.
absl::StatusOr<StatusPageOptions> ReadStatusPageOptions(const ServerConfig& config);

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_STATUS_PAGE_H_
