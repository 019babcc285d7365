#include "server/c/tryst.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/c/handles.h"
#include "server/server.h"

namespace {

using tryst::c::CheckedType;
using tryst::c::Give;
using tryst::c::GiveTensor;
using tryst::c::GiveText;
using tryst::c::Receive;
using tryst::c::RefuseNull;
using tryst::c::Text;
using tryst::c::Timeout;

absl::StatusOr<tryst::TensorShape> CheckedShape(const int64_t* dims, size_t rank) {
  return tryst::TensorShape::Make(absl::MakeConstSpan(dims, rank));
}

tryst_status* SendWith(tryst_server* server, int64_t step, const char* key,
                       const tryst_tensor* tensor, const tryst::SendArgs& args) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const auto parsed = tryst::TensorKey::Parse(Text(key));
  if (!parsed.ok()) return Give(parsed.status());
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  const bool is_dead = tensor == nullptr;
  return Give(
      (*rendezvous)->Send(*parsed, args, is_dead ? tryst::Tensor() : tensor->tensor, is_dead));
}

void Finish(tryst_done done, void* arg, const absl::Status& status, tryst::Tensor tensor,
            bool is_dead, bool shared) {
  const std::unique_ptr<tryst_status> told(Give(status));
  const bool there = status.ok() && !is_dead;
  done(arg, told.get(), there ? new tryst_tensor{std::move(tensor), shared} : nullptr,
       is_dead ? 1 : 0);
}

void Fail(tryst_done done, void* arg, const absl::Status& status) {
  Finish(done, arg, status, tryst::Tensor(), false, false);
}

}  // namespace

uint32_t tryst_abi_version(void) { return TRYST_ABI_VERSION; }

tryst_code tryst_status_code(const tryst_status* status) {
  return status == nullptr ? TRYST_OK : static_cast<tryst_code>(status->status.raw_code());
}

const char* tryst_status_message(const tryst_status* status) {
  return status == nullptr ? "" : status->message.c_str();
}

void tryst_status_free(tryst_status* status) { delete status; }

void tryst_string_free(char* text) { std::free(text); }

tryst_status* tryst_tensor_allocate(tryst_dtype dtype, const int64_t* dims, size_t rank,
                                    tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(tensor)) return refused;
  *tensor = nullptr;
  const auto type = CheckedType(dtype);
  if (!type.ok()) return Give(type.status());
  const auto shape = CheckedShape(dims, rank);
  if (!shape.ok()) return Give(shape.status());
  return GiveTensor(tryst::Tensor::Allocate(*type, *shape), tensor);
}

tryst_status* tryst_tensor_adopt(void* data, tryst_dtype dtype, const int64_t* dims, size_t rank,
                                 void (*release)(void* arg), void* arg, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(tensor)) {
    if (release != nullptr) release(arg);
    return refused;
  }
  *tensor = nullptr;
  const auto type = CheckedType(dtype);
  const auto shape = CheckedShape(dims, rank);
  if (!type.ok() || !shape.ok()) {
    if (release != nullptr) release(arg);
    return Give(type.ok() ? shape.status() : type.status());
  }
  return GiveTensor(tryst::Tensor::Adopt(data, *type, *shape, {},
                                         [release, arg] {
                                           if (release != nullptr) release(arg);
                                         }),
                    tensor);
}

void tryst_tensor_free(tryst_tensor* tensor) { delete tensor; }

int32_t tryst_tensor_dtype(const tryst_tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int32_t>(tensor->tensor.dtype());
}

size_t tryst_tensor_rank(const tryst_tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<size_t>(tensor->tensor.shape().rank());
}

int64_t tryst_tensor_dim(const tryst_tensor* tensor, size_t i) {
  if (i >= tryst_tensor_rank(tensor)) return 0;
  return tensor->tensor.shape().dim(static_cast<int>(i));
}

uint64_t tryst_tensor_bytes(const tryst_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor.bytes();
}

void* tryst_tensor_data(tryst_tensor* tensor) {
  if (tensor == nullptr || tensor->tensor.dtype() == tryst::DType::kString) return nullptr;
  return tensor->tensor.mutable_data();
}

tryst_status* tryst_server_create(const char* const* settings, size_t count,
                                  tryst_server** server) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  *server = nullptr;
  if (settings == nullptr) count = 0;
  std::vector<std::string> given, rest;
  for (size_t i = 0; i < count; ++i) given.emplace_back(Text(settings[i]));
  auto config = tryst::LoadConfig(given, tryst::ProcessEnvironment(), &rest);
  if (!config.ok()) return Give(config.status());
  if (!rest.empty()) {
    return Give(absl::InvalidArgumentError(absl::StrCat(
        "'", rest[0], "' is not a setting, which looks like --NAME=VALUE (docs/CONFIG.md)")));
  }
  auto built = tryst::ServerBuilder().Build(*config);
  if (!built.ok()) return Give(built.status());
  *server = new tryst_server{*std::move(built)};
  return nullptr;
}

tryst_status* tryst_server_start(tryst_server* server) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const absl::Status usable = server->Usable();
  return Give(usable.ok() ? server->server->Start() : usable);
}

