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
#include "channel/ops/serve_session.h"
#include "channel/ops/slot_watch.h"
#include "channel/transport.h"

namespace tryst {

// What holds for the sessions of every kind of link.
struct SessionOptions {
  uint32_t max_consumers = 4096;  // How many consumers may be connected to us.
  int64_t retain_ms = 60'000;     // How long a producer waits for a consumer without a link.
  int64_t patience_ms = 60'000;   // How long a fetch goes on while its peer is silent.
  // Fetches from one peer that may wait for a Send, without a slot.
  uint32_t max_waiting = 1'000'000;
  // How long a path may fail, while its peer is up and fetches wait, before they move to the next
  // path.
  int64_t give_up_ms = 2000;
  SlotWatch* watch = nullptr;  // For tests: hears what happens on the slots.
};

// A transport whose conversations are sessions: it makes the consumer's end (FetchSession) and
// answers the hellos of consumers with the producer's (ServeSession). A kind of link says what its
// hellos hold, and makes both. Poller thread only, as Transport says.
class SessionTransport : public Transport {
 public:
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, PathUser* user) override;
  // One that is not counted, which tests use. `user` may be null.
  virtual std::unique_ptr<FetchSession> MakeFetchSession(const std::string& peer,
                                                         PathUser* user) = 0;
  void OnHello(const Hello& hello, HelloDone done) override;
  void NotePeer(const std::string& worker, uint64_t incarnation) override;
  void Maintain() override { consumers_.Maintain(); }
  void Close(const absl::Status& why) override;
  bool Drained() const override { return closed_ && consumers_.Drained(); }

  void ExplainServing(const std::string& peer, std::string* out) const override;
  void View(const std::string& peer, std::vector<PathView>* views) const override;
  void ListOps(LiveOps* ops) const override { consumers_.ListOps(ops); }
  FetchCounters fetch_counters() const;
  ServeCounters serve_counters() const { return consumers_.counters(); }
  std::vector<const ServeSession*> serving() const;  // Those that are not closed.
  std::vector<FetchSession*> fetching() const;

 protected:
  SessionTransport(const TransportContext& context, const SessionOptions& options);

  // The farewell in it; none: a link is wanted. An error refuses it.
  virtual absl::StatusOr<absl::optional<std::string>> FarewellIn(const Hello& hello) const = 0;
  virtual std::unique_ptr<ServeSession> MakeServeSession(const Hello& hello, uint64_t session) = 0;

  // What is the same for every kind of link.
  FetchOpsOptions FetchOptionsOf(const std::string& peer, PathUser* user);
  ServeSessionOptions ServeOptions() const;
  // Call it in the destructor, while what sessions use is still there.
  void DropSessions() { consumers_.Reap(); }

  bool closed() const { return closed_; }

  const TransportContext context_;

  // Poller thread only.
  struct Fetching {
    FetchSession* session;
    PathUser* user;
  };
  std::vector<Fetching> fetching_;  // All that were ever made.

 private:
  const SessionOptions session_options_;
  uint64_t seed_;
  Consumers consumers_;
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SESSION_TRANSPORT_H_
