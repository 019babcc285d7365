#ifndef TRYST_SERVER_STATUS_PAGE_H_
#define TRYST_SERVER_STATUS_PAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/insight.h"

namespace tryst {

struct ServerConfig;

struct StatusPageOptions {
  std::string listen;     // "host:port" by numbers; port 0: a free one.
  bool anywhere = false;  // Also on an address that is not the loopback.
  // A request must carry it: as a bearer token, or as the password of any user. Empty: everybody
  // may read. With a token the page may listen beyond the loopback.
  std::string token;
  std::string certificate;  // With the key, PEM: TLS.
  std::string key;
  bool speaks_tls() const { return !certificate.empty(); }
};

// Shows an Insight over HTTP, for reading alone: / is a page for people, /metrics is for
// Prometheus, /paths.json, /waiting.json and /trace.json (a Chrome trace of this worker) for
// programs. One thread of its own, which sleeps while nobody asks; what it holds for
// connections is bounded. Says nothing of anybody's tensors, but all keys and peers: on
// the loopback it answers only whoever calls it by a loopback name, so that no web page of
// elsewhere reads it through a browser.
class StatusPage {
 public:
  virtual ~StatusPage() = default;                 // Ends what is being answered.
  virtual const std::string& address() const = 0;  // "127.0.0.1:41234"

  // Other pages than an Insight's, behind the same guards. False: there is none at `url`. On
  // the page's thread, so nobody else is answered meanwhile.
  using PageFn = std::function<bool(absl::string_view url, std::string* type, std::string* body)>;
  // kInvalidArgument: an address that is none, or reaches further than it may. kUnavailable:
  // it is taken, or the certificate is not the key's. `insight` outlives the page.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const StatusPageOptions& options,
                                                           const Insight* insight,
                                                           PageFn other = nullptr);
  // What Start() would say of the options alone.
  static absl::Status Check(const StatusPageOptions& options);
};

// What status_listen and the settings beside it say.
absl::StatusOr<StatusPageOptions> ReadStatusPageOptions(const ServerConfig& config);

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_PAGE_H_
