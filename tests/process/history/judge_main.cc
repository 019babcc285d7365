// judge FOLDER [PARTS]: judges the histories and traces in a folder (history_file.h). Exit code 1:
// a promise was broken. PARTS: judges the keys in so many parts, one after the other, to save
// memory.

#include <cstdio>
#include <cstdlib>

#include "tests/process/history/history_file.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "judge FOLDER [PARTS]\n");
    return 2;
  }
  const size_t parts = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
  const auto judged = tryst::JudgeFolder(argv[1], parts == 0 ? 1 : parts);
  if (!judged.ok()) {
    fprintf(stderr, "judge: %s\n", judged.status().ToString().c_str());
    return 1;
  }
  printf("history: %zu sends, %zu receives; traces of %zu operations, %zu with both ends: %s%s",
         judged->sent, judged->made, judged->traced, judged->traced_pairs,
         judged->breaches.empty() ? "every promise holds" : "BROKEN\n", judged->breaches.c_str());
  printf("\n");
  return judged->breaches.empty() ? 0 : 1;
}
