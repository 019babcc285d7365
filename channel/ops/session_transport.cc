#include "channel/ops/session_transport.h"

#include <utility>

namespace tryst {

SessionTransport::SessionTransport(const TransportContext& context, const SessionOptions& options)
    : context_(context),
      session_options_(options),
      seed_(context.seed),
      own_consumers_(context.consumers != nullptr
                         ? nullptr
                         : std::make_unique<Consumers>(context.poller, context.source,
                                                       ServeOptionsFrom(options, context),
                                                       options.max_consumers, context.seed)),
      consumers_(own_consumers_ != nullptr ? own_consumers_.get() : context.consumers) {}

SessionTransport::~SessionTransport() = default;

void SessionTransport::SetKinds(FetchKind fetch, ServeKind serve) {
  fetch_kind_ = std::move(fetch);
  fetch_kind_.fetching = &fetching_;
  serve_kind_ = std::move(serve);
  serve_kind_.serving = &serving_;
}

std::unique_ptr<FetchSession> SessionTransport::MakeFetchSession(const std::string& peer,
                                                                 KindChooser* chooser,
                                                                 bool has_another) {
  FetchOpsOptions options = FetchOptionsFrom(session_options_, context_, peer, has_another);
  options.seed = ++seed_;
  return std::make_unique<FetchSession>(context_.poller, context_.bootstrap, options,
                                        FetchSession::Kinds{&fetch_kind_}, chooser);
}

void SessionTransport::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  const auto farewell = FarewellIn(hello);
  if (!farewell.ok()) return std::move(done)(farewell.status());
  // Also one of the last release: what it had asked of our last life is over.
  if (*farewell) return consumers_->OnFarewell(hello, **farewell, std::move(done));
  const absl::Status spoken = CheckProtocol(hello, context_.self);
  if (!spoken.ok()) return std::move(done)(spoken);
  consumers_->OnHello(hello, &serve_kind_, std::move(done));
}

void SessionTransport::Maintain() {
  if (own_consumers_ != nullptr) own_consumers_->Maintain();
}

void SessionTransport::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  close_status_ = why;
  if (own_consumers_ != nullptr) own_consumers_->Close(why);
}

bool SessionTransport::Drained() const {
  return closed_ && (own_consumers_ == nullptr || own_consumers_->Drained());
}

void SessionTransport::ExplainServing(const std::string& peer, std::string* out) const {
  if (own_consumers_ != nullptr) own_consumers_->Explain(peer, out);
}

void SessionTransport::View(const std::string& peer, std::vector<PathView>* views) const {
  if (own_consumers_ != nullptr) own_consumers_->View(peer, views);
}

void SessionTransport::ListOps(LiveOps* ops) const {
  if (own_consumers_ != nullptr) own_consumers_->ListOps(ops);
}

FetchCounters SessionTransport::fetch_counters() const {
  FetchCounters sum = fetching_.past;
  for (const FetchSession* session : fetching_.sessions) sum += session->Counted();
  return sum;
}

ServeCounters SessionTransport::serve_counters() const {
  ServeCounters sum = serving_.past;
  for (const ServeSession* session : serving_.sessions) sum += session->Counted();
  return sum;
}

std::vector<const ServeSession*> SessionTransport::serving() const {
  std::vector<const ServeSession*> serving;
  for (const ServeSession* session : serving_.sessions) {
    if (!session->closed()) serving.push_back(session);
  }
  return serving;
}

}  // namespace tryst
