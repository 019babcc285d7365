// A job of a thousand hosts on virtual time: `./run sim --hosts`. Prints its figures.
//
//   large_job [--workers N] [--servers N] [--variables N] [--steps N] [--seed N] [--message-ns N]
//             [--trouble none|kills|rack|rolling] [--small-variables] [--shipped-settings]

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "base/log.h"
#include "tests/sim/large_job.h"

namespace tryst {
namespace {

void Quiet(LogSeverity severity, const char*, int, absl::string_view text) {
  if (severity == LogSeverity::kFatal) {
    fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }
}

bool Parse(int argc, char** argv, LargeJobOptions* options) {
  using Trouble = LargeJobOptions::Trouble;
  const std::map<std::string, Trouble> troubles = {{"none", Trouble::kNone},
                                                   {"kills", Trouble::kKills},
                                                   {"rack", Trouble::kRack},
                                                   {"rolling", Trouble::kRolling}};
  const std::map<std::string, int*> numbers = {{"--workers", &options->workers},
                                               {"--servers", &options->servers},
                                               {"--variables", &options->variables},
                                               {"--steps", &options->steps}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--small-variables") {
      options->small_variables = true;
      continue;
    }
    if (flag == "--shipped-settings") {
      options->shipped_settings = true;
      continue;
    }
    ++i;
    if (const auto it = numbers.find(flag); it != numbers.end()) {
      if (!absl::SimpleAtoi(value, it->second) || *it->second < 1) return false;
    } else if (flag == "--seed") {
      if (!absl::SimpleAtoi(value, &options->seed)) return false;
    } else if (flag == "--message-ns") {
      if (!absl::SimpleAtoi(value, &options->message_ns)) return false;
    } else if (flag == "--trouble" && troubles.count(value) != 0) {
      options->trouble = troubles.at(value);
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  LargeJobOptions options;
  options.workers = 900;
  options.servers = 100;
  if (!Parse(argc, argv, &options)) {
    fprintf(stderr,
            "large_job [--workers N] [--servers N] [--variables N] [--steps N] [--seed N]\n"
            "          [--message-ns N] [--trouble none|kills|rack|rolling] [--small-variables]\n"
            "          [--shipped-settings]\n");
    return 2;
  }
  SetLogSink(&Quiet);
  const LargeJobReport report = RunLargeJob(options);
  printf("%d workers, %d servers, %d variables\n", options.workers, options.servers,
         options.variables);
  printf("all have joined and done a step after      %10.1f ms\n", report.join_ms);
  printf("a step of all workers, once under way      %10.2f ms; the slowest worker's %.2f\n",
         report.step_ms, report.slowest_step_ms);
  printf("no schedule beats                          %10.2f ms: %.2f times; the model says %.2f\n",
         report.bound_ms, report.step_ms / report.bound_ms, report.predicted_ms);
  printf("messages of a host in a step               %10.0f\n", report.messages_per_host_step);
  printf("resident memory of a host                  %10.0f KiB\n", report.host_kib);
  printf("tensors %" PRIu64 ", asked again %" PRIu64 ", connections %" PRIu64 ", restarts %" PRIu64
         "\n",
         report.tensors, report.asked_again, report.connections, report.restarts);
  if (report.trouble_ms > 0)
    printf("from the trouble to the end                %10.1f ms\n", report.trouble_ms);
  printf("%" PRIu64 " events in %.1f s\n", report.events, report.seconds);
  for (const std::string& violation : report.violations) printf("BROKEN: %s\n", violation.c_str());
  return report.violations.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
