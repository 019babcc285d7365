#include "server/cli/command_line.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tryst {
namespace {

constexpr size_t kAnyWords = 1024;

// A flag of the program itself, beside the server's settings.
struct OwnFlag {
  const char* name;
  const char* value;  // What it takes; empty: it is a switch.
  const char* help;
};
constexpr OwnFlag kOwnFlags[] = {
    {"step", "N",
     "waiting, trace: show only this step; send, recv, begin, cleanup, abort: the step to use "
     "(1)"},
    {"timeout", "TIME", "how long to wait for a worker's answer (5s; send, recv, bench: 30s)"},
    {"to", "WORKER", "send, serve: the worker that will receive"},
    {"from", "WORKER", "recv: the worker that sends, with its @host:port"},
    {"out", "FILE", "trace: writes a Chrome trace to FILE; page: records to FILE what it shows"},
    {"every", "TIME", "top, page: how often to ask the workers (1s)"},
    {"count", "N", "top: ends after N tables"},
    {"json", "", "prints one JSON document (top: one line for each table) on standard output"},
    {"help", "", "prints the help of the command, or of the program"},
};

struct ExitRow {
  int code;
  const char* meaning;
};
constexpr ExitRow kExitRows[] = {
    {kExitDone, "the command did what it was asked to"},
    {kExitFailed,
     "it failed: a worker did not answer, a file could not be read, `doctor` found a fault, "
     "`verify` found a broken rule. Standard error says why"},
    {kExitUsage, "the command line or a setting is wrong; nothing was tried"},
    {kExitNothingFound, "`trace` or `verify` found no such operation"},
};

constexpr char kWorkerShape[] = "/job:J/replica:0/task:T@host:port";

bool IsAddress(absl::string_view text) {
  if (absl::StartsWith(text, "unix:") || absl::StartsWith(text, "dns:")) return true;
  const size_t colon = text.rfind(':');
  int port = 0;
  return colon != absl::string_view::npos && colon > 0 &&
         absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 && port < 65536;
}

// Splits "worker@host:port": `text` keeps the worker, and config.join gets the address. `what`
// names the flag or word that must hold a worker, for the error; empty: any text is allowed.
absl::Status TakeWorker(absl::string_view what, std::string* text, ServerConfig* config) {
  const size_t at = text->find('@');
  const std::string worker = text->substr(0, at);
  if (!IsWorkerName(worker)) {
    if (what.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        what, " '", *text, "' is not a worker's name, which looks like ", kWorkerShape));
  }
  if (at == std::string::npos) return absl::OkStatus();
  if (!IsAddress(text->substr(at + 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text->substr(at + 1), "' of '", *text, "' is not host:port"));
  }
  if (!config->join.empty()) config->join += ",";
  config->join += *text;
  *text = worker;
  return absl::OkStatus();
}

absl::Status TakeWords(CommandLine* line) {
  for (std::string& word : line->words) {
    const Words words = line->row->words;
    const bool first = &word == &line->words[0];
    const bool is_worker = words == Words::kWorkers || (words == Words::kWorkerFirst && first);
    absl::Status taken = TakeWorker(is_worker ? "the word" : "", &word, &line->config);
    if (!taken.ok()) return taken;
    const size_t equals = word.find('=');
    if (words == Words::kEdgeFiles &&
        (equals == 0 || equals == std::string::npos || equals + 1 == word.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", word,
                       "' should be EDGE=FILE.npy, where EDGE is the name by which tryst recv asks "
                       "for the tensor, ",
                       "such as weights=", word));
    }
  }
  return absl::OkStatus();
}

// Checks what a command needs that starts a worker itself.
absl::Status CheckEnds(const CommandLine& line) {
  const absl::string_view name = line.row->name;
  const bool sends = name == "send" || name == "serve";
  if (!sends && name != "recv" && name != "bench") return absl::OkStatus();
  const std::string& other = sends ? line.to : name == "recv" ? line.from : line.words[0];
  if (other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " needs ",
                     sends ? "--to=/job:J/replica:0/task:T, the worker that will receive"
                           : "--from=/job:J/replica:0/task:T@host:port"));
  }
  if (line.config.job.empty() && line.config.resolver == "flags") {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " starts a worker: name it with --job=NAME, and --task=N if not 0"));
  }
  return absl::OkStatus();
}

bool TakeSwitch(const std::string& flag, std::vector<std::string>* args) {
  const auto at = std::find(args->begin(), args->end(), flag);
  if (at == args->end()) return false;
  args->erase(at);
  return true;
}

