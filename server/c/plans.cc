// Version 1 of the C interface: plans.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/c/handles.h"
#include "server/c/operations.h"
#include "server/c/tryst_v1.h"

using tryst::c::Give;
using tryst::c::RefuseNull;
using tryst::c::Text;

struct tryst_plan {
  tryst_server* server;
  std::vector<tryst::TensorKey> keys;
};

tryst_status* tryst_plan_create(tryst_server* server, const char* src_device,
                                uint64_t src_incarnation, const char* dst_device,
                                const char* const* edges, size_t count, tryst_plan** plan) {
  if (tryst_status* const refused = RefuseNull(server, plan)) return refused;
  *plan = nullptr;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  if (count == 0 || edges == nullptr) {
    return Give(absl::InvalidArgumentError("a plan needs at least one name"));
  }
  auto made = std::make_unique<tryst_plan>();
  made->server = server;
  made->keys.reserve(count);
  const auto first = tryst::TensorKeyPrefix::Make(Text(src_device), src_incarnation,
                                                  Text(dst_device), Text(edges[0]));
  if (!first.ok()) return Give(first.status());
  made->keys.push_back(first->At(0, 0));
  for (size_t i = 1; i < count; ++i) {
    auto key = made->keys[0].WithEdge(Text(edges[i]));
    if (!key.ok()) return Give(key.status());
    made->keys.push_back(*std::move(key));
  }
  *plan = made.release();
  return nullptr;
}

void tryst_plan_free(tryst_plan* plan) { delete plan; }

tryst_status* tryst_plan_send(tryst_plan* plan, int64_t step, const tryst_tensor* const* tensors,
                              const tryst_options* options) {
  if (tryst_status* const refused = RefuseNull(plan, tensors)) return refused;
  std::vector<tryst::SendItem> sends(plan->keys.size());
  for (size_t i = 0; i < sends.size(); ++i) {
    sends[i].key = plan->keys[i];
    sends[i].is_dead = tensors[i] == nullptr;
    if (tensors[i] != nullptr) sends[i].tensor = tensors[i]->tensor;
  }
  return tryst::c::SendAll(plan->server, step, absl::MakeSpan(sends), options);
}

tryst_status* tryst_plan_recv_start(tryst_plan* plan, int64_t step,
                                    const tryst_tensor* const* intos, const tryst_options* options,
                                    int64_t timeout_ms, tryst_queue* queue, void* tag,
                                    tryst_op** op) {
  if (tryst_status* const refused = RefuseNull(plan)) return refused;
  return tryst::c::StartReceives(
      plan->server, step, plan->keys.size(),
      [&](size_t i) {
        return tryst::c::Receive::Of(plan->server->server.get(), step, plan->keys[i],
                                     intos == nullptr ? nullptr : intos[i]);
      },
      options, timeout_ms, queue, tag, op);
}
