// What people and schedulers write: clusters as text and JSON, host lists, settings. Each is
// refused with a reason, or parses to the same result twice.
//
// An input is one byte for its kind, then the text.

#include <cstdint>
#include <string>

#include "server/config/config.h"
#include "server/members/cluster_spec.h"
#include "tests/fuzz/require.h"

namespace {

void TrySetting(uint8_t which, absl::string_view text) {
  const auto& rows = tryst::ConfigRows();
  const tryst::ConfigRow& row = rows[which % rows.size()];
  tryst::ServerConfig config;
  if (!tryst::ParseSetting(row, text, &config).ok()) return;
  tryst::ServerConfig again;
  Require(tryst::ParseSetting(row, tryst::PrintSetting(row, config), &again).ok());
  Require(tryst::PrintSetting(row, again) == tryst::PrintSetting(row, config));
  (void)tryst::CheckLimits(config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0: {
      const auto cluster = tryst::ClusterFromText(text);
      if (cluster.ok()) (void)cluster->Workers();
      break;
    }
    case 1: {
      const auto cluster = tryst::ClusterFromJson(text);
      if (cluster.ok()) (void)cluster->Workers();
      break;
    }
    case 2: {
      const auto cluster = tryst::ClusterFromTfConfig({{"TF_CONFIG", std::string(text)}});
      if (cluster.ok()) (void)cluster->Workers();
      break;
    }
    case 3: {
      const auto hosts = tryst::ExpandHostlist(text);
      if (hosts.ok()) Require(hosts->size() <= (1u << 20));
      break;
    }
    case 4: {
      const auto counts = tryst::ExpandCounts(text);
      if (counts.ok()) Require(counts->size() <= (1u << 20));
      break;
    }
    default:
      if (!text.empty()) TrySetting(static_cast<uint8_t>(text[0]), text.substr(1));
  }
  return 0;
}
