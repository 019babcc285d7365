// fence [soft | DEVICE PEER_DEVICE] CANCELS [SEED]: storms of fenced cancels over a real NIC, with
// one queue pair and two, with and without digests.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "tests/process/faults/fence_storm.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

std::unique_ptr<Nic> Open(const std::string& name) {
  if (name == "soft") {
    auto nic = OpenSoftNic(SoftNicOptions());
    TRYST_CHECK(nic.ok()) << nic.status();
    return *std::move(nic);
  }
  IbvNicOptions options;
  options.choice.settings.device = name;
  auto nic = OpenIbvNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

int Main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const int names = first == "soft" ? 1 : 2;
  if (argc < 2 + names) {
    fprintf(stderr, "fence [soft | DEVICE PEER_DEVICE] CANCELS [SEED]\n");
    return 2;
  }
  const std::string second = argv[names];
  const uint64_t cancels = strtoull(argv[1 + names], nullptr, 10);
  const uint64_t seed = argc > 2 + names ? strtoull(argv[2 + names], nullptr, 10) : 1;
  bool clean = true;
  for (int kind = 0; kind < 4; ++kind) {
    FenceStormOptions options;
    int opened = 0;
    options.open_nic = [&] { return Open(opened++ == 0 ? first : second); };
    options.cancels = cancels / 4;
    options.queue_pairs = kind % 2 == 0 ? 1 : 2;
    options.digests = kind >= 2;
    options.bytes_per_second = first == "soft" ? 2'000'000'000 : 100'000'000;
    options.seed = seed + static_cast<uint64_t>(kind);
    const FenceStormReport report = RunFenceStorm(options);
    printf("%u queue pairs, digests %s: %" PRIu64 " cancels, %" PRIu64
           " of them with bytes landed (%" PRIu64 " cancelled, %" PRIu64 " delivered, %" PRIu64
           " transfers, %" PRIu64 " MB), %" PRIu64 " buffers used again; %" PRIu64
           " late words, %" PRIu64 " wrong, %" PRIu64 " connections lost %s\n",
           options.queue_pairs, options.digests ? "on" : "off", report.cancels, report.in_flight,
           report.cancelled, report.delivered, report.transfers, report.bytes / 1'000'000,
           report.reused, report.late_words, report.wrong, report.breaks,
           report.first_wrong.c_str());
    fflush(stdout);
    // On an emulated machine connections also break for other reasons; on the loopback they do not.
    clean = clean && report.late_words == 0 && report.wrong == 0 &&
            (report.breaks == 0 || first != "soft");
  }
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
