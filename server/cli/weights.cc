#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"
#include "server/cli/ask_workers.h"
#include "server/cli/watch.h"

// `tryst weights`: what the workers of a job say of the sets of weights that they have open.
namespace tryst {
namespace {

using google::protobuf::Struct;

// One end of a set, as its worker's Insight::PathsJson() tells.
struct End {
  std::string worker;
  Struct view;
  std::string Text(const char* name) const { return TextIn(view, name); }
  double Number(const char* name) const { return NumberIn(view, name); }
  bool Is(const char* name) const {
    const auto field = view.fields().find(name);
    return field != view.fields().end() && field->second.bool_value();
  }
  std::vector<std::string> Texts(const char* name) const {
    std::vector<std::string> out;
    const auto field = view.fields().find(name);
    if (field == view.fields().end()) return out;
    for (const auto& value : field->second.list_value().values()) {
      out.push_back(Printable(value.string_value()));
    }
    return out;
  }
  // A version's number, as text: JSON numbers do not have 64 bits.
  std::string Version(const char* name) const {
    const std::string number = Text(name);
    return number == "0" ? "" : number;
  }
};

std::string Role(const End& end) {
  if (end.Text("role") != "owner") return end.Text("role");
  return absl::StrFormat("owner %.0f of %.0f%s", end.Number("rank"), end.Number("owners"),
                         end.Is("leads") ? ", leads" : "");
}

std::string What(const End& end) {
  std::vector<std::string> out;
  const std::vector<std::string> holds = end.Texts("holds");
  if (end.Text("role") == "owner") {
    out.push_back(holds.empty() ? "holds no sealed version"
                                : absl::StrFormat("holds %s (%.1f MiB)", absl::StrJoin(holds, ", "),
                                                  end.Number("held_bytes") / (1 << 20)));
  }
  if (end.Text("role") == "member") {
    const std::string serves = end.Version("serves");
    out.push_back(serves.empty() ? "may serve nothing"
                                 : absl::StrCat("serves ", serves,
                                                end.Is("confirmed") ? "" : ", unconfirmed"));
    if (end.Number("held_bytes") > 0) {
      out.push_back(absl::StrFormat("has %.1f MiB for others, who took %.1f MiB",
                                    end.Number("held_bytes") / (1 << 20),
                                    end.Number("sent_on") / (1 << 20)));
    }
    if (end.Number("permits_lost") > 0) {
      out.push_back(
          absl::StrFormat("its permit has run out %.0f times", end.Number("permits_lost")));
    }
  }
  if (!end.Text("note").empty()) out.push_back(end.Text("note"));
  return absl::StrJoin(out, "; ");
}

// Whom the leader waits for, by the names that other ends of the set go by.
std::string Awaited(const End& leader, const std::vector<const End*>& ends) {
  std::vector<std::string> out;
  for (const std::string& incarnation : leader.Texts("awaited")) {
    const auto named = std::find_if(ends.begin(), ends.end(), [&](const End* end) {
      return end->Text("incarnation") == incarnation;
    });
    out.push_back(named != ends.end() ? (*named)->worker
                                      : absl::StrCat("a member that was not asked, ", incarnation));
  }
  return absl::StrJoin(out, ", ");
}

std::string SetText(const std::string& set, const std::vector<const End*>& ends) {
  // The leader knows most; else whoever has heard most.
  const auto best = std::max_element(ends.begin(), ends.end(), [](const End* a, const End* b) {
    return std::make_pair(a->Is("leads"), a->Number("active_s")) <
           std::make_pair(b->Is("leads"), b->Number("active_s"));
  });
  const End& knows = **best;
  const std::string active = knows.Version("active");
  const std::string newest = knows.Version("newest");
  std::string out = absl::StrCat(
      "set ", set, ": ",
      active.empty()
          ? "no version is active"
          : absl::StrFormat("version %s is active, for %.1f s", active, knows.Number("active_s")),
      newest.empty() ? "; none is sealed" : absl::StrCat("; the newest is ", newest));
  if (!knows.Is("leads")) {
    out += "; no worker that was asked leads it";
  } else {
    const double members = knows.Number("members");
    absl::StrAppendFormat(&out, "; %.0f member%s", members, members == 1 ? "" : "s");
    if (knows.Number("behind") > 0) {
      absl::StrAppendFormat(&out, ", %.0f of which do not serve it", knows.Number("behind"));
    }
    const std::string awaited = Awaited(knows, ends);
    if (!awaited.empty()) absl::StrAppend(&out, "; waits for ", awaited);
  }
  out += "\n";
  for (const End* end : ends) {
    absl::StrAppendFormat(&out, "  %-32s %-20s %s\n", end->worker, Role(*end), What(*end));
  }
  return out;
}

}  // namespace

int RunWeights(const CommandLine& line) {
  auto asked = WhomToAsk(line, true);
  if (!asked.ok()) return FailUsage(asked.status());
  int exit = kExitDone;
  std::vector<End> ends;
  std::string json;
  for (size_t i = 0; i < asked->workers.size(); ++i) {
    const std::string& worker = asked->workers[i];
    const absl::StatusOr<Struct> document =
        ExplainedBy(asked->client->calls(), worker, asked->Patience(i, line.timeout));
    if (!document.ok()) {
      exit = Fail(document.status());
      continue;
    }
    const auto weights = document->fields().find("weights");
    if (weights == document->fields().end()) {
      exit = Fail(absl::UnimplementedError(absl::StrCat(
          worker, " runs a release that does not show its sets of weights: upgrade that worker")));
      continue;
    }
    for (const auto& value : weights->second.list_value().values()) {
      ends.push_back({worker, value.struct_value()});
    }
    std::string said;
    if (google::protobuf::util::MessageToJsonString(weights->second, &said).ok()) {
      absl::StrAppend(&json, json.empty() ? "" : ",", JsonText(worker), ":", said);
    }
  }
  if (line.json) {
    Show(absl::StrCat("{", json, "}\n"), true);
  } else {
    std::map<std::string, std::vector<const End*>> sets;
    for (const End& end : ends) sets[end.Text("set")].push_back(&end);
    for (const auto& [set, its] : sets) Show(SetText(set, its), false);
  }
  if (exit != kExitDone || !ends.empty()) return exit;
  if (!line.json) std::fputs("tryst: no worker that was asked has a set of weights open\n", stderr);
  return kExitNothingFound;
}

}  // namespace tryst
