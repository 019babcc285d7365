#ifndef TRYST_CHANNEL_OPS_SESSION_TRANSPORT_H_
#define TRYST_CHANNEL_OPS_SESSION_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "channel/ops/consumers.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/link_kind.h"
#include "channel/ops/serve_session.h"
#include "channel/ops/session_options.h"
#include "channel/transport.h"

namespace tryst {

// A transport that is a kind of link: sessions use it, those that fetch (FetchSession) and those
// that serve (ServeSession). It opens what its links share, and says what its hellos hold. Poller
// thread only, as Transport says.
class SessionTransport : public Transport {
 public:
  ~SessionTransport() override;
  const FetchKind* fetch_kind() const override { return &fetch_kind_; }
  // A session over this kind of link alone. `chooser` may be null. `has_another`: it is asked to go
  // on by another kind when links have failed for long.
  std::unique_ptr<FetchSession> MakeFetchSession(const std::string& peer, KindChooser* chooser,
                                                 bool has_another);
  void OnHello(const Hello& hello, HelloDone done) override;
  void Maintain() override;
  void Close(const absl::Status& why) override;
  bool Drained() const override;
  void ExplainServing(const std::string& peer, std::string* out) const override;
  void View(const std::string& peer, std::vector<PathView>* views) const override;
  void ListOps(LiveOps* ops) const override;

  FetchCounters fetch_counters() const;
  ServeCounters serve_counters() const;
  std::vector<const ServeSession*> serving() const;  // By this kind, that are not closed.
  const std::vector<FetchSession*>& fetching() const { return fetching_.sessions; }
  Consumers* own_consumers() const { return own_consumers_.get(); }  // Null: the pool has them.

 protected:
  SessionTransport(const TransportContext& context, const SessionOptions& options);

  // Call it in Open().
  void SetKinds(FetchKind fetch, ServeKind serve);
  // The farewell in it; none: a link is wanted. An error refuses it.
  virtual absl::StatusOr<absl::optional<std::string>> FarewellIn(const Hello& hello) const = 0;
  // Call it in the destructor, while what sessions use is still there.
  void DropSessions() { own_consumers_.reset(); }

  bool closed() const { return closed_; }

  const TransportContext context_;

 private:
  const SessionOptions session_options_;
  uint64_t seed_;
  FetchKind fetch_kind_;
  ServeKind serve_kind_;
  FetchingBy fetching_;
  ServingBy serving_;
  std::unique_ptr<Consumers> own_consumers_;  // Null: the pool has them.
  Consumers* const consumers_;
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SESSION_TRANSPORT_H_