// Joins "--step 17" to "--step=17" for our own flags that take a value.
void JoinValues(std::vector<std::string>* args) {
  for (const OwnFlag& flag : kOwnFlags) {
    if (*flag.value == '\0') continue;
    const auto at = std::find(args->begin(), args->end(), absl::StrCat("--", flag.name));
    if (at == args->end() || at + 1 == args->end()) continue;
    absl::StrAppend(&*at, "=", *(at + 1));
    args->erase(at + 1);
  }
}

absl::Status TakeOwn(std::map<std::string, std::string>* own, CommandLine* line) {
  if (!(*own)["step"].empty()) {
    int64_t step = 0;
    if (!absl::SimpleAtoi((*own)["step"], &step)) {
      return absl::InvalidArgumentError("--step should be a number");
    }
    line->step = step;
  }
  if (!(*own)["timeout"].empty() && (!absl::ParseDuration((*own)["timeout"], &line->timeout) ||
                                     line->timeout <= absl::ZeroDuration())) {
    return absl::InvalidArgumentError("--timeout should be a time above 0, such as 30s");
  }
  if (!absl::ParseDuration((*own)["every"], &line->every) || line->every < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError("--every should be a time of at least 10ms, such as 1s");
  }
  if (!absl::SimpleAtoi((*own)["count"], &line->count) || line->count < 0) {
    return absl::InvalidArgumentError("--count should be a number from 0 on");
  }
  line->out = (*own)["out"];
  line->to = (*own)["to"];
  line->from = (*own)["from"];
  for (std::string* end : {&line->to, &line->from}) {
    if (end->empty()) continue;
    absl::Status taken = TakeWorker(end == &line->to ? "--to" : "--from", end, &line->config);
    if (!taken.ok()) return taken;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsWorkerName(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "/job:")) return false;
  const size_t end = rest.find("/replica:0/task:");
  int task = 0;
  return end != 0 && end != absl::string_view::npos &&
         absl::SimpleAtoi(rest.substr(end + 16), &task) && task >= 0 && rest.find('/') == end &&
         rest.find_first_of("@;= ") == absl::string_view::npos;
}

