// Ranks that die: every other rank must get an error soon, and no other comm may suffer.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/frameworks/nccl_net/cases.h"
#include "tests/frameworks/nccl_net/comm_pair.h"
#include "tests/frameworks/nccl_net/world.h"

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

// What the sender of a pair moves, and how it leaves.
struct Leaving {
  int messages = 0;
  size_t bytes = 0;
  bool closes = false;    // Its comm; otherwise its process just ends.
  int stopped_us = 0;     // The receiver is stopped for so long at a time,
  int receive_after = 0;  // or begins so many milliseconds after the sender has left.
};
constexpr int kAtOnce = 8;

absl::Status MoveInTurn(const CommPair& pair, const Leaving& how, bool sends) {
  absl::StatusOr<Memory> memory = Memory::Make(pair.net, sends ? pair.send : pair.recv, how.bytes);
  if (!memory.ok()) return memory.status();
  memory->Fill(5);
  std::vector<Operation> all(static_cast<size_t>(how.messages));
  size_t begun = 0;
  size_t done = 0;
  return Until("messages of one who leaves", [&]() -> absl::StatusOr<bool> {
    if (begun < all.size() && begun < done + kAtOnce) {
      NCCL_NET_TRY(sends ? TrySend(pair, *memory, how.bytes, 3, &all[begun])
                         : TryReceive(pair, *memory, how.bytes, 3, &all[begun]));
      if (all[begun].request != nullptr) ++begun;
    }
    if (done < begun) {
      NCCL_NET_TRY(TestOne(pair, &all[done]));
      if (all[done].done) ++done;
    }
    return done == all.size();
  });
}

absl::Status RunLeaver(const Target& target, SharedPage* page, const Leaving& how, int rank) {
  absl::StatusOr<std::unique_ptr<Opened>> opened = OpenPlugin(target.file, target.version);
  if (!opened.ok()) return opened.status();
  PeerComms comms;
  NCCL_NET_TRY(ConnectRank(**opened, page, rank, 1 - rank, &comms));
  page->phase[rank].store(kConnected);
  NCCL_NET_TRY(AwaitPhase(*page, 1 - rank, kConnected));
  CommPair pair;
  pair.net = (*opened)->net.get();
  pair.send = comms.send;
  pair.recv = comms.recv;
  const bool sends = rank == kVictim;
  if (!sends && how.receive_after > 0) {
    // Over some NICs a send ends only when it is received; then it cannot leave so soon.
    const int64_t end_ms = NowMs() + 300;
    while (page->phase[kVictim].load() < kEnded && NowMs() < end_ms) usleep(200);
    usleep(static_cast<useconds_t>(how.receive_after) * 1000);
  }
  absl::Status moved = MoveInTurn(pair, how, sends);
  if (sends && !how.closes) {
    page->phase[rank].store(kEnded);
    _exit(moved.ok() ? 0 : 1);
  }
  if (sends) {
    pair.net->close_send(pair.send);
    page->phase[rank].store(kEnded);
    moved.Update(AwaitPhase(*page, 1 - rank, kEnded));
  }
  page->phase[rank].store(kEnded);
  pair.send = pair.recv = nullptr;
  return moved;
}

absl::Status Leave(const Target& target, const Leaving& how) {
  SharedPage* const page = NewSharedPage();
  if (page == nullptr) return absl::ResourceExhaustedError("no shared memory");
  const std::vector<pid_t> ranks =
      StartRanks(2, page, [&](int rank) { return RunLeaver(target, page, how, rank); });
  absl::Status result = AwaitPhase(*page, 1 - kVictim, kConnected);
  while (result.ok() && how.stopped_us > 0 && page->phase[1 - kVictim].load() < kEnded &&
         page->errors[1 - kVictim][0] == '\0') {
    usleep(2000);
    kill(ranks[1 - kVictim], SIGSTOP);
    usleep(static_cast<useconds_t>(how.stopped_us));
    kill(ranks[1 - kVictim], SIGCONT);
  }
  for (int rank = 0; rank < 2; ++rank) {
    result.Update(Reap(ranks[static_cast<size_t>(rank)], *page, rank));
  }
  return result;
}

absl::Status CloseAfterSend(const Target& target) {
  for (const auto& [messages, bytes] :
       {std::make_pair(400, size_t{4096}), std::make_pair(200, size_t{65536})}) {
    NCCL_NET_TRY(Leave(target, {messages, bytes, /*closes=*/true, /*stopped_us=*/100'000, 0}));
  }
  return absl::OkStatus();
}

absl::Status ExitAfterSend(const Target& target) {
  return Leave(target, {4, 1000, /*closes=*/false, 0, /*receive_after=*/50});
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
      {"close_after_send", "what has tested sent arrives, although the sender closes at once",
       &CloseAfterSend, /*beyond=*/true},
      {"exit_after_send", "what lies in the receiver's machine is received after the sender's end",
       &ExitAfterSend, /*beyond=*/true},
  };
}

}  // namespace tryst::nccl_net
