#include "tests/process/shm/shm_process.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/process/history/kept_traces.h"

namespace tryst {
namespace {

PollerOptions PollerFor(int64_t spin_us) {
  PollerOptions options;
  options.spin_us = spin_us;
  return options;
}

}  // namespace

ShmProcess::ShmProcess(const Options& options)
    : options_(options),
      source_(&alarms_),
      trace_(EveryOperation()),
      poller_(&clock_, PollerFor(options.spin_us)) {
  ArenaOptions arena;
  arena.cap_bytes = options_.arena_bytes;
  arena.seed = options_.incarnation << 20;
  arena_ = Arena::Make(arena);
  TransportContext context;
  context.poller = &poller_;
  context.bootstrap = &bootstrap_;
  context.source = &source_;
  context.self = options_.worker;
  context.incarnation = options_.incarnation;
  context.trace = &trace_;
  path_ = std::make_unique<ShmTransport>(context, arena_, options_.shm);
  const absl::Status opened = path_->Open();
  TRYST_CHECK(opened.ok()) << opened;
  if (options_.thread) poller_.Start();
  TRYST_CHECK(bootstrap_.Serve(options_.worker, this)) << options_.worker << " is taken";
}

void ShmProcess::Run(absl::AnyInvocable<void() &&> fn) {
  if (options_.thread) return poller_.RunAndWait(std::move(fn));
  std::move(fn)();
  poller_.Turn();
}

ShmProcess::~ShmProcess() {
  Run([this] {
    const absl::Status why = absl::CancelledError("the process is stopping");
    if (channel_ != nullptr) channel_->Close(why);
    path_->Close(why);
  });
  for (bool drained = false; !drained;) {
    Run([&] { drained = path_->Drained() && (channel_ == nullptr || channel_->Drained()); });
    if (!drained) usleep(1000);
  }
  bootstrap_.Stop();
  poller_.Stop();
  channel_.reset();
  path_.reset();
  // The other end, of another process, may have been killed: this one is judged alone.
  const TracesJudgement judged =
      JudgeTraces({DumpOf(trace_, options_.worker, options_.incarnation, clock_.NowNs())});
  TRYST_CHECK(judged.breaches.empty()) << judged.breaches;
}

TensorKey ShmProcess::Key(const std::string& producer, const std::string& consumer,
                          const std::string& edge) {
  return TensorKeyPrefix::Make(absl::StrCat(producer, "/device:CPU:0"), 1,
                               absl::StrCat(consumer, "/device:CPU:0"), edge)
      ->At(0, 0);
}

FetchSession* ShmProcess::Channel(const std::string& peer) {
  if (channel_ == nullptr) channel_ = path_->MakeFetchSession(peer, nullptr, false);
  return channel_.get();
}

void ShmProcess::OnHello(const Hello& hello, HelloDone done) {
  poller_.PostFn(
      [this, hello, done = std::move(done)]() mutable { path_->OnHello(hello, std::move(done)); });
}

}  // namespace tryst