const std::vector<CommandRow>& CommandRows() {
  static const std::vector<CommandRow>& rows = *new std::vector<CommandRow>{
      {"ping", "WORKER",
       "asks whether WORKER answers; shows its incarnation (new with each start) and the members "
       "that "
       "it knows",
       "", 1, 1, Words::kWorkerFirst},
      {"explain", "WORKER [PEER]",
       "shows by which path WORKER reaches each peer, which paths it does not use, and why",
       "Shows for each path to and from PEER, or all peers, what it is doing, why it is not used,\n"
       "and what was measured. It also shows which workers joined, restarted and left, and when.\n",
       1, 2, Words::kWorkerFirst},
      {"waiting", "[WORKER ...]",
       "shows every tensor and operation that waits, for what, and since when",
       "Shows each tensor that was sent and not received, each receive without its tensor, and\n"
       "each fetch and serve under way with what it waits for: a connection, a slot, the\n"
       "producer's Send, landing room, a copy, an executor. Without WORKER: every worker that\n"
       "--join or --cluster_spec names. --step=N: only those of that step. A worker lists the\n"
       "1,000 oldest tensors and receives and the 1,000 oldest operations, and counts the rest.\n",
       0, kAnyWords, Words::kWorkers},
      {"trace", "[WORKER ...] [TEXT]",
       "shows the history of past operations whose key contains TEXT",
       "Asks each WORKER, and the workers that they know, for their recorded operations, and\n"
       "joins what both ends recorded of each, on one clock. --step=N: only those of that step.\n"
       "--json, or --out=FILE: as a Chrome trace, for https://ui.perfetto.dev.\n"
       "Exit status 3: no such operation is recorded. Quick ones are sampled "
       "(trace_sample_every).\n",
       0, kAnyWords, Words::kWorkersAndText},
      {"verify", "TRACE ...",
       "checks that the traced operations of both ends keep the rules of docs/STATES.md",
       "TRACE is a file of `tryst trace --out`. The command checks what each operation waited\n"
       "for and how it ended against the tables of states. It also compares what the consumer\n"
       "and the producer of a tensor say: its bytes, its order, that it came once and was\n"
       "accepted only after it had come. It says which rule was broken, and when.\n"
       "Exit status 1: a rule was broken; 3: there was nothing to verify. What a clean answer\n"
       "proves is in docs/STATES.md.\n",
       1, kAnyWords, Words::kOther},
      {"top", "[WORKER ...]",
       "shows, live, the rates, operations under way and delays of each path of WORKER, or of all "
       "workers",
       "On a terminal the table is redrawn every second (--every), until Ctrl-C; otherwise\n"
       "tables follow each other, or with --json lines. --count=N: ends after N tables. The\n"
       "first has no rates yet.\n",
       0, kAnyWords, Words::kWorkers},
      {"weights", "[WORKER ...]",
       "shows the sets of weights that workers have open: who holds and serves which version, and "
       "what an activation waits for",
       "Asks each WORKER, or those that --join or --cluster_spec names, and the workers that they\n"
       "know. --json prints what each says. Exit status 3: no worker has a set open.\n",
       0, kAnyWords, Words::kWorkers},
      {"page", "[WORKER ... | FILE]",
       "serves a web page about the whole job, at the address --status_listen",
       "The page shows who moves what to whom by which path, steps, slow workers and members, for\n"
       "all workers that WORKER or --join knows. --every=TIME: how often to ask each worker (1s).\n"
       "--out=FILE records what the page shows, and `tryst page FILE` plays the record back. The\n"
       "command ends with Ctrl-C, or with status 1 once it cannot write FILE.\n",
       0, kAnyWords, Words::kWorkersAndText},
      {"stats", "WORKER", "prints all counters of WORKER", "", 1, 1, Words::kWorkerFirst},
      {"begin", "WORKER", "begins the step --step on WORKER", "", 1, 1, Words::kWorkerFirst},
      {"cleanup", "WORKER", "ends the step --step on WORKER and frees its tensors", "", 1, 1,
       Words::kWorkerFirst},
      {"abort", "WORKER REASON",
       "aborts the step --step on WORKER; what waits there fails with REASON", "", 2, 2,
       Words::kWorkerFirst},
      {"doctor", "[WORKER]",
       "checks this machine, and with WORKER also the way to it, and says what to do about faults",
       "Exit status 1: there is a fault.\n", 0, 1, Words::kWorkerFirst},
      {"bench", "WORKER", "measures how fast tensors come from WORKER, and by which path",
       "Joins as the worker --job/--task. WORKER sends samples: one at a time to measure the\n"
       "delay, then up to eight at once to measure the rate. Every byte is compared. --json\n"
       "prints one document. If processors at either end are busy, the figures show that, not\n"
       "the network.\n",
       1, 1, Words::kWorkerFirst},
      {"send", "EDGE FILE.npy",
       "as worker --job/--task, sends a file's tensor to --to, and ends once it is received", "", 2,
       2, Words::kOther},
      {"recv", "EDGE FILE.npy",
       "as worker --job/--task, receives a tensor from --from and writes it to a file", "", 2, 2,
       Words::kOther},
      {"serve", "EDGE=FILE.npy ...",
       "as worker --job/--task, sends files' tensors to --to until it is stopped", "", 1, kAnyWords,
       Words::kEdgeFiles},
      {"completion", "bash|zsh",
       "prints a script by which the shell completes tryst's command lines",
       "bash: source <(tryst completion bash)\nzsh:  source <(tryst completion zsh)\n", 1, 1,
       Words::kOther},
  };
  return rows;
}

absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> args) {
  CommandLine line;
  line.help = TakeSwitch("--help", &args);
  line.json = TakeSwitch("--json", &args);
  JoinValues(&args);
  std::map<std::string, std::string> own = {{"step", ""},  {"timeout", ""}, {"to", ""},
                                            {"from", ""},  {"out", ""},     {"every", "1s"},
                                            {"count", "0"}};
  absl::StatusOr<ServerConfig> config = LoadConfig(args, ProcessEnvironment(), &line.words, &own);
  if (!config.ok()) return config.status();
  line.config = *std::move(config);
  absl::Status taken = TakeOwn(&own, &line);
  if (!taken.ok()) return taken;
  if (line.words.empty()) {
    if (line.help) return line;
    return absl::InvalidArgumentError("no command was given: see tryst --help");
  }
  for (const CommandRow& row : CommandRows()) {
    if (line.words[0] == row.name) line.row = &row;
  }
  if (line.row == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no command '", line.words[0], "'; there are: ",
        absl::StrJoin(CommandRows(), ", ", [](std::string* out, const CommandRow& row) {
          absl::StrAppend(out, row.name);
        })));
  }
  line.words.erase(line.words.begin());
  if (!line.help &&
      (line.words.size() < line.row->least_words || line.words.size() > line.row->most_words)) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: tryst ", line.row->name, " ", line.row->arguments));
  }
  if (line.help) return line;
  if (line.timeout == absl::ZeroDuration()) {
    const bool moves = line.row->words == Words::kOther || line.row->words == Words::kEdgeFiles ||
                       line.row->name == absl::string_view("bench");
    line.timeout = moves ? absl::Seconds(30) : absl::Seconds(5);
  }
  line.config.patience = std::min(line.config.patience, line.timeout);
  for (absl::Status status : {TakeWords(&line), CheckEnds(line)}) {
    if (!status.ok()) return status;
  }
  return line;
}

