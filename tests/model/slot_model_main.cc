// ./run model [--slots N] [--fetches N] [--breaks N] [--restarts N] [--cancels N]: explores the
// slot protocol in every order, then once more without each of its rules.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/model/slot_model.h"

namespace tryst {
namespace {

int Main(int argc, char** argv) {
  SlotModelOptions options;
  options.slots = 2;
  options.fetches = 3;
  options.breaks = 2;
  options.cancels = 2;
  const bool show_edges = argc > 1 && std::string(argv[argc - 1]) == "--edges";
  const int words = show_edges ? argc - 1 : argc;
  for (int i = 1; i < words; i += 2) {
    const std::string word = argv[i];
    int* number = word == "--slots"       ? &options.slots
                  : word == "--fetches"   ? &options.fetches
                  : word == "--breaks"    ? &options.breaks
                  : word == "--restarts"  ? &options.restarts
                  : word == "--cancels"   ? &options.cancels
                  : word == "--digests"   ? &options.digests
                  : word == "--parks"     ? &options.parks
                  : word == "--failures"  ? &options.failures
                  : word == "--farewells" ? &options.farewells
                                          : nullptr;
    if (number == nullptr) {
      fprintf(stderr, "slot_model: no option %s\n", word.c_str());
      return 2;
    }
    if (i + 1 == words) {
      fprintf(stderr, "slot_model: %s is followed by no number\n", word.c_str());
      return 2;
    }
    *number = atoi(argv[i + 1]);
  }
  const SlotModelReport report = ExploreSlotModel(options);
  printf("%d slots, %d fetches, %d breaks, %d restarts, %d cancels: %" PRIu64 " states, %" PRIu64
         " transitions, %" PRIu64
         " ends, at most %u messages to the producer and %u to the "
         "consumer%s: %s\n",
         options.slots, options.fetches, options.breaks, options.restarts, options.cancels,
         report.states, report.transitions, report.ends, report.most_to_producer,
         report.most_to_consumer, report.complete ? "" : ", NOT ALL OF THEM",
         report.violation.empty() ? "every promise holds" : report.violation.c_str());
  if (show_edges) {
    for (const auto& [edge, times] : report.edges) {
      printf("%12" PRIu64 "  %s\n", times, edge.ToText().c_str());
    }
  }
  for (const std::string& step : report.trace) printf("  %s\n", step.c_str());
  return report.violation.empty() && report.complete ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
