#include "server/members/cluster_spec.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/cluster.pb.h"

namespace tryst {
namespace {

constexpr size_t kMaxHosts = 65536;

absl::Status Bad(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": '", text, "'"));
}

bool IsJobName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

absl::StatusOr<std::string> Variable(const Environment& environment,
                                     std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto it = environment.find(name);
    if (it != environment.end() && !it->second.empty()) return it->second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the resolver needs an environment variable that is not set: ", *names.begin()));
}

// Parses "ps=1,worker=*": how many tasks each job has, with -1 for '*'.
absl::StatusOr<std::vector<std::pair<std::string, int>>> ParseJobs(absl::string_view text) {
  std::vector<std::pair<std::string, int>> jobs;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, '=');
    const absl::string_view name = absl::StripAsciiWhitespace(pair.first);
    int count = -1;
    if (!IsJobName(name) || (pair.second != "*" && (!absl::SimpleAtoi(pair.second, &count) ||
                                                    count < 1 || count > 65536))) {
      return Bad(
          "with slurm, mpi and kubernetes cluster_spec should look like ps=1,worker=3, and is",
          text);
    }
    if (!jobs.empty() && jobs.back().second < 0)
      return Bad("in cluster_spec only the last job may have *, and cluster_spec is", text);
    jobs.emplace_back(std::string(name), count);
  }
  if (jobs.empty())
    return Bad("with slurm, mpi and kubernetes cluster_spec should look like ps=1,worker=3, and is",
               text);
  return jobs;
}

absl::Status AddTask(absl::string_view job, int task, absl::string_view address,
                     ClusterSpec* spec) {
  if (!IsJobName(job))
    return Bad("a job's name may have letters, digits, '_', '-' and '.', and this name is", job);
  if (task < 0) return Bad("a task's number is negative in job", job);
  if (address.empty()) return Bad("a task has no address in job", job);
  if (!spec->jobs[std::string(job)].emplace(task, std::string(address)).second) {
    return Bad(absl::StrCat("task ", task, " is named twice in job"), job);
  }
  return absl::OkStatus();
}

absl::Status AddCluster(const rpc::ClusterDef& def, ClusterSpec* spec) {
  for (const rpc::JobDef& job : def.job()) {
    for (const auto& [task, address] : job.tasks()) {
      absl::Status added = AddTask(job.name(), task, address, spec);
      if (!added.ok()) return added;
    }
  }
  return absl::OkStatus();
}

// Expands the ranges in a hostlist's brackets, "01-03,7", with `prefix` before each number.
absl::Status ExpandRanges(absl::string_view prefix, absl::string_view ranges,
                          std::vector<std::string>* out) {
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, '-');
    const absl::string_view last = absl::StrContains(range, '-') ? ends.second : ends.first;
    uint32_t from = 0;
    uint32_t to = 0;
    if (!absl::SimpleAtoi(ends.first, &from) || !absl::SimpleAtoi(last, &to) || to < from ||
        to - from >= kMaxHosts) {
      return Bad("a range in a list of hosts should look like [1-4] or [1,3]", range);
    }
    const size_t width = ends.first.size();
    for (uint64_t number = from; number <= to; ++number) {
      const std::string digits = absl::StrCat(number);
      out->push_back(absl::StrCat(
          prefix, std::string(width > digits.size() ? width - digits.size() : 0, '0'), digits));
    }
  }
  return absl::OkStatus();
}

// Expands one item of a hostlist, which may have several brackets: rack[1-2]n[01-04].
absl::Status ExpandItem(absl::string_view item, std::vector<std::string>* out) {
  std::vector<std::string> names = {""};
  while (!item.empty()) {
    const size_t open = item.find('[');
    for (std::string& name : names) absl::StrAppend(&name, item.substr(0, open));
    if (open == absl::string_view::npos) break;
    const size_t close = item.find(']', open);
    if (close == absl::string_view::npos)
      return Bad("a bracket is not closed in the list of hosts", item);
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      absl::Status expanded = ExpandRanges(name, item.substr(open + 1, close - open - 1), &longer);
      if (!expanded.ok()) return expanded;
      if (longer.size() > kMaxHosts)
        return Bad("more than 65536 hosts are in the list of hosts", item);
    }
    names = std::move(longer);
    item.remove_prefix(close + 1);
  }
  out->insert(out->end(), names.begin(), names.end());
  return absl::OkStatus();
}

// What may stand behind a resolver's name.
struct ResolverForm {
  const char* name;
  enum class Where { kNone, kMay, kMust } where;
  bool has_port;
};
constexpr ResolverForm kResolverForms[] = {
    {"flags", ResolverForm::Where::kNone, false},
    {"file", ResolverForm::Where::kMust, false},
    {"tf_config", ResolverForm::Where::kNone, false},
    {"slurm", ResolverForm::Where::kNone, true},
    {"mpi", ResolverForm::Where::kMay, true},
    {"kubernetes", ResolverForm::Where::kMust, true},
    {"etcd", ResolverForm::Where::kMust, false},
};

