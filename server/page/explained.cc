#include "server/page/explained.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "channel/trace/json_text.h"
#include "server/page/job_watch.h"

namespace tryst {
namespace {

using google::protobuf::Struct;

const google::protobuf::ListValue& ListOf(const Struct& object, const char* name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? google::protobuf::ListValue::default_instance()
                                        : field->second.list_value();
}

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

double JsonNumber(const Struct& object, const char* name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? 0 : field->second.number_value();
}

std::string JsonString(const Struct& object, const char* name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? "" : field->second.string_value();
}

std::string JsonQuoted(absl::string_view text) { return JsonText(text); }

std::vector<ExplainedPath> ExplainedPaths(const Struct& document) {
  std::vector<ExplainedPath> out;
  for (const auto& value : ListOf(document, "paths").values()) {
    const Struct& path = value.struct_value();
    ExplainedPath one;
    one.fetches = JsonString(path, "role") == "fetch";
    one.peer = JsonString(path, "peer");
    one.path = JsonString(path, "path");
    one.failing = JsonString(path, "health") == "failing";
    one.state = JsonString(path, "state");
    one.why = JsonString(path, "why");
    one.in_use = path.fields().count("in_use") > 0 && path.fields().at("in_use").bool_value();
    one.done = JsonNumber(path, "done");
    one.failed = JsonNumber(path, "failed");
    one.bytes = JsonNumber(path, "bytes");
    one.under_way = JsonNumber(path, "under_way");
    one.p99_ms = JsonNumber(path, "p99_ms");
    const auto waited = path.fields().find("waited_ms");
    if (waited != path.fields().end()) {
      for (const auto& [what, ms] : waited->second.struct_value().fields()) {
        one.waited_ms[what] = ms.number_value();
      }
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<Member> ExplainedMembers(const Struct& document) {
  std::vector<Member> out;
  for (const auto& value : ListOf(document, "members").values()) {
    Member member;
    member.worker = JsonString(value.struct_value(), "worker");
    member.address = JsonString(value.struct_value(), "address");
    if (absl::SimpleHexAtoi(JsonString(value.struct_value(), "incarnation"), &member.incarnation) &&
        member.incarnation != 0) {
      out.push_back(std::move(member));
    }
  }
  return out;
}

std::vector<MemberChange> ExplainedChanges(const Struct& document) {
  std::vector<MemberChange> out;
  for (const auto& value : ListOf(document, "changes").values()) {
    const Struct& change = value.struct_value();
    out.push_back({static_cast<int64_t>(JsonNumber(change, "unix_ms")),
                   JsonString(change, "worker"), JsonString(change, "what")});
  }
  return out;
}

std::string ExplainedWeights(const Struct& document) {
  const google::protobuf::ListValue& views = ListOf(document, "weights");
  std::string out;
  if (views.values_size() == 0 || !google::protobuf::util::MessageToJsonString(views, &out).ok()) {
    out.clear();
  }
  return out;
}

size_t JobDocument::NumberOf(const std::string& worker) {
  const auto [it, fresh] = numbers_.emplace(worker, names_.size());
  if (fresh) names_.push_back(worker);
  return it->second;
}

void JobDocument::AddWorker(const std::string& worker, const std::string& address, int64_t heard_ns,
                            double up_ms, const std::string& error) {
  absl::StrAppendFormat(&workers_, "%s[%d,%s,%.0f,%.0f,%s]", workers_.empty() ? "" : ",",
                        NumberOf(worker), JsonText(address),
                        heard_ns == 0 ? -1 : Ms(now_ns_ - heard_ns), up_ms, JsonText(error));
}

void JobDocument::AddEdge(const std::string& consumer, const JobEdge& edge) {
  absl::StrAppendFormat(&edges_, "%s[%d,%d,%s,%d,%.4g,%.4g,%.0f,%.0f,%.4g,%.4g,%s,%s]",
                        edges_.empty() ? "" : ",", NumberOf(consumer), NumberOf(edge.producer),
                        JsonText(edge.path), edge.bad, edge.megabytes_per_s, edge.operations_per_s,
                        edge.under_way, edge.failed, edge.p99_ms, edge.awaited_ms_per_s,
                        JsonText(edge.mostly), JsonText(edge.why));
}

void JobDocument::AddStep(const std::string& worker, const JobStep& step) {
  absl::StrAppendFormat(&steps_, "%s[%d,\"%d\",%.3f,%.3f,%s,%d,%.3f]", steps_.empty() ? "" : ",",
                        NumberOf(worker), step.step, Ms(step.begin_ns - now_ns_),
                        Ms(step.end_ns - now_ns_), JsonText(step.longest),
                        NumberOf(step.longest_peer), Ms(step.longest_ns));
}

void JobDocument::AddWeights(const std::string& worker, const std::string& views) {
  absl::StrAppendFormat(&weights_, "%s[%d,%s]", weights_.empty() ? "" : ",", NumberOf(worker),
                        views);
}

void JobDocument::AddChange(const MemberChange& change) {
  absl::StrAppendFormat(&changes_, "%s[%d,%s,%s]", changes_.empty() ? "" : ",", change.unix_ms,
                        JsonText(change.worker), JsonText(change.what));
}

std::string JobDocument::Take() && {
  std::string names;
  for (const std::string& name : names_) {
    absl::StrAppend(&names, names.empty() ? "" : ",", JsonText(name));
  }
  return absl::StrCat("{\"names\":[", names, "],\"workers\":[", workers_, "],\"edges\":[", edges_,
                      "],\"steps\":[", steps_, "],\"weights\":[", weights_, "],\"changes\":[",
                      changes_, "]}\n");
}

}  // namespace tryst
