#include "verbs/ibv/rdma_settings.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tryst {
namespace {

struct Variable {
  const char* name;       // The name in TensorFlow's documentation.
  const char* code_name;  // The name in TensorFlow's code; null: the same.
  uint32_t least;
  uint32_t most;
  const char* meaning;
  // Null for RDMA_DEVICE, the only one that is text.
  void (*set)(RdmaSettings* settings, uint32_t value);
};

constexpr Variable kVariables[] = {
    {"RDMA_DEVICE", nullptr, 0, 0, "device name; default: the best with an active port", nullptr},
    {"RDMA_DEVICE_PORT", nullptr, 1, 255, "port of the device; default: the best active one",
     [](RdmaSettings* s, uint32_t v) { s->port = v; }},
    {"RDMA_GID_INDEX", nullptr, 0, 255, "default: RoCE v2, IPv4 before IPv6",
     [](RdmaSettings* s, uint32_t v) { s->gid_index = v; }},
    {"RDMA_QP_PKEY_INDEX", "RDMA_PKEY", 0, 65535, "partition key index; default 0",
     [](RdmaSettings* s, uint32_t v) { s->pkey_index = v; }},
    {"RDMA_QP_QUEUE_DEPTH", "RDMA_QUEUE_DEPTH", 1, 1 << 20,
     "operations in flight for each queue pair",
     [](RdmaSettings* s, uint32_t v) { s->queue_depth = v; }},
    {"RDMA_QP_TIMEOUT", "RDMA_TIMEOUT", 1, 31, "4.096 us << this, per attempt; default 14",
     [](RdmaSettings* s, uint32_t v) { s->ack_timeout = v; }},
    {"RDMA_QP_RETRY_COUNT", "RDMA_RETRY_CNT", 0, 7, "attempts; 7 is taken as 6",
     [](RdmaSettings* s, uint32_t v) { s->retry_count = v; }},
    {"RDMA_QP_SL", "RDMA_SL", 0, 15, "service level; default 0",
     [](RdmaSettings* s, uint32_t v) { s->service_level = v; }},
    {"RDMA_QP_MTU", "RDMA_MTU", 256, 4096, "bytes; default: the port's",
     [](RdmaSettings* s, uint32_t v) { s->mtu_bytes = v; }},
    {"RDMA_TRAFFIC_CLASS", nullptr, 0, 255, "of the packets; default 0",
     [](RdmaSettings* s, uint32_t v) { s->traffic_class = v; }},
};

absl::Status Wrong(absl::string_view name, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, "=\"", value, "\": ", why));
}

bool IsMtu(uint32_t bytes) {
  return bytes == 256 || bytes == 512 || bytes == 1024 || bytes == 2048 || bytes == 4096;
}

absl::Status SetNumber(const Variable& variable, absl::string_view name, const std::string& value,
                       RdmaSettings* settings, std::vector<std::string>* warnings) {
  uint32_t number;
  if (!absl::SimpleAtoi(value, &number)) return Wrong(name, value, "the value is not a number");
  if (number < variable.least || number > variable.most) {
    return Wrong(name, value,
                 absl::StrCat("the value is not from ", variable.least, " to ", variable.most));
  }
  const absl::string_view documented = variable.name;
  if (documented == "RDMA_QP_MTU" && !IsMtu(number)) {
    return Wrong(name, value, "the value is not 256, 512, 1024, 2048 or 4096");
  }
  if (documented == "RDMA_QP_RETRY_COUNT" && number == 7) {
    warnings->push_back(absl::StrCat(
        name, "=7 taken as 6: 7 means for ever on some NICs, which then never notice a dead peer"));
    number = 6;
  }
  variable.set(settings, number);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RdmaSettings> ParseRdmaSettings(
    const std::map<std::string, std::string>& environment, std::vector<std::string>* warnings) {
  RdmaSettings settings;
  std::map<std::string, bool> known;
  for (const Variable& variable : kVariables) {
    const std::string* taken = nullptr;
    const char* taken_name = nullptr;
    for (const char* name : {variable.name, variable.code_name}) {
      if (name == nullptr) continue;
      known[name] = true;
      const auto found = environment.find(name);
      if (found == environment.end()) continue;
      if (taken != nullptr && *taken != found->second) {
        return Wrong(name, found->second,
                     absl::StrCat("the value contradicts ", taken_name, "=\"", *taken, "\""));
      }
      taken = &found->second;
      taken_name = name;
    }
    if (taken == nullptr) continue;
    if (variable.set == nullptr) {
      if (taken->empty()) return Wrong(taken_name, *taken, "the value is empty");
      settings.device = *taken;
      continue;
    }
    const absl::Status status = SetNumber(variable, taken_name, *taken, &settings, warnings);
    if (!status.ok()) return status;
  }
  for (const auto& entry : environment) {
    if (absl::StartsWith(entry.first, "RDMA_") && known.count(entry.first) == 0) {
      warnings->push_back(absl::StrCat(entry.first, " means nothing here and is ignored"));
    }
  }
  return settings;
}

std::string RdmaVariablesTable() {
  std::string table = "| variable | or | values | meaning |\n| --- | --- | --- | --- |\n";
  for (const Variable& variable : kVariables) {
    const std::string range =
        variable.set == nullptr ? "a name" : absl::StrCat(variable.least, "..", variable.most);
    absl::StrAppend(&table, "| `", variable.name, "` | ",
                    variable.code_name == nullptr ? "" : absl::StrCat("`", variable.code_name, "`"),
                    " | ", range, " | ", variable.meaning, " |\n");
  }
  return table;
}

}  // namespace tryst