// Takes ":PORT", or a port that stands alone, from the end of `where`. False: it is no port.
bool TakePort(absl::string_view* where, int* port) {
  const size_t colon = where->rfind(':');
  const absl::string_view last =
      colon == absl::string_view::npos ? *where : where->substr(colon + 1);
  if (last.empty() || !std::all_of(last.begin(), last.end(), absl::ascii_isdigit)) return true;
  *where = colon == absl::string_view::npos ? "" : where->substr(0, colon);
  return absl::SimpleAtoi(last, port) && *port > 0 && *port < 65536;
}

}  // namespace

absl::StatusOr<Resolver> Resolver::Parse(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  for (const ResolverForm& form : kResolverForms) {
    if (parts.first != form.name) continue;
    Resolver resolver;
    resolver.name = form.name;
    absl::string_view where = parts.second;
    const bool port_fits = !form.has_port || TakePort(&where, &resolver.port);
    const bool where_fits = where.empty() ? form.where != ResolverForm::Where::kMust
                                          : form.where != ResolverForm::Where::kNone;
    if (!port_fits || !where_fits) break;
    resolver.where = std::string(where);
    return resolver;
  }
  return Bad(
      "resolver should be flags, file:PATH, tf_config, slurm, mpi, mpi:HOSTS, kubernetes:SERVICE "
      "or etcd:HOST:PORT,..., where slurm, mpi and kubernetes may end in :PORT, and is",
      text);
}

std::string WorkerName(absl::string_view job, int task) {
  return absl::StrCat("/job:", job, "/replica:0/task:", task);
}

std::map<std::string, std::string> ClusterSpec::Workers() const {
  std::map<std::string, std::string> out;
  for (const auto& [name, tasks] : jobs) {
    for (const auto& [index, address] : tasks) out[WorkerName(name, index)] = address;
  }
  return out;
}

absl::StatusOr<ClusterSpec> ClusterFromText(absl::string_view text) {
  ClusterSpec spec;
  for (absl::string_view part : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    int task = 0;
    for (absl::string_view address : absl::StrSplit(pair.second, ',')) {
      absl::Status added = AddTask(absl::StripAsciiWhitespace(pair.first), task++,
                                   absl::StripAsciiWhitespace(address), &spec);
      if (!added.ok()) return added;
    }
  }
  return spec;
}

absl::StatusOr<ClusterSpec> ClusterFromJson(absl::string_view json) {
  namespace pb = google::protobuf::util;
  pb::JsonParseOptions lenient;
  lenient.ignore_unknown_fields = true;  // A ServerDef of TensorFlow has fields that we do not use.
  const google::protobuf::StringPiece text(json.data(), json.size());
  ClusterSpec spec;
  rpc::ServerDef server;
  const auto parsed = pb::JsonStringToMessage(text, &server, lenient);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cluster's file is not JSON in the form of a ServerDef: ",
                     std::string(parsed.message())));
  }
  if (!server.has_cluster()) {
    const auto as_cluster = pb::JsonStringToMessage(text, server.mutable_cluster(), lenient);
    if (!as_cluster.ok() || server.cluster().job_size() == 0) {
      return absl::InvalidArgumentError(
          "the cluster's file has neither 'cluster' (a ServerDef) nor 'job' (a ClusterDef)");
    }
  }
  absl::Status added = AddCluster(server.cluster(), &spec);
  if (!added.ok()) return added;
  spec.job = server.job_name();
  spec.task = server.task_index();
  spec.protocol = server.protocol();
  return spec;
}

absl::StatusOr<ClusterSpec> ClusterFromTfConfig(const Environment& environment) {
  const absl::StatusOr<std::string> json = Variable(environment, {"TF_CONFIG"});
  if (!json.ok()) return json.status();
  google::protobuf::Struct root;
  if (!google::protobuf::util::JsonStringToMessage(*json, &root).ok()) {
    return absl::InvalidArgumentError("TF_CONFIG is not a JSON object");
  }
  ClusterSpec spec;
  auto& fields = *root.mutable_fields();
  for (const auto& [job, tasks] : fields["cluster"].struct_value().fields()) {
    int next = 0;
    for (const auto& address : tasks.list_value().values()) {
      absl::Status added = AddTask(job, next++, address.string_value(), &spec);
      if (!added.ok()) return added;
    }
    // A sparse cluster: {"worker": {"3": "host:port"}}.
    for (const auto& [index, address] : tasks.struct_value().fields()) {
      int task = -1;
      if (!absl::SimpleAtoi(index, &task))
        return Bad("the index of the task in TF_CONFIG should be a number, and is", index);
      absl::Status added = AddTask(job, task, address.string_value(), &spec);
      if (!added.ok()) return added;
    }
  }
  if (spec.jobs.empty())
    return absl::InvalidArgumentError(
        "TF_CONFIG names no workers (its 'cluster' is missing or empty)");
  auto& task = *fields["task"].mutable_struct_value()->mutable_fields();
  spec.job = task["type"].string_value();
  const auto& index = task["index"];
  spec.task = static_cast<int>(index.number_value());
  if (index.kind_case() == google::protobuf::Value::kStringValue &&
      !absl::SimpleAtoi(index.string_value(), &spec.task)) {
    return Bad("the index of the task in TF_CONFIG should be a number, and is",
               index.string_value());
  }
  return spec;
}

