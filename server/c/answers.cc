// Version 1 of the C interface: answers, and peers that nobody has announced.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"
#include "server/members/membership.h"
#include "server/regions/region_asks.h"

using tryst::c::Give;
using tryst::c::RefuseNull;
using tryst::c::Text;

// The peer's receive and the caller's handle share it: who gives the ask up does not wait for the
// caller, and the caller's answer is then nobody's.
struct tryst_ask {
  struct Waiting {
    void End(absl::StatusOr<tryst::Tensor> answer) {
      tryst::DoneFn ending;
      {
        tryst::MutexLock lock(&mu);
        if (ended) return;
        ended = true;
        ending = std::move(done);
      }
      tryst::Received received;
      if (answer.ok()) {
        received.tensor = *std::move(answer);
      } else {
        received.status = answer.status();
      }
      tryst::EndReceive(executor, std::move(received), std::move(ending));
    }

    tryst::Executor* executor = nullptr;
    tryst::CancellationRef cancellation;
    tryst::Cancellation::Token token = tryst::Cancellation::kNoToken;  // The caller's side has it.
    tryst::Mutex mu;
    bool ended ABSL_GUARDED_BY(mu) = false;
    tryst::DoneFn done ABSL_GUARDED_BY(mu);
  };

  const std::shared_ptr<Waiting> waiting = std::make_shared<Waiting>();
  std::string peer;
  std::string text;
};

namespace tryst {
namespace c {

class Asked final : public tryst::Answerer {
 public:
  Asked(size_t prefix_bytes, tryst_asked asked, void* arg)
      : prefix_bytes_(prefix_bytes), asked_(asked), arg_(arg) {}

  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    auto ask = std::make_unique<tryst_ask>();
    ask->peer = std::string(key.dst().worker);
    ask->text = std::string(key.edge().substr(prefix_bytes_));
    const std::shared_ptr<tryst_ask::Waiting> waiting = ask->waiting;
    waiting->executor = args.executor;
    {
      tryst::MutexLock lock(&waiting->mu);
      waiting->done = std::move(done);
    }
    if (!Begin()) return waiting->End(absl::UnavailableError("nobody answers here any more"));
    if (args.cancellation != nullptr) {
      waiting->cancellation = args.cancellation;
      waiting->token = args.cancellation->Register(
          [waiting] { waiting->End(absl::CancelledError("the peer no longer asks")); });
      if (waiting->token == tryst::Cancellation::kNoToken) {
        waiting->End(absl::CancelledError("the peer no longer asks"));
      }
    }
    tryst_ask* const handle = ask.release();
    asked_(arg_, handle, handle->peer.c_str(), handle->text.c_str());
    End();
  }

  void Close() {
    tryst::MutexLock lock(&mu_);
    closed_ = true;
    while (calls_ > 0) changed_.Wait(&mu_);
  }

 private:
  bool Begin() {
    tryst::MutexLock lock(&mu_);
    if (closed_) return false;
    ++calls_;
    return true;
  }
  void End() {
    tryst::MutexLock lock(&mu_);
    if (--calls_ == 0) changed_.NotifyAll();
  }

  const size_t prefix_bytes_;
  const tryst_asked asked_;
  void* const arg_;
  tryst::Mutex mu_;
  tryst::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace c
}  // namespace tryst

struct tryst_answers {
  tryst::Server* server;
  std::string prefix;
  std::shared_ptr<tryst::c::Asked> asked;
  const int forks = tryst::ForkCount();
};

tryst_status* tryst_server_add_peer(tryst_server* server, const char* peer) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(Text(peer), absl::MaxSplits('@', 1));
  tryst::DeviceName name;
  const std::string cpu = absl::StrCat(halves.first, "/device:CPU:0");
  if (!tryst::ParseDeviceName(cpu, &name) || halves.second.empty()) {
    return Give(absl::InvalidArgumentError(absl::StrCat(
        "a peer should look like /job:J/replica:0/task:T@host:port, and is '", Text(peer), "'")));
  }
  tryst::Membership* const members = server->server->members();
  if (!members->open()) {
    return Give(absl::FailedPreconditionError(
        absl::StrCat(halves.first, " cannot be added to a closed cluster: set open_cluster")));
  }
  if (halves.first == server->server->worker() || members->Hear({halves.first, halves.second, 0})) {
    return nullptr;
  }
  const auto known = members->Find(halves.first);
  if (known.has_value() && !known->address.empty()) return nullptr;
  // It was not taken, and this says why not.
  return Give(members->Announce({halves.first, halves.second, 0}));
}

void tryst_ask_answer(tryst_ask* ask, const tryst_tensor* tensor, tryst_code code,
                      const char* message) {
  if (ask == nullptr) return;
  const std::unique_ptr<tryst_ask> owned(ask);
  tryst_ask::Waiting* const waiting = ask->waiting.get();
  if (waiting->token != tryst::Cancellation::kNoToken) {
    waiting->cancellation->TryDeregister(waiting->token);
  }
  if (code != TRYST_OK) {
    absl::Status why;
    const absl::Status fit = tryst::c::CauseOfAbort(code, message, &why);
    return waiting->End(fit.ok() ? why : fit);
  }
  if (tensor == nullptr) {
    return waiting->End(absl::InternalError("the ask was answered with neither tensor nor error"));
  }
  waiting->End(tensor->tensor);
}

tryst_status* tryst_answers_open(tryst_server* server, const char* name, tryst_asked asked,
                                 void* arg, tryst_answers** answers) {
  if (tryst_status* const refused = RefuseNull(server, asked, answers)) return refused;
  *answers = nullptr;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  const absl::Status named = tryst::CheckRegionName(Text(name));
  if (!named.ok()) return Give(named);
  if (server->server->steps() == nullptr) {
    return Give(absl::FailedPreconditionError("the server has not started: start it first"));
  }
  auto opened = std::make_unique<tryst_answers>();
  opened->server = server->server.get();
  opened->prefix = absl::StrCat("|", Text(name), "|");
  opened->asked = std::make_shared<tryst::c::Asked>(opened->prefix.size(), asked, arg);
  if (opened->prefix == tryst::kRegionPrefix ||
      !opened->server->steps()->AddAnswerer(opened->prefix, opened->asked)) {
    return Give(absl::AlreadyExistsError(
        absl::StrCat("asks for ", opened->prefix, " are answered already")));
  }
  *answers = opened.release();
  return nullptr;
}

void tryst_answers_free(tryst_answers* answers) {
  if (answers == nullptr || !tryst::c::InTheProcessOf(answers->forks).ok()) return;
  answers->server->steps()->RemoveAnswerer(answers->prefix, answers->asked.get());
  answers->asked->Close();
  delete answers;
}
