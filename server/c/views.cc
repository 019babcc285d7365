// Version 1 of the C interface: the views of a server's state.
#include <string>

#include "absl/strings/str_cat.h"
#include "channel/trace/json_text.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"
#include "server/status/insight.h"

using tryst::c::GiveText;
using tryst::c::Text;

namespace {

const tryst::Insight* InsightOf(tryst_server* server) {
  const bool usable = server != nullptr && server->Usable().ok();
  return usable ? server->server->insight() : nullptr;
}

}  // namespace

char* tryst_server_explain_json(tryst_server* server, const char* peer) {
  const tryst::Insight* const insight = InsightOf(server);
  return GiveText(insight == nullptr ? "{\"paths\":[],\"trouble\":\"the server does not serve\"}\n"
                                     : insight->PathsJson(Text(peer)));
}

char* tryst_server_waiting_json(tryst_server* server) {
  const tryst::Insight* const insight = InsightOf(server);
  return GiveText(insight == nullptr
                      ? "{\"waiting\":[],\"trouble\":\"the server does not serve\"}\n"
                      : insight->WaitingJson(-1));
}

char* tryst_server_stats_json(tryst_server* server) {
  std::string out = "{";
  if (server != nullptr && server->Usable().ok()) {
    for (const auto& [name, value] : server->server->Stats()) {
      absl::StrAppend(&out, out.size() > 1 ? "," : "", tryst::JsonText(name), ":", value);
    }
  }
  return GiveText(out + "}\n");
}

char* tryst_server_setting(const tryst_server* server, const char* name) {
  if (server == nullptr) return nullptr;
  for (const tryst::ConfigRow& row : tryst::ConfigRows()) {
    if (Text(name) == std::string(row.name)) {
      return GiveText(tryst::PrintSetting(row, server->server->config()));
    }
  }
  return nullptr;
}