std::string ProgramHelp() {
  std::string out =
      "tryst COMMAND ... [--SETTING=VALUE ...]   (trystd --help lists the settings)\n\n";
  for (const CommandRow& row : CommandRows()) {
    const std::string usage = absl::StrCat(row.name, " ", row.arguments);
    absl::StrAppend(&out, "  ", usage, std::string(usage.size() < 28 ? 28 - usage.size() : 1, ' '),
                    row.summary, "\n");
  }
  absl::StrAppend(
      &out,
      "\n  WORKER is /job:J/replica:0/task:T@host:port, or a name that --cluster_spec or "
      "--join knows.\n\n");
  for (const OwnFlag& flag : kOwnFlags) {
    const std::string usage =
        absl::StrCat("--", flag.name, *flag.value == '\0' ? "" : "=", flag.value);
    absl::StrAppend(&out, "  ", usage, std::string(20 - usage.size(), ' '), flag.help, "\n");
  }
  out += "\nExit status:\n";
  for (const ExitRow& row : kExitRows)
    absl::StrAppend(&out, "  ", row.code, "  ", row.meaning, "\n");
  return out;
}

std::string CommandHelp(const CommandRow& row) {
  return absl::StrCat("tryst ", row.name, " ", row.arguments, "\n\n", row.summary, "\n", row.help,
                      "\ntryst --help lists the flags, trystd --help the settings.\n");
}

absl::StatusOr<std::string> CompletionScript(absl::string_view shell) {
  const std::string names = absl::StrJoin(
      CommandRows(), " ", [](std::string* out, const CommandRow& row) { *out += row.name; });
  std::string flags;
  for (const OwnFlag& flag : kOwnFlags) {
    absl::StrAppend(&flags, "--", flag.name, *flag.value == '\0' ? " " : "= ");
  }
  for (const ConfigRow& row : ConfigRows()) absl::StrAppend(&flags, "--", row.name, "= ");
  const std::string body = absl::StrCat(
      "_tryst() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]}\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W '",
      flags,
      "' -- \"$word\"))\n"
      "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null\n"
      "  elif ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '",
      names,
      "' -- \"$word\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "  fi\n"
      "  return 0\n"
      "}\n"
      "complete -F _tryst tryst\n");
  if (shell == "bash") return body;
  if (shell == "zsh") return absl::StrCat("autoload -U +X bashcompinit && bashcompinit\n", body);
  return absl::InvalidArgumentError(absl::StrCat("completion is for bash and zsh, not ", shell));
}

std::string CommandTable() {
  std::string out = "| command | |\n| --- | --- |\n";
  for (const CommandRow& row : CommandRows()) {
    std::string usage = absl::StrCat(row.name, " ", row.arguments);
    for (size_t at = 0; (at = usage.find('|', at)) != std::string::npos; at += 2) {
      usage.insert(at, "\\");
    }
    absl::StrAppend(&out, "| `", usage, "` | ", row.summary, " |\n");
  }
  absl::StrAppend(&out, "\n| flag | |\n| --- | --- |\n");
  for (const OwnFlag& flag : kOwnFlags) {
    absl::StrAppend(&out, "| `--", flag.name, *flag.value == '\0' ? "" : "=", flag.value, "` | ",
                    flag.help, " |\n");
  }
  out += "\n| exit status | |\n| --- | --- |\n";
  for (const ExitRow& row : kExitRows) {
    absl::StrAppend(&out, "| ", row.code, " | ", row.meaning, " |\n");
  }
  return out;
}

}  // namespace tryst
