#include "examples/parameter_server/options.h"

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "examples/parameter_server/corpus.h"

namespace tryst {
namespace {

struct Flag {
  const char* name;
  const char* help;
  std::function<bool(absl::string_view text, Options* options)> set;
  std::function<std::string(const Options& options)> get;
};

Flag Text(const char* name, const char* help, std::string Options::*field) {
  return {name, help,
          [field](absl::string_view text, Options* options) {
            options->*field = std::string(text);
            return true;
          },
          [field](const Options& options) { return options.*field; }};
}

Flag Count(const char* name, const char* help, int Options::*field) {
  return {name, help,
          [field](absl::string_view text, Options* options) {
            return absl::SimpleAtoi(text, &(options->*field)) && options->*field > 0 &&
                   options->*field <= 64;
          },
          [field](const Options& options) { return absl::StrCat(options.*field); }};
}

Flag Number(const char* name, const char* help, double Options::*field) {
  return {name, help,
          [field](absl::string_view text, Options* options) {
            return absl::SimpleAtod(text, &(options->*field)) && options->*field >= 0;
          },
          [field](const Options& options) { return absl::StrCat(options.*field); }};
}

Flag Switch(const char* name, const char* help, bool Options::*field) {
  return {name, help,
          [field](absl::string_view text, Options* options) {
            if (text.empty()) options->*field = true;
            return text.empty() || absl::SimpleAtob(text, &(options->*field));
          },
          [field](const Options& options) { return options.*field ? "true" : "false"; }};
}

std::vector<Flag> Flags() {
  return {
      Text("role",
           "of one task: ps, worker, or task for what the resolver says; else starts them all",
           &Options::role),
      Count("servers", "parameter servers", &Options::servers),
      Count("workers", "workers", &Options::workers),
      Switch("sync", "the workers' mean gradient, round by round; else each as it comes",
             &Options::synchronous),
      Number("seconds", "of training", &Options::seconds),
      Number("kill-worker", "when to kill and restart a worker; 0: never", &Options::kill_worker),
      Number("kill-ps", "when to kill and restart a parameter server; 0: never", &Options::kill_ps),
      Number("rate", "of learning", &Options::rate),
      Switch("mixed", "let the last worker speak gRPC alone", &Options::mixed),
      {"text", "files to learn from, by commas",
       [](absl::string_view text, Options* options) {
         options->texts = absl::StrSplit(text, ',', absl::SkipEmpty());
         return !options->texts.empty();
       },
       [](const Options& options) { return absl::StrJoin(options.texts, ","); }},
      Text("plot", "where the curve goes", &Options::plot),
      Text("folder", "where snapshots are kept; else they go with the run", &Options::folder),
      Switch("verbose", "every connection of every process, and why", &Options::verbose),
  };
}

}  // namespace

std::string OptionsHelp() {
  std::string help = "--NAME=VALUE, with these beside every server's settings:";
  for (const Flag& flag : Flags()) absl::StrAppend(&help, "\n  --", flag.name, "  ", flag.help);
  return help;
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args) {
  Options options;
  options.texts = DefaultTexts();
  const std::vector<Flag> flags = Flags();
  for (const std::string& arg : args) {
    const std::pair<std::string, std::string> halves = absl::StrSplit(arg, absl::MaxSplits('=', 1));
    bool taken = false;
    for (const Flag& flag : flags) {
      if (halves.first != absl::StrCat("--", flag.name)) continue;
      taken = true;
      if (!flag.set(halves.second, &options)) {
        return absl::InvalidArgumentError(absl::StrCat(arg, ": ", flag.help));
      }
    }
    if (!taken && !absl::StartsWith(arg, "--")) return absl::InvalidArgumentError(OptionsHelp());
    if (!taken) options.server_flags.push_back(arg);
  }
  return options;
}

std::vector<std::string> OptionFlags(const Options& options) {
  std::vector<std::string> args;
  for (const Flag& flag : Flags()) {
    args.push_back(absl::StrCat("--", flag.name, "=", flag.get(options)));
  }
  args.insert(args.end(), options.server_flags.begin(), options.server_flags.end());
  return args;
}

}  // namespace tryst
