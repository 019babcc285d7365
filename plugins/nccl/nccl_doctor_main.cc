// ./run doctor --nccl: tells whether NCCL would load the plugin if it started in this environment.
#include <cstdio>
#include <string>

#include "plugins/nccl/load_check.h"
#include "plugins/nccl/settings.h"

int main(int argc, char** argv) {
  const std::string library = argc > 1 ? argv[1] : "libnccl.so.2";
  bool good = true;
  for (const tryst::nccl::LoadFinding& finding :
       tryst::nccl::CheckLoading(tryst::nccl::Environment(), library)) {
    printf("%s %s\n", finding.good ? "  ok  " : "  NO  ", finding.what.c_str());
    if (!finding.advice.empty()) printf("       to do: %s\n", finding.advice.c_str());
    good = good && finding.good;
  }
  printf("%s\n", good ? "NCCL would load it." : "NCCL would not use it.");
  return good ? 0 : 1;
}
