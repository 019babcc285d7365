#include "channel/ops/session_transport.h"

#include <utility>

namespace tryst {

SessionTransport::SessionTransport(const TransportContext& context, const SessionOptions& options)
    : context_(context),
      session_options_(options),
      seed_(context.seed),
      consumers_(&context_, options.max_consumers, [this](const Hello& hello, uint64_t session) {
        return MakeServeSession(hello, session);
      }) {}

std::unique_ptr<Channel> SessionTransport::MakeChannel(const std::string& peer, PathUser* user) {
  std::unique_ptr<FetchSession> session = MakeFetchSession(peer, user);
  fetching_.push_back({session.get(), user});
  return session;
}

void SessionTransport::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  const auto farewell = FarewellIn(hello);
  if (!farewell.ok()) return std::move(done)(farewell.status());
  if (*farewell) return consumers_.OnFarewell(hello, **farewell, std::move(done));
  consumers_.OnHello(hello, std::move(done));
}

void SessionTransport::NotePeer(const std::string& worker, uint64_t incarnation) {
  consumers_.NotePeer(worker, incarnation);
}

void SessionTransport::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  close_status_ = why;
  consumers_.Close(why);
}

void SessionTransport::ExplainServing(const std::string& peer, std::string* out) const {
  consumers_.Explain(peer, out);
}

FetchCounters SessionTransport::fetch_counters() const {
  FetchCounters sum;
  for (const Fetching& one : fetching_) sum += one.session->Counted();
  return sum;
}

void SessionTransport::View(const std::string& peer, std::vector<PathView>* views) const {
  consumers_.View(peer, views);
}

std::vector<const ServeSession*> SessionTransport::serving() const {
  std::vector<const ServeSession*> serving;
  for (const auto& session : consumers_.serving()) {
    if (!session->closed()) serving.push_back(session.get());
  }
  return serving;
}

std::vector<FetchSession*> SessionTransport::fetching() const {
  std::vector<FetchSession*> fetching;
  for (const Fetching& one : fetching_) fetching.push_back(one.session);
  return fetching;
}

FetchOpsOptions SessionTransport::FetchOptionsOf(const std::string& peer, PathUser* user) {
  FetchOpsOptions options;
  options.path = name();
  options.self = context_.self;
  options.self_incarnation = context_.incarnation;
  options.peer = peer;
  options.trace = context_.trace;
  options.max_tensor_bytes = context_.max_tensor_bytes;
  options.retain_ms = session_options_.retain_ms;
  options.patience_ms = session_options_.patience_ms;
  options.max_parked = session_options_.max_waiting;
  options.watch = session_options_.watch;
  options.user = user;
  if (user != nullptr && user->HasAnother()) options.give_up_ms = session_options_.give_up_ms;
  options.seed = ++seed_;
  return options;
}

ServeSessionOptions SessionTransport::ServeOptions() const {
  ServeSessionOptions options;
  options.path = name();
  options.self = context_.self;
  options.self_incarnation = context_.incarnation;
  options.trace = context_.trace;
  options.retain_ms = session_options_.retain_ms;
  options.watch = session_options_.watch;
  return options;
}

}  // namespace tryst
