// Version 1 of the C interface: the steps of a peer.
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"

using tryst::c::Give;
using tryst::c::RefuseNull;
using tryst::c::Text;
using tryst::c::Timeout;

tryst_status* tryst_peer_step_begin(tryst_server* server, const char* peer, int64_t step,
                                    int64_t timeout_ms) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  return Give(server->server->calls()->BeginStep(Text(peer), step, Timeout(timeout_ms)));
}

tryst_status* tryst_peer_step_abort(tryst_server* server, const char* peer, int64_t step,
                                    tryst_code code, const char* message, int64_t timeout_ms) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  absl::Status why;
  const absl::Status fit = tryst::c::CauseOfAbort(code, message, &why);
  if (!fit.ok()) return Give(fit);
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  return Give(server->server->calls()->AbortStep(Text(peer), step, why, Timeout(timeout_ms)));
}

tryst_status* tryst_peer_step_cleanup(tryst_server* server, const char* peer, int64_t step,
                                      int64_t timeout_ms) {
  if (tryst_status* const refused = RefuseNull(server)) return refused;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  return Give(server->server->calls()->CleanupStep(Text(peer), step, Timeout(timeout_ms)));
}
