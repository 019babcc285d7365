#include "tests/frameworks/nccl_net/flows.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace tryst::nccl_net {
namespace {

constexpr size_t kDepth = 8;  // Requests out at once, as NCCL's proxy has them.

enum Figure { kSeconds, kProcessorSeconds, kSleeps };
enum Phase { kFirstPair = 1, kReady = 1000, kEnded };

struct Usage {
  double processor_s = 0;
  double sleeps = 0;
};

Usage UsageNow() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime), static_cast<double>(usage.ru_nvcsw)};
}

void AddFigure(std::atomic<double>* figure, double more) {
  double before = figure->load();
  while (!figure->compare_exchange_weak(before, before + more)) {
  }
}

// One direction of one pair of comms.
class Flow {
 public:
  Flow(const CommPair* pair, Memory memory, bool sends, size_t bytes, size_t messages)
      : pair_(pair),
        memory_(std::move(memory)),
        sends_(sends),
        bytes_(bytes),
        messages_(messages),
        out_(kDepth) {}

  bool done() const { return ended_ == messages_; }

  // As NCCL's proxy: begins what may begin, and tests the oldest.
  absl::Status Step() {
    if (begun_ < messages_ && begun_ - ended_ < kDepth) {
      Operation& next = out_[begun_ % kDepth];
      next = Operation();
      NCCL_NET_TRY(sends_ ? TrySend(*pair_, memory_, bytes_, 1, &next)
                          : TryReceive(*pair_, memory_, bytes_, 1, &next));
      if (next.request != nullptr) ++begun_;
    }
    while (ended_ < begun_) {
      Operation& oldest = out_[ended_ % kDepth];
      NCCL_NET_TRY(TestOne(*pair_, &oldest));
      if (!oldest.done) break;
      ++ended_;
    }
    return absl::OkStatus();
  }

 private:
  const CommPair* pair_;
  Memory memory_;
  bool sends_;
  size_t bytes_;
  size_t messages_;
  std::vector<Operation> out_;
  size_t begun_ = 0;
  size_t ended_ = 0;
};

absl::Status RunRank(const std::string& file, const FlowOptions& options, SharedPage* page,
                     int rank) {
  absl::StatusOr<std::unique_ptr<Opened>> opened = OpenPlugin(file, /*version=*/0);
  if (!opened.ok()) return opened.status();
  std::vector<CommPair> pairs(options.comms);
  std::vector<Flow> flows;
  const size_t messages = std::max<size_t>(1, options.total / options.bytes / options.comms);
  for (size_t i = 0; i < options.comms; ++i) {
    PeerComms comms;
    NCCL_NET_TRY(ConnectRank(**opened, page, rank, 1 - rank, &comms));
    // The next pair uses the same place in the page.
    page->listeners[rank][1 - rank].ready.store(0);
    page->phase[rank].store(kFirstPair + static_cast<int>(i));
    NCCL_NET_TRY(AwaitPhase(*page, 1 - rank, kFirstPair + static_cast<int>(i)));
    pairs[i].net = (*opened)->net.get();
    pairs[i].listen = comms.listen;
    pairs[i].send = comms.send;
    pairs[i].recv = comms.recv;
    for (const bool sends : {true, false}) {
      if (!options.both && sends != (rank == 0)) continue;
      absl::StatusOr<Memory> memory =
          Memory::Make(pairs[i].net, sends ? comms.send : comms.recv, options.bytes);
      if (!memory.ok()) return memory.status();
      flows.emplace_back(&pairs[i], *std::move(memory), sends, options.bytes, messages);
    }
  }
  page->phase[rank].store(kReady);
  NCCL_NET_TRY(AwaitPhase(*page, 1 - rank, kReady));
  const Usage before = UsageNow();
  const int64_t began_us = NowUs();
  NCCL_NET_TRY(Until("the flows", [&]() -> absl::StatusOr<bool> {
    bool all = true;
    for (Flow& flow : flows) {
      NCCL_NET_TRY(flow.Step());
      all = all && flow.done();
    }
    return all;
  }));
  const Usage after = UsageNow();
  AddFigure(&page->figures[kProcessorSeconds], after.processor_s - before.processor_s);
  AddFigure(&page->figures[kSleeps], after.sleeps - before.sleeps);
  if (rank == 1) page->figures[kSeconds].store(static_cast<double>(NowUs() - began_us) * 1e-6);
  page->phase[rank].store(kEnded);
  return AwaitPhase(*page, 1 - rank, kEnded);
}

}  // namespace

int RunFlows(const std::string& file, const FlowOptions& options) {
  SharedPage* const page = NewSharedPage();
  const std::vector<pid_t> ranks =
      StartRanks(2, page, [&](int rank) { return RunRank(file, options, page, rank); });
  absl::Status result;
  for (int rank = 0; rank < 2; ++rank) {
    result.Update(Reap(ranks[static_cast<size_t>(rank)], *page, rank));
  }
  if (!result.ok()) {
    fprintf(stderr, "%s: %s\n", file.c_str(), std::string(result.message()).c_str());
    return 1;
  }
  const double ways = options.both ? 2 : 1;
  const double moved = static_cast<double>(options.total) * ways;
  printf(
      "{\"plugin\": \"%s\", \"bytes\": %zu, \"comms\": %zu, \"both\": %s, \"gbs_each_way\": %.2f, "
      "\"processor_s_a_gib\": %.3f, \"sleeps_a_message\": %.2f}\n",
      file.c_str(), options.bytes, options.comms, options.both ? "true" : "false",
      static_cast<double>(options.total) / page->figures[kSeconds].load() / 1e9,
      page->figures[kProcessorSeconds].load() / (moved / (1 << 30)),
      page->figures[kSleeps].load() / (moved / static_cast<double>(options.bytes)));
  fflush(stdout);
  return 0;
}

}  // namespace tryst::nccl_net
