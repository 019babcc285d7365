// For a machine with an RDMA NIC and a GPU: tells whether, how and how fast they reach each other
// (docs/GPU_NOTES.md). Exit status: 0: all pairs are direct; 1: some are staged; 3: there is
// nothing to check here.
//
//   gdr_check [--farthest=switches|bridge|node|system] [--flush=on|off] [--no-dma-buf]
//             [--no-peer-memory] [--rounds=N]

#include "channel/device/gdr_check.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace tryst {
namespace {

bool Parse(int argc, char** argv, GdrCheckOptions* options) {
  static const std::map<std::string, PciDistance> kDistances = {
      {"switches", PciDistance::kSwitches},
      {"bridge", PciDistance::kHostBridge},
      {"node", PciDistance::kNode},
      {"system", PciDistance::kSystem}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    bool ok = true;
    if (argument == "--no-dma-buf") {
      options->direct.dma_buf = false;
    } else if (argument == "--no-peer-memory") {
      options->direct.peer_memory = false;
    } else if (absl::StartsWith(argument, "--flush=")) {
      ok = value == "on" || value == "off";
      options->direct.flush = value == "on";
    } else if (absl::StartsWith(argument, "--farthest=")) {
      const auto found = kDistances.find(value);
      ok = found != kDistances.end();
      if (ok) options->direct.farthest = found->second;
    } else if (absl::StartsWith(argument, "--rounds=")) {
      ok = absl::SimpleAtoi(value, &options->direct.rounds) && options->direct.rounds > 0;
    } else {
      ok = false;
    }
    if (!ok) {
      fprintf(stderr, "%s? See the head of tests/hardware/gdr_check.cc\n", argv[i]);
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  GdrCheckOptions options;
  options.direct.rounds = 1000;
  if (!Parse(argc, argv, &options)) return 2;
  const auto findings = CheckGdr(options);
  if (!findings.ok()) {
    printf("GPUDirect RDMA cannot be checked here: %s\n",
           std::string(findings.status().message()).c_str());
    return 3;
  }
  bool all = true;
  for (const GdrFinding& finding : *findings) {
    printf("%s\n", finding.ToText().c_str());
    all &= finding.reach.way != DirectWay::kStaging;
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