tryst_status* tryst_server_stop(tryst_server* server, int64_t deadline_ms) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const absl::Status usable = server->Usable();
  return Give(usable.ok() ? server->server->Stop(Timeout(deadline_ms)) : usable);
}

void tryst_server_free(tryst_server* server) {
  // After a fork the threads that would stop and destroy the server are missing, so it is leaked.
  if (server != nullptr && server->Usable().ok()) delete server;
}

const char* tryst_server_worker(const tryst_server* server) {
  return server == nullptr ? "" : server->server->worker().c_str();
}

const char* tryst_server_address(const tryst_server* server) {
  return server == nullptr ? "" : server->server->address().c_str();
}

uint64_t tryst_server_incarnation(const tryst_server* server) {
  return server == nullptr ? 0 : server->server->incarnation();
}

tryst_status* tryst_server_peer_incarnation(tryst_server* server, const char* peer,
                                            int64_t timeout_ms, uint64_t* incarnation) {
  if (tryst_status* const refused = RefuseNull(server, incarnation)) return refused;
  *incarnation = 0;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  const auto heard = server->server->calls()->Ping(Text(peer), Timeout(timeout_ms));
  if (heard.ok()) *incarnation = heard->self.incarnation;
  return Give(heard.status());
}

char* tryst_server_explain(tryst_server* server, const char* peer) {
  if (server == nullptr) return nullptr;
  const absl::Status usable = server->Usable();
  return GiveText(usable.ok() ? server->server->Explain(Text(peer)) : usable.ToString());
}

tryst_status* tryst_key(const char* src_device, uint64_t src_incarnation, const char* dst_device,
                        const char* edge, uint64_t frame, uint64_t iter, char** key) {
  if (tryst_status* const refused = RefuseNull(key)) return refused;
  *key = nullptr;
  const auto prefix =
      tryst::TensorKeyPrefix::Make(Text(src_device), src_incarnation, Text(dst_device), Text(edge));
  if (prefix.ok()) *key = GiveText(std::string(prefix->At(frame, iter).text()));
  return Give(prefix.status());
}

tryst_status* tryst_send(tryst_server* server, int64_t step, const char* key,
                         const tryst_tensor* tensor) {
  return SendWith(server, step, key, tensor, {});
}

tryst_status* tryst_send_copy(tryst_server* server, int64_t step, const char* key,
                              const tryst_tensor* tensor) {
  tryst::SendArgs args;
  args.copy_on_send = true;
  return SendWith(server, step, key, tensor, args);
}

void tryst_recv_async(tryst_server* server, int64_t step, const char* key, const tryst_tensor* into,
                      tryst_done done, void* arg) {
  if (done == nullptr) return;  // Nobody would hear of it.
  if (server == nullptr) {
    return Fail(done, arg, absl::InvalidArgumentError("null was given for a handle"));
  }
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Fail(done, arg, rendezvous.status());
  auto made = Receive::Make(server->server.get(), step, key, into);
  if (!made.ok()) return Fail(done, arg, made.status());
  auto receive = std::make_unique<Receive>(*std::move(made));
  const tryst::TensorKey wanted = receive->key;
  tryst::RecvArgs args;
  args.executor = server->server->executor();
  args.destination = receive->into;
  (*rendezvous)
      ->RecvAsync(wanted, args, [done, arg, receive = std::move(receive)](tryst::Received&& got) {
        if (!got.status.ok()) return Fail(done, arg, got.status);
        const bool is_dead = got.is_dead;
        auto filled = receive->Fill(std::move(got));
        if (!filled.ok()) return Fail(done, arg, filled.status());
        Finish(done, arg, filled.status(), *filled, is_dead, receive->SharesMemory());
      });
}

tryst_status* tryst_recv(tryst_server* server, int64_t step, const char* key,
                         const tryst_tensor* into, int64_t timeout_ms, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(server, tensor)) return refused;
  *tensor = nullptr;
  const auto rendezvous = server->Step(step);
  if (!rendezvous.ok()) return Give(rendezvous.status());
  auto receive = Receive::Make(server->server.get(), step, key, into);
  if (!receive.ok()) return Give(receive.status());
  tryst::RecvArgs args;
  args.destination = receive->into;
  auto got = (*rendezvous)->Recv(receive->key, args, Timeout(timeout_ms));
  if (!got.ok()) return Give(got.status());
  if (got->is_dead) return nullptr;
  return GiveTensor(receive->Fill(*std::move(got)), tensor, receive->SharesMemory());
}

tryst_status* tryst_step_abort(tryst_server* server, int64_t step, tryst_code code,
                               const char* message) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  absl::Status why;
  const absl::Status fit = tryst::c::CauseOfAbort(code, message, &why);
  if (!fit.ok()) return Give(fit);
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  if (server->server->steps() == nullptr) {
    return Give(absl::FailedPreconditionError("the server has not started: start it first"));
  }
  server->server->steps()->AbortStep(step, why);
  return nullptr;
}

void tryst_step_cleanup(tryst_server* server, int64_t step) {
  if (server == nullptr || !server->Usable().ok() || server->server->steps() == nullptr) return;
  server->server->steps()->CleanupStep(step);
}
