// Whether bytes arrive: sizes, groups, tags, ways of testing.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/frameworks/nccl_net/cases.h"
#include "tests/frameworks/nccl_net/comm_pair.h"

namespace tryst::nccl_net {
namespace {

constexpr int kOut = nccl::kMaxRequests;

struct World {
  std::unique_ptr<Opened> opened;
  std::unique_ptr<CommPair> pair;
};

absl::Status Make(const Target& target, World* world) {
  absl::StatusOr<std::unique_ptr<Opened>> opened = OpenPlugin(target.file, target.version);
  if (!opened.ok()) return opened.status();
  world->opened = *std::move(opened);
  absl::StatusOr<CommPair> pair = MakePair(*world->opened, CommPair::Order::kInTurn);
  if (!pair.ok()) return pair.status();
  world->pair = std::make_unique<CommPair>(*std::move(pair));
  return absl::OkStatus();
}

absl::Status Zero(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  for (uint32_t i = 0; i < 40; ++i) {
    NCCL_NET_TRY(Transfer(*world.pair, 0, i % 2 == 0 ? 0 : 5000, i));
  }
  return Transfer(*world.pair, 10, 10, 1);
}

absl::Status Sizes(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const size_t most = world.opened->Properties().max_p2p_bytes;
  for (size_t limit = 64; limit <= (size_t{8} << 20); limit *= 2) {
    for (const int beside : {-1, 0, 1}) {
      const size_t bytes = limit + static_cast<size_t>(beside);
      // NCCL does not send more at once than the plugin says that it takes.
      if (bytes > most) continue;
      const absl::Status moved = Transfer(*world.pair, bytes, bytes, static_cast<uint32_t>(bytes));
      if (!moved.ok())
        return absl::Status(moved.code(), absl::StrCat(bytes, ": ", moved.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Large(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const size_t most = world.opened->Properties().max_p2p_bytes;
  return Transfer(*world.pair, std::min<size_t>(most, (size_t{96} << 20) + 13),
                  std::min<size_t>(most, (size_t{96} << 20) + 13), 11);
}

absl::Status SmallIntoLarge(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  for (const size_t bytes : {1, 100, 4000, 5000, 70'000, 1'000'000}) {
    NCCL_NET_TRY(Transfer(*world.pair, bytes, size_t{4} << 20, static_cast<uint32_t>(bytes)));
  }
  return absl::OkStatus();
}

// Nothing may be written beyond the receive. An error is right; NCCL's own transports cut the
// message instead.
absl::Status LargeIntoSmall(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  absl::StatusOr<Memory> from = Memory::Make(world.pair->net, world.pair->send, 100'000);
  absl::StatusOr<Memory> into = Memory::Make(world.pair->net, world.pair->recv, 1000);
  if (!from.ok()) return from.status();
  if (!into.ok()) return into.status();
  from->Fill(1);
  Operation send;
  Operation receive;
  const int64_t end_ms = NowMs() + 1000;
  absl::Status error;
  while (NowMs() < end_ms && error.ok() && !(send.done && receive.done)) {
    if (receive.request == nullptr) error.Update(TryReceive(*world.pair, *into, 1000, 7, &receive));
    if (send.request == nullptr && error.ok()) {
      error.Update(TrySend(*world.pair, *from, 100'000, 7, &send));
    }
    if (error.ok()) error.Update(TestOne(*world.pair, &send));
    if (error.ok()) error.Update(TestOne(*world.pair, &receive));
  }
  const absl::Status whole = into->Check(1, 1000);
  const absl::Status untouched = into->Check(1, 0);
  if (!whole.ok() && !untouched.ok() &&
      whole.message().find("outside") != absl::string_view::npos) {
    return whole;
  }
  if (error.ok() && !(send.done && receive.done)) {
    return absl::DeadlineExceededError("neither an error nor an end");
  }
  return absl::OkStatus();
}

absl::Status FinishAll(const CommPair& pair, bool reversed, std::vector<Operation>* operations) {
  std::vector<Operation*> order;
  for (Operation& one : *operations) order.push_back(&one);
  if (reversed) std::reverse(order.begin(), order.end());
  return Finish(pair, order);
}

// Tests only the oldest open request of each direction, as NCCL's proxy does.
absl::Status FinishOldestFirst(const CommPair& pair, std::vector<Operation>* operations) {
  size_t oldest[2] = {0, 0};
  return Until("the oldest request", [&]() -> absl::StatusOr<bool> {
    for (size_t side = 0; side < 2; ++side) {
      if (oldest[side] == kOut) continue;
      Operation& one = (*operations)[side * kOut + oldest[side]];
      NCCL_NET_TRY(TestOne(pair, &one));
      oldest[side] += one.done ? 1 : 0;
    }
    return oldest[0] == kOut && oldest[1] == kOut;
  });
}

// Keeps all requests out. Tests them as NCCL does, or all in each round, newest first or last.
absl::Status ManyOutIn(const Target& target, bool any_order) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const CommPair& pair = *world.pair;
  for (int round = 0; round < 6; ++round) {
    const size_t bytes = round % 3 == 0 ? 64 : round % 3 == 1 ? 9000 : 150'000;
    std::vector<Memory> memory;
    std::vector<Operation> operations(2 * kOut);
    for (int i = 0; i < 2 * kOut; ++i) {
      absl::StatusOr<Memory> one = Memory::Make(pair.net, i < kOut ? pair.recv : pair.send, bytes);
      if (!one.ok()) return one.status();
      memory.push_back(*std::move(one));
      if (i >= kOut) memory.back().Fill(static_cast<uint32_t>(i - kOut));
    }
    int receives = 0;
    int sends = 0;
    NCCL_NET_TRY(Until("beginning 32 requests", [&]() -> absl::StatusOr<bool> {
      if (receives < kOut) {
        Operation& one = operations[static_cast<size_t>(receives)];
        NCCL_NET_TRY(TryReceive(pair, memory[static_cast<size_t>(receives)], bytes, 7, &one));
        receives += one.request != nullptr ? 1 : 0;
      }
      if (sends < kOut && (round % 2 == 0 || receives == kOut)) {
        Operation& one = operations[static_cast<size_t>(kOut + sends)];
        NCCL_NET_TRY(TrySend(pair, memory[static_cast<size_t>(kOut + sends)], bytes, 7, &one));
        sends += one.request != nullptr ? 1 : 0;
      }
      return receives == kOut && sends == kOut;
    }));
    NCCL_NET_TRY(any_order ? FinishAll(pair, round % 2 == 1, &operations)
                           : FinishOldestFirst(pair, &operations));
    for (int i = 0; i < kOut; ++i) {
      NCCL_NET_TRY(memory[static_cast<size_t>(i)].Check(static_cast<uint32_t>(i), bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status ManyOut(const Target& target) { return ManyOutIn(target, false); }
absl::Status ManyOutAnyOrder(const Target& target) { return ManyOutIn(target, true); }

// A receive that comes long after its send.
absl::Status LateReceive(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const CommPair& pair = *world.pair;
  for (const size_t bytes : {16, 4000, 300'000}) {
    absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, bytes);
    absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, bytes);
    if (!from.ok()) return from.status();
    if (!into.ok()) return into.status();
    from->Fill(2);
    Operation send;
    Operation receive;
    for (int i = 0; i < 200; ++i) {
      if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, *from, bytes, 7, &send));
      NCCL_NET_TRY(TestOne(pair, &send));
    }
    NCCL_NET_TRY(Until("a late receive", [&]() -> absl::StatusOr<bool> {
      if (receive.request == nullptr) NCCL_NET_TRY(TryReceive(pair, *into, bytes, 7, &receive));
      if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, *from, bytes, 7, &send));
      NCCL_NET_TRY(TestOne(pair, &send));
      NCCL_NET_TRY(TestOne(pair, &receive));
      return send.done && receive.done;
    }));
    NCCL_NET_TRY(into->Check(2, bytes));
  }
  return absl::OkStatus();
}

struct Grouped {
  Operation operation;
  std::vector<Memory> memory;
  std::vector<int> tags;
};

absl::Status PostGroup(const CommPair& pair, size_t room, Grouped* group) {
  std::vector<void*> data;
  std::vector<void*> handles;
  std::vector<size_t> sizes(group->tags.size(), room);
  for (Memory& memory : group->memory) {
    data.push_back(memory.data());
    handles.push_back(memory.handle());
  }
  return Call(
      pair.net->irecv(pair.recv, static_cast<int>(group->tags.size()), data.data(), sizes.data(),
                      group->tags.data(), handles.data(), &group->operation.request),
      "irecv of a group");
}

// Groups with the same tags, one after the other, and sends in every order within a group. `ahead`:
// the sends are tried before the groups are posted.
absl::Status Groups(const Target& target, bool ahead) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const CommPair& pair = *world.pair;
  const int most = world.opened->Properties().max_receives;
  if (most < 2) return absl::UnimplementedError("the device takes one receive at a time");
  for (int count = 2; count <= most; ++count) {
    for (uint32_t round = 0; round < 3; ++round) {
      const size_t room = round == 2 ? 200'000 : 6000;
      std::vector<Grouped> groups(3);
      std::vector<Memory> from;
      std::vector<std::pair<int, size_t>> sends;  // Tag and bytes.
      for (size_t g = 0; g < groups.size(); ++g) {
        for (int i = 0; i < count; ++i) {
          absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, room);
          if (!into.ok()) return into.status();
          groups[g].memory.push_back(*std::move(into));
          groups[g].tags.push_back(100 + i);
        }
        for (int i = 0; i < count; ++i) {
          const int which = static_cast<int>((static_cast<uint32_t>(i) * 5 + round + g) %
                                             static_cast<uint32_t>(count));
          // Where the stride does not visit every receive, the order is the plain one.
          const int tag = 100 + (count % 5 == 0 ? count - 1 - i : which);
          const size_t bytes = room - static_cast<size_t>(tag - 100) * 10 - g;
          absl::StatusOr<Memory> one = Memory::Make(pair.net, pair.send, bytes);
          if (!one.ok()) return one.status();
          one->Fill(static_cast<uint32_t>(tag) + 1000 * static_cast<uint32_t>(g));
          from.push_back(*std::move(one));
          sends.emplace_back(tag, bytes);
        }
      }
      std::vector<Operation> sent(sends.size());
      size_t posted = 0;
      size_t begun = 0;
      int turns = 0;
      NCCL_NET_TRY(Until("groups", [&]() -> absl::StatusOr<bool> {
        ++turns;
        if (posted < groups.size() && (!ahead || turns > 100)) {
          NCCL_NET_TRY(PostGroup(pair, room, &groups[posted]));
          posted += groups[posted].operation.request != nullptr ? 1 : 0;
        }
        if (begun < sends.size()) {
          NCCL_NET_TRY(
              TrySend(pair, from[begun], sends[begun].second, sends[begun].first, &sent[begun]));
          begun += sent[begun].request != nullptr ? 1 : 0;
        }
        bool all = posted == groups.size() && begun == sends.size();
        for (Operation& one : sent) {
          NCCL_NET_TRY(TestOne(pair, &one));
          all = all && one.done;
        }
        for (Grouped& group : groups) {
          NCCL_NET_TRY(TestOne(pair, &group.operation));
          all = all && group.operation.done;
        }
        return all;
      }));
      for (size_t g = 0; g < groups.size(); ++g) {
        for (int i = 0; i < count; ++i) {
          const size_t at = static_cast<size_t>(i);
          const size_t bytes = room - at * 10 - g;
          if (groups[g].operation.sizes[i] != static_cast<int>(bytes)) {
            return absl::DataLossError(absl::StrCat("group of ", count, ": size ", i, " is ",
                                                    groups[g].operation.sizes[i], ", sent ",
                                                    bytes));
          }
          const absl::Status right = groups[g].memory[at].Check(
              static_cast<uint32_t>(100 + i) + 1000 * static_cast<uint32_t>(g), bytes);
          if (!right.ok()) {
            return absl::DataLossError(
                absl::StrCat("group of ", count, ", tag ", 100 + i, ": ", right.message()));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}
absl::Status GroupsPosted(const Target& target) { return Groups(target, false); }
absl::Status GroupsAhead(const Target& target) { return Groups(target, true); }

// NCCL's proxy tests the oldest request of each comm once a round, and sometimes does not ask for
// sizes.
absl::Status Polling(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const CommPair& pair = *world.pair;
  absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, 500'000);
  absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, 500'000);
  if (!from.ok()) return from.status();
  if (!into.ok()) return into.status();
  for (uint32_t round = 0; round < 12; ++round) {
    from->Fill(round);
    into->Clear();
    void* send = nullptr;
    void* receive = nullptr;
    int sent = 0;
    int received = 0;
    NCCL_NET_TRY(Until("polling", [&]() -> absl::StatusOr<bool> {
      void* data = into->data();
      size_t room = into->bytes();
      int tag = 1;
      void* handle = into->handle();
      if (receive == nullptr) {
        NCCL_NET_TRY(
            Call(pair.net->irecv(pair.recv, 1, &data, &room, &tag, &handle, &receive), "irecv"));
      }
      if (send == nullptr) {
        NCCL_NET_TRY(
            Call(pair.net->isend(pair.send, from->data(), from->bytes(), 1, from->handle(), &send),
                 "isend"));
      }
      // One side only, the other only, then both.
      if (send != nullptr && sent == 0 && round % 3 != 1) {
        NCCL_NET_TRY(Call(pair.net->test(send, &sent, nullptr), "test"));
      }
      if (receive != nullptr && received == 0) {
        NCCL_NET_TRY(Call(pair.net->test(receive, &received, nullptr), "test"));
      }
      if (received != 0 && send != nullptr && sent == 0) {
        NCCL_NET_TRY(Call(pair.net->test(send, &sent, nullptr), "test"));
      }
      return sent != 0 && received != 0;
    }));
    NCCL_NET_TRY(into->Check(round, from->bytes()));
  }
  return absl::OkStatus();
}

// "Done" means delivered, so the sender may close.
absl::Status CloseAfterDone(const Target& target) {
  for (const size_t bytes : {8, 3000, 2'000'000}) {
    World world;
    NCCL_NET_TRY(Make(target, &world));
    CommPair& pair = *world.pair;
    absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, bytes);
    if (!into.ok()) return into.status();
    Operation receive;
    NCCL_NET_TRY(TryReceive(pair, *into, bytes, 7, &receive));
    {
      absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, bytes);
      if (!from.ok()) return from.status();
      from->Fill(5);
      Operation send;
      NCCL_NET_TRY(Until("a send", [&]() -> absl::StatusOr<bool> {
        if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, *from, bytes, 7, &send));
        NCCL_NET_TRY(TestOne(pair, &send));
        NCCL_NET_TRY(TestOne(pair, &receive));
        return send.done;
      }));
    }
    NCCL_NET_TRY(Call(pair.net->close_send(std::exchange(pair.send, nullptr)), "closeSend"));
    NCCL_NET_TRY(Finish(pair, {&receive}));
    NCCL_NET_TRY(into->Check(5, bytes));
  }
  return absl::OkStatus();
}

absl::Status Flush(const Target& target) {
  World world;
  NCCL_NET_TRY(Make(target, &world));
  const CommPair& pair = *world.pair;
  absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, 5000);
  if (!into.ok()) return into.status();
  void* data = into->data();
  void* handle = into->handle();
  int bytes = 5000;
  Operation flush;
  NCCL_NET_TRY(
      Call(pair.net->iflush(pair.recv, 1, &data, &bytes, &handle, &flush.request), "iflush"));
  return flush.request == nullptr ? absl::OkStatus() : Finish(pair, {&flush});
}

// Comms in parallel, each on a thread of its own.
absl::Status Threads(const Target& target) {
  absl::StatusOr<std::unique_ptr<Opened>> opened = OpenPlugin(target.file, target.version);
  if (!opened.ok()) return opened.status();
  constexpr int kThreads = 6;
  std::vector<absl::Status> results(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      absl::Status& result = results[static_cast<size_t>(i)];
      absl::StatusOr<CommPair> pair = MakePair(**opened, CommPair::Order::kInTurn);
      result = pair.status();
      for (uint32_t round = 0; round < 30 && result.ok(); ++round) {
        const size_t bytes = round % 3 == 0 ? 40 : round % 3 == 1 ? 30'000 : 700'001;
        result = Transfer(*pair, bytes, bytes, round + static_cast<uint32_t>(i) * 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) NCCL_NET_TRY(result);
  return absl::OkStatus();
}

}  // namespace

std::vector<Case> TransferCases() {
  return {
      {"zero_bytes", "empty messages, into empty and larger receives", &Zero},
      {"sizes", "every power of two and its neighbours, to 8 MiB", &Sizes},
      {"large", "96 MiB and 13 bytes", &Large},
      {"small_into_large", "a smaller message, and its size by test", &SmallIntoLarge},
      {"large_into_small", "nothing is written beyond a receive", &LargeIntoSmall},
      {"many_out", "32 requests out, the oldest tested first", &ManyOut},
      {"many_out_any", "the same, all tested in any order", &ManyOutAnyOrder, true},
      {"late_receive", "a send long before its receive", &LateReceive},
      {"groups", "grouped receives, tags in any order", &GroupsPosted},
      {"groups_ahead", "the same, sends first", &GroupsAhead},
      {"polling", "one side polled alone, sizes not wanted", &Polling, true},
      {"close_after_done", "what is done is delivered though the sender closes", &CloseAfterDone},
      {"flush", "a flush of host memory ends", &Flush, true},
      {"threads", "six comms, each on its own thread", &Threads},
  };
}

}  // namespace tryst::nccl_net
