#include "server/cli/ask_workers.h"

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace tryst {
namespace {

constexpr size_t kMostWorkers = 256;

}  // namespace

int FailUsage(const absl::Status& status) {
  (void)Fail(status);
  return kExitUsage;
}

absl::Status CheckPlace(Membership* members, const std::string& worker) {
  for (const Member& member : members->Members()) {
    if (member.worker == worker && !member.address.empty()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the address of ", worker, " is not known: write ",
                                                 worker,
                                                 "@host:port, or set --join or --cluster_spec"));
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "tryst: %s\n", Printable(status.ToString()).c_str());
  return kExitFailed;
}

void Show(absl::string_view text, bool json) {
  const std::string shown = json ? PrintableJson(text) : PrintableLines(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

int Print(const absl::StatusOr<std::string>& text, bool json) {
  if (!text.ok()) return Fail(text.status());
  Show(*text, json);
  return kExitDone;
}

absl::StatusOr<google::protobuf::Struct> ExplainedBy(PeerCalls* calls, const std::string& worker,
                                                     absl::Duration timeout) {
  const auto text = calls->Explain(worker, "", true, timeout);
  if (!text.ok()) return text.status();
  google::protobuf::Struct document;
  if (google::protobuf::util::JsonStringToMessage(*text, &document).ok()) return document;
  return absl::DataLossError(absl::StrCat(
      worker, " answered with something that is not JSON: is it a Tryst worker of this release?"));
}

double NumberIn(const google::protobuf::Struct& object, const char* name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? 0 : field->second.number_value();
}

std::string TextIn(const google::protobuf::Struct& object, const char* name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? "" : Printable(field->second.string_value());
}

absl::StatusOr<Asked> WhomToAsk(const CommandLine& line, bool and_theirs) {
  Asked asked;
  for (const std::string& word : line.words) {
    (IsWorkerName(word) ? asked.workers : asked.rest).push_back(word);
  }
  absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(line.config);
  if (!client.ok()) return client.status();
  asked.client = *std::move(client);
  for (const std::string& worker : asked.workers) {
    absl::Status placed = CheckPlace(asked.client->members(), worker);
    if (!placed.ok()) return placed;
  }
  if (asked.workers.empty()) {
    for (const Member& member : asked.client->members()->Members()) {
      asked.workers.push_back(member.worker);
    }
  }
  if (asked.workers.empty()) {
    return absl::InvalidArgumentError(
        "no worker to ask: name a WORKER@host:port, or set --join or --cluster_spec");
  }
  asked.named = asked.workers.size();
  if (!and_theirs) return asked;
  std::set<std::string> known(asked.workers.begin(), asked.workers.end());
  for (const std::string& worker : std::vector<std::string>(asked.workers)) {
    const auto heard = asked.client->calls()->Ping(worker, line.timeout);
    if (!heard.ok()) continue;  // The command itself will report the error.
    for (const Member& member : heard->members) {
      // Skips members that are not up, or that only a worker's settings name: they cannot answer.
      if (member.address.empty() || member.incarnation == 0) continue;
      // The name will be printed.
      if (!IsWorkerName(member.worker) || Printable(member.worker) != member.worker) continue;
      if (known.size() == kMostWorkers || !known.insert(member.worker).second) continue;
      asked.client->members()->Set(member.worker, member.address);
      asked.workers.push_back(member.worker);
    }
  }
  return asked;
}

}  // namespace tryst
