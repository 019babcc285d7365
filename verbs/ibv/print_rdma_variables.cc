// Prints the table of docs/OPERATIONS.md.
#include <cstdio>

#include "verbs/ibv/rdma_settings.h"

int main() {
  std::fputs(tryst::RdmaVariablesTable().c_str(), stdout);
  return 0;
}
