// nccl_net_bench [--round-trips] PLUGIN.so...: two processes, one connection, host memory. Prints
// half a round trip of 8 bytes, bytes a second, and processor seconds a GiB: one JSON line for each
// plugin. --round-trips: only those, so that system calls can be counted. --flow=BYTES [--comms=N]
// [--both] [--total=BYTES]: messages over N connections at once instead.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/frameworks/nccl_net/comm_pair.h"
#include "tests/frameworks/nccl_net/flows.h"
#include "tests/frameworks/nccl_net/world.h"

namespace tryst::nccl_net {
namespace {

constexpr int kRoundTrips = 4000;
// The receive size that NCCL posts for its smallest messages, and the exact size.
constexpr size_t kPosted[] = {64 << 10, 8};
constexpr int kDepth = 8;  // Requests out at once, as NCCL's proxy has them.

double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

absl::Status SendAndWait(const CommPair& pair, const Memory& from, size_t bytes) {
  Operation send;
  return Until("a send", [&]() -> absl::StatusOr<bool> {
    if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, from, bytes, 1, &send));
    NCCL_NET_TRY(TestOne(pair, &send));
    return send.done;
  });
}

// Both ends as in a ring: each posts a receive and waits for the other's message.
absl::Status PingPong(const CommPair& pair, int rank, size_t posted, Memory* from, Memory* into) {
  for (int i = 0; i < kRoundTrips; ++i) {
    Operation receive;
    NCCL_NET_TRY(Until("a receive", [&]() -> absl::StatusOr<bool> {
      NCCL_NET_TRY(TryReceive(pair, *into, posted, 1, &receive));
      return receive.request != nullptr;
    }));
    if (rank == 0) NCCL_NET_TRY(SendAndWait(pair, *from, 8));
    NCCL_NET_TRY(Finish(pair, {&receive}));
    if (rank == 1) NCCL_NET_TRY(SendAndWait(pair, *from, 8));
  }
  return absl::OkStatus();
}

// Moves `total` bytes in messages of `bytes`, kDepth of them at a time.
absl::Status Stream(const CommPair& pair, int rank, Memory* memory, size_t bytes, size_t total) {
  const size_t messages = std::max<size_t>(1, total / bytes);
  std::vector<Operation> out(kDepth);
  size_t begun = 0;
  size_t ended = 0;
  return Until("a stream", [&]() -> absl::StatusOr<bool> {
    Operation& next = out[begun % kDepth];
    if (begun < messages && begun - ended < kDepth) {
      next = Operation();
      NCCL_NET_TRY(rank == 0 ? TrySend(pair, *memory, bytes, 1, &next)
                             : TryReceive(pair, *memory, bytes, 1, &next));
      if (next.request != nullptr) ++begun;
    }
    while (ended < begun) {
      Operation& oldest = out[ended % kDepth];
      NCCL_NET_TRY(TestOne(pair, &oldest));
      if (!oldest.done) break;
      ++ended;
    }
    return ended == messages;
  });
}

struct StreamSize {
  size_t bytes;
  size_t total;
};
constexpr StreamSize kStreams[] = {{128 << 10, size_t{1} << 30},
                                   {size_t{1} << 20, size_t{1} << 30},
                                   {size_t{256} << 20, size_t{2} << 30}};

