#include "verbs/ofi/ofi_provider.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tryst {
namespace {

constexpr char kPrefix[] = "ofi:";

constexpr OfiProvider kProviders[] = {
    {"tcp", "tcp;ofi_rxm", /*takes_host=*/true, /*checked_wire=*/false,
     "a refused write says that it failed, not why"},
    {"shm", "shm", /*takes_host=*/false, /*checked_wire=*/true,
     "peers of this host only; an idle worker looks every millisecond; a peer that died is "
     "noticed when a work gets no answer"},
    {"udp", "udp;ofi_rxd", /*takes_host=*/true, /*checked_wire=*/false,
     "slow; an idle worker looks every millisecond; a peer that died is noticed when a work gets "
     "no answer"},
    {"verbs", "verbs;ofi_rxm", /*takes_host=*/true, /*checked_wire=*/true,
     "not measured; nic = ibv reaches the same device without libfabric"},
    {"efa", "efa", /*takes_host=*/false, /*checked_wire=*/true,
     "not measured; no order between writes; an immediate has 4 bytes, so the length of what "
     "landed is not told"},
};

}  // namespace

absl::Span<const OfiProvider> OfiProviders() { return kProviders; }

bool IsOfiName(absl::string_view name) { return absl::StartsWith(name, kPrefix); }

absl::StatusOr<OfiProvider> FindOfiProvider(absl::string_view name) {
  const absl::string_view wanted = absl::StripPrefix(name, kPrefix);
  for (const OfiProvider& provider : OfiProviders()) {
    if (wanted == provider.name || wanted == provider.full_name) return provider;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", wanted, "' is no libfabric provider that Tryst uses: it uses ",
      absl::StrJoin(OfiProviders(), ", ", [](std::string* out, const OfiProvider& provider) {
        absl::StrAppend(out, kPrefix, provider.name);
      })));
}

}  // namespace tryst
