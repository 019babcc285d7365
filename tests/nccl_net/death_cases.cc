// Ranks that die: every other rank must get an error soon, and no other comm may suffer.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/nccl_net/cases.h"
#include "tests/nccl_net/comm_pair.h"
#include "tests/nccl_net/world.h"

namespace tryst::nccl_net {
namespace {

constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr int64_t kNoticeUs = 1'000'000;
constexpr int64_t kGiveUpUs = 10'000'000;
// On a loaded machine a process may have to wait for a processor.
constexpr int64_t kGraceUs = 2'000'000;

enum Phase { kConnected = 1, kWaiting = 2, kNoticed = 3, kEnded = 4 };

struct RankOf {
  const Target* target;
  SharedPage* page;
  pid_t* victim;  // In memory shared by the ranks.
  // The waiting operation is a send without a receive; otherwise a receive without a send.
  bool sends;
};

bool Names(pid_t victim) {
  for (const std::string& line : NetPlugin::Warnings()) {
    if (line.find(absl::StrCat("process ", victim, " ")) != std::string::npos) return true;
  }
  return false;
}

// Moves one message each way, as a ring would.
absl::Status StillCarries(const Opened& opened, const PeerComms& comms) {
  CommPair pair;
  pair.net = opened.net.get();
  pair.send = comms.send;
  pair.recv = comms.recv;
  absl::Status result;
  {
    absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, 50'000);
    absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, 50'000);
    if (!from.ok() || !into.ok()) return absl::InternalError("regMr");
    from->Fill(77);
    Operation send;
    Operation receive;
    result = Until("a transfer beside the dead rank", [&]() -> absl::StatusOr<bool> {
      if (receive.request == nullptr) NCCL_NET_TRY(TryReceive(pair, *into, 50'000, 5, &receive));
      if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, *from, 50'000, 5, &send));
      NCCL_NET_TRY(TestOne(pair, &send));
      NCCL_NET_TRY(TestOne(pair, &receive));
      return send.done && receive.done;
    });
    if (result.ok()) result = into->Check(77, 50'000);
  }
  pair.send = pair.recv = nullptr;  // They belong to the caller.
  return result;
}

absl::Status WaitForError(const Opened& opened, const PeerComms& comms, const RankOf& how, int rank,
                          const Memory& memory) {
  CommPair pair;
  pair.net = opened.net.get();
  pair.send = comms.send;
  pair.recv = comms.recv;
  Operation operation;
  absl::Status error;
  const int64_t end_us = NowUs() + kGiveUpUs;
  while (error.ok() && NowUs() < end_us) {
    // A send may end when its bytes are in a socket; then another follows.
    if (operation.done) operation = Operation();
    if (operation.request == nullptr) {
      error = how.sends ? TrySend(pair, memory, memory.bytes(), 9, &operation)
                        : TryReceive(pair, memory, memory.bytes(), 9, &operation);
    }
    if (error.ok()) error = TestOne(pair, &operation);
    if (how.page->phase[rank].load() < kWaiting) how.page->phase[rank].store(kWaiting);
    usleep(50);
  }
  pair.send = pair.recv = nullptr;
  if (error.ok()) {
    return absl::DeadlineExceededError("a killed rank is not noticed in ten seconds");
  }
  how.page->noticed_at_us[rank].store(NowUs());
  how.page->named[rank].store(Names(*how.victim) ? 1 : 0);
  how.page->phase[rank].store(kNoticed);
  return absl::OkStatus();
}

absl::Status RunRank(const RankOf& how, int rank) {
  if (rank == kVictim) *how.victim = getpid();
  absl::StatusOr<std::unique_ptr<Opened>> opened =
      OpenPlugin(how.target->file, how.target->version);
  if (!opened.ok()) return opened.status();
  PeerComms comms[kRanks];
  for (int peer = 0; peer < kRanks; ++peer) {
    // Connects in pairs, in an order without cyclic waiting.
    if (peer != rank) NCCL_NET_TRY(ConnectRank(**opened, how.page, rank, peer, &comms[peer]));
  }
  absl::StatusOr<Memory> memory = Memory::Make(
      (*opened)->net.get(),
      how.sends ? comms[(rank + 1) % kRanks].send : comms[(rank + 1) % kRanks].recv, 1 << 20);
  if (!memory.ok()) return memory.status();
  how.page->phase[rank].store(kConnected);
  if (rank == kVictim) {
    for (;;) pause();
  }
  absl::Status result = WaitForError(**opened, comms[kVictim], how, rank, *memory);
  const int other = kRanks - kVictim - rank;
  if (result.ok()) result = AwaitPhase(*how.page, other, kNoticed);
  if (result.ok()) result = StillCarries(**opened, comms[other]);
  how.page->phase[rank].store(kEnded);
  // To the other rank, one that leaves first looks dead.
  if (result.ok()) result = AwaitPhase(*how.page, other, kEnded);
  return result;
}

absl::Status KillOnce(const Target& target, bool sends, std::vector<int64_t>* took) {
  SharedPage* const page = NewSharedPage();
  if (page == nullptr) return absl::ResourceExhaustedError("no shared memory");
  static_assert(sizeof(pid_t) <= sizeof(page->errors[0]), "room for a number");
  auto* const victim = reinterpret_cast<pid_t*>(page->errors[SharedPage::kMaxRanks - 1]);
  const RankOf how = {&target, page, victim, sends};
  const std::vector<pid_t> ranks =
      StartRanks(kRanks, page, [&](int rank) { return RunRank(how, rank); });
  absl::Status result = AwaitPhase(*page, kVictim, kConnected);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != kVictim && result.ok()) result = AwaitPhase(*page, rank, kWaiting);
  }
  if (result.ok()) usleep(20'000);
  const int64_t killed_us = NowUs();
  kill(ranks[kVictim], SIGKILL);
  (void)Reap(ranks[kVictim], *page, kVictim);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    if (!result.ok()) kill(ranks[static_cast<size_t>(rank)], SIGKILL);
    result.Update(Reap(ranks[static_cast<size_t>(rank)], *page, rank));
  }
  if (!result.ok()) return result;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    const int64_t took_us = page->noticed_at_us[rank].load() - killed_us;
    took->push_back(took_us);
    if (took_us > kNoticeUs + kGraceUs || (target.kills > 10 && took_us > kNoticeUs)) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " noticed a dead rank after ", took_us / 1000, " ms"));
    }
    if (target.named_victim == "pid" && page->named[rank].load() == 0) {
      return absl::InternalError(absl::StrCat("rank ", rank, "'s warning does not name who died"));
    }
  }
  return absl::OkStatus();
}

absl::Status Kill(const Target& target, bool sends) {
  std::vector<int64_t> took;
  for (int i = 0; i < target.kills; ++i) {
    const absl::Status once = KillOnce(target, sends, &took);
    if (!once.ok())
      return absl::Status(once.code(), absl::StrCat("kill ", i, ": ", once.message()));
  }
  std::sort(took.begin(), took.end());
  printf("    %d kills: each other rank has an error after %.1f ms (median), %.1f ms at most\n",
         target.kills, static_cast<double>(took[took.size() / 2]) * 1e-3,
         static_cast<double>(took.back()) * 1e-3);
  fflush(stdout);
  return absl::OkStatus();
}

absl::Status KillSender(const Target& target) { return Kill(target, /*sends=*/false); }
absl::Status KillReceiver(const Target& target) { return Kill(target, /*sends=*/true); }

}  // namespace

std::vector<Case> DeathCases() {
  return {
      {"kill_sender", "a rank dies: those who wait to receive have an error in a second",
       &KillSender},
      {"kill_receiver", "a rank dies: those who wait to send have an error in a second",
       &KillReceiver},
  };
}

}  // namespace tryst::nccl_net