absl::Status RunRank(const std::string& file, bool round_trips_only, SharedPage* page, int rank) {
  absl::StatusOr<std::unique_ptr<Opened>> opened = OpenPlugin(file, /*version=*/0);
  if (!opened.ok()) return opened.status();
  PeerComms comms;
  NCCL_NET_TRY(ConnectRank(**opened, page, rank, 1 - rank, &comms));
  CommPair pair;
  pair.net = (*opened)->net.get();
  pair.listen = comms.listen;
  pair.send = comms.send;
  pair.recv = comms.recv;
  absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, kStreams[2].bytes);
  absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, kStreams[2].bytes);
  if (!from.ok()) return from.status();
  if (!into.ok()) return into.status();
  int figure = 0;
  for (const size_t posted : kPosted) {
    if (!round_trips_only) NCCL_NET_TRY(PingPong(pair, rank, posted, &*from, &*into));
    const int64_t begin_us = NowUs();
    NCCL_NET_TRY(PingPong(pair, rank, posted, &*from, &*into));
    if (rank == 0) {
      page->figures[figure].store(static_cast<double>(NowUs() - begin_us) / (2.0 * kRoundTrips));
    }
    ++figure;
  }
  int phase = 10;
  for (const StreamSize& size : kStreams) {
    if (round_trips_only) break;
    page->phase[rank].store(phase);
    NCCL_NET_TRY(AwaitPhase(*page, 1 - rank, phase++));
    const double processor_s = ProcessorSeconds();
    const int64_t stream_us = NowUs();
    NCCL_NET_TRY(Stream(pair, rank, rank == 0 ? &*from : &*into, size.bytes, size.total));
    const double took_us = static_cast<double>(NowUs() - stream_us);
    if (rank == 1) page->figures[figure].store(static_cast<double>(size.total) / took_us / 1e3);
    const double used = ProcessorSeconds() - processor_s;
    double before = page->figures[figure + 1].load();
    while (!page->figures[figure + 1].compare_exchange_weak(before, before + used)) {
    }
    figure += 2;
  }
  page->phase[rank].store(phase);
  return AwaitPhase(*page, 1 - rank, phase);
}

int Bench(const std::string& file, bool round_trips_only) {
  SharedPage* const page = NewSharedPage();
  const std::vector<pid_t> ranks =
      StartRanks(2, page, [&](int rank) { return RunRank(file, round_trips_only, page, rank); });
  absl::Status result;
  for (int rank = 0; rank < 2; ++rank) {
    result.Update(Reap(ranks[static_cast<size_t>(rank)], *page, rank));
  }
  if (!result.ok()) {
    fprintf(stderr, "%s: %s\n", file.c_str(), std::string(result.message()).c_str());
    return 1;
  }
  printf("{\"plugin\": \"%s\"", file.c_str());
  int figure = 0;
  for (const size_t posted : kPosted) {
    printf(", \"half_round_trip_us_posted_%zu\": %.2f", posted, page->figures[figure++].load());
  }
  for (const StreamSize& size : kStreams) {
    if (round_trips_only) break;
    printf(", \"gbs_%zu\": %.2f, \"processor_s_a_gib_%zu\": %.2f", size.bytes,
           page->figures[figure].load(), size.bytes,
           page->figures[figure + 1].load() / (static_cast<double>(size.total) / (1 << 30)));
    figure += 2;
  }
  printf("}\n");
  fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace tryst::nccl_net

int main(int argc, char** argv) {
  int code = argc > 1 ? 0 : 2;
  bool round_trips_only = false;
  bool flow = false;
  tryst::nccl_net::FlowOptions options;
  for (int i = 1; i < argc && code == 0; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--round-trips") {
      round_trips_only = true;
    } else if (argument == "--both") {
      options.both = true;
    } else if (absl::ConsumePrefix(&argument, "--flow=")) {
      flow = absl::SimpleAtoi(argument, &options.bytes) && options.bytes > 0;
    } else if (absl::ConsumePrefix(&argument, "--comms=")) {
      code = absl::SimpleAtoi(argument, &options.comms) && options.comms > 0 ? 0 : 2;
    } else if (absl::ConsumePrefix(&argument, "--total=")) {
      code = absl::SimpleAtoi(argument, &options.total) ? 0 : 2;
    } else {
      code = flow ? tryst::nccl_net::RunFlows(argv[i], options)
                  : tryst::nccl_net::Bench(argv[i], round_trips_only);
    }
  }
  return code;
}