absl::StatusOr<ClusterSpec> ClusterOfRanks(const std::vector<std::string>& addresses, size_t rank,
                                           absl::string_view jobs_text) {
  const auto jobs = ParseJobs(jobs_text);
  if (!jobs.ok()) return jobs.status();
  ClusterSpec spec;
  size_t next = 0;
  for (const auto& [job, wanted] : *jobs) {
    const size_t count = wanted < 0 ? addresses.size() - next : static_cast<size_t>(wanted);
    if (count == 0 || next + count > addresses.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cluster_spec ", jobs_text, " names more tasks than the ", addresses.size(),
                       " that were started: start more, or name fewer"));
    }
    for (size_t task = 0; task < count; ++task, ++next) {
      if (next == rank) {
        spec.job = job;
        spec.task = static_cast<int>(task);
      }
      absl::Status added = AddTask(job, static_cast<int>(task), addresses[next], &spec);
      if (!added.ok()) return added;
    }
  }
  if (spec.job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cluster_spec ", jobs_text,
        " names fewer tasks than were started: name more, as none is left for rank ", rank));
  }
  return spec;
}

absl::StatusOr<ClusterSpec> ClusterFromSlurm(const Environment& environment,
                                             absl::string_view jobs_text, int base_port) {
  const auto nodelist =
      Variable(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!nodelist.ok()) return nodelist.status();
  const auto counts_text =
      Variable(environment, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!counts_text.ok()) return counts_text.status();
  const auto rank_text = Variable(environment, {"SLURM_PROCID"});
  if (!rank_text.ok()) return rank_text.status();
  const auto hosts = ExpandHostlist(*nodelist);
  if (!hosts.ok()) return hosts.status();
  const auto counts = ExpandCounts(*counts_text);
  if (!counts.ok()) return counts.status();
  if (hosts->size() != counts->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Slurm's variables contradict each other: they name ", hosts->size(),
                     " nodes, and numbers of tasks for ", counts->size()));
  }
  std::vector<std::string> addresses;
  for (size_t node = 0; node < hosts->size(); ++node) {
    for (int i = 0; i < (*counts)[node]; ++i) {
      addresses.push_back(absl::StrCat((*hosts)[node], ":", base_port + i));
    }
  }
  size_t rank = 0;
  if (!absl::SimpleAtoi(*rank_text, &rank) || rank >= addresses.size()) {
    return Bad("SLURM_PROCID should be the number of a task of this step, and is", *rank_text);
  }
  return ClusterOfRanks(addresses, rank, jobs_text);
}

absl::StatusOr<ClusterSpec> ClusterFromKubernetes(const Environment& environment,
                                                  absl::string_view jobs_text,
                                                  absl::string_view service, int port) {
  const auto jobs = ParseJobs(jobs_text);
  if (!jobs.ok()) return jobs.status();
  ClusterSpec spec;
  for (const auto& [job, count] : *jobs) {
    if (count < 0)
      return Bad(
          "with resolver=kubernetes each job in cluster_spec needs a number, and cluster_spec is",
          jobs_text);
    for (int task = 0; task < count; ++task) {
      absl::Status added = AddTask(
          job, task, absl::StrCat("dns:///", job, "-", task, ".", service, ":", port), &spec);
      if (!added.ok()) return added;
    }
  }
  const auto hostname = Variable(environment, {"HOSTNAME"});
  if (!hostname.ok()) return hostname.status();
  const size_t dash = hostname->rfind('-');
  if (dash == std::string::npos || !absl::SimpleAtoi(hostname->substr(dash + 1), &spec.task)) {
    return Bad("HOSTNAME should be the name of a pod of a stateful set, such as ps-0, and is",
               *hostname);
  }
  spec.job = hostname->substr(0, dash);
  return spec;
}

absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text) {
  std::vector<std::string> out;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i < text.size() && (text[i] != ',' || depth != 0)) continue;
    const absl::string_view item = text.substr(begin, i - begin);
    begin = i + 1;
    if (item.empty()) return Bad("a host's name is empty in the list of hosts", text);
    absl::Status expanded = ExpandItem(item, &out);
    if (!expanded.ok()) return expanded;
    if (out.size() > kMaxHosts) return Bad("more than 65536 hosts are in the list of hosts", text);
  }
  return out;
}

absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view text) {
  std::vector<int> out;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int times = 1;
    const size_t open = part.find("(x");
    if (open != absl::string_view::npos) {
      if (part.back() != ')' ||
          !absl::SimpleAtoi(part.substr(open + 2, part.size() - open - 3), &times)) {
        return Bad("Slurm's number of tasks per node should look like 2(x3),1, and is", text);
      }
      part = part.substr(0, open);
    }
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 0 || times < 1 ||
        out.size() + static_cast<size_t>(times) > kMaxHosts) {
      return Bad("Slurm's number of tasks per node should look like 2(x3),1, and is", text);
    }
    out.insert(out.end(), static_cast<size_t>(times), count);
  }
  return out;
}

}  // namespace tryst
