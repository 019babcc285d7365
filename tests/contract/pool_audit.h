#ifndef TRYST_TESTS_CONTRACT_POOL_AUDIT_H_
#define TRYST_TESTS_CONTRACT_POOL_AUDIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "channel/pool/channel_pools.h"
#include "channel/trace/trace.h"

namespace tryst {

// What an audit looks at. All may be asked from any thread.
struct AuditedWorker {
  std::string name;
  uint64_t incarnation = 0;
  ChannelPools* pools = nullptr;
  std::vector<const Trace*> traces;  // They have all operations; without any, none is looked at.
};

// Why two workers do not look as they must when every receive has ended and its tensor is gone;
// empty: they do. It may take a moment until they do.
//
// The consumer keeps no operation, and neither keeps memory that is lent, or a reference.
// `untroubled`, while no link was broken and no process ended: nor does the producer, nothing was
// said or sent twice, what one end counts the other counts too, and the traces of both tell the
// same.
std::string Audit(const AuditedWorker& consumer, const AuditedWorker& producer, bool untroubled);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_POOL_AUDIT_H_
