// Agents as NIXL's core drives a back end, by abi.h alone: the plug-in linked in, or, where
// TRYST_NIXL_PLUGIN names its file, loaded from there.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "plugins/nixl/abi.h"

#ifndef TRYST_NIXL_PLUGIN
extern "C" tryst::nixl::abi::Plugin* nixl_plugin_init();
#endif

namespace tryst::nixl {
namespace {

constexpr std::chrono::seconds kHung(60);

abi::Plugin* LoadPlugin() {
#ifdef TRYST_NIXL_PLUGIN
  static void* const library = dlopen(TRYST_NIXL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    ADD_FAILURE() << dlerror();
    abort();
  }
  return reinterpret_cast<abi::Plugin* (*)()>(dlsym(library, "nixl_plugin_init"))();
#else
  return nixl_plugin_init();
#endif
}

// An agent with one piece of registered memory, and what it has loaded of others.
class Side {
 public:
  Side(const std::string& name, size_t bytes, abi::Parameters parameters = {{"patience", "2s"}})
      : memory(bytes), name_(name) {
    abi::EngineOptions options;
    options.agent = name;
    options.type = "TRYST";
    options.parameters = &parameters;
    engine.reset(LoadPlugin()->create(&options));
    EXPECT_FALSE(engine->failed());
    EXPECT_EQ(engine->Connect(name), abi::kSuccess);
    const abi::Blob blob = {At(0), bytes, 0, ""};
    EXPECT_EQ(engine->Register(blob, abi::kDram, own), abi::kSuccess);
    EXPECT_EQ(engine->LoadOwn(own, own_again), abi::kSuccess);
  }
  ~Side() {
    for (const auto& [agent, handle] : remote_) engine->Unload(handle);
    if (own != nullptr) Forget();
  }
  void Forget() {
    engine->Unload(own_again);
    EXPECT_EQ(engine->Deregister(std::exchange(own, nullptr)), abi::kSuccess);
  }
  // What an agent's metadata would carry.
  struct Metadata {
    std::string connection, text;
    uintptr_t address;
    size_t bytes;
  };
  Metadata Publish() {
    Metadata metadata;
    EXPECT_EQ(engine->ConnectionInfo(metadata.connection), abi::kSuccess);
    EXPECT_EQ(engine->PublicData(own, metadata.text), abi::kSuccess);
    metadata.address = At(0);
    metadata.bytes = memory.size();
    return metadata;
  }
  void Load(const std::string& agent, const Metadata& metadata) {
    EXPECT_EQ(engine->LoadConnectionInfo(agent, metadata.connection), abi::kSuccess);
    const abi::Blob blob = {metadata.address, metadata.bytes, 0, metadata.text};
    EXPECT_EQ(engine->LoadRemote(blob, abi::kDram, agent, remote_[agent]), abi::kSuccess);
    base_[agent] = metadata.address;
  }
  void Unload(const std::string& agent) {
    EXPECT_EQ(engine->Disconnect(agent), abi::kSuccess);
    engine->Unload(remote_[agent]);
    remote_.erase(agent);
  }
  void Load(Side* peer) { Load(peer->name_, peer->Publish()); }

  struct Piece {
    size_t here, there, bytes;
  };
  abi::Status Prepare(abi::Operation operation, const std::string& agent,
                      const std::vector<Piece>& pieces, abi::RequestHandle** request) {
    abi::Spans mine(abi::kDram), theirs(abi::kDram);
    for (const Piece& piece : pieces) {
      mine.items.push_back({At(piece.here), piece.bytes, 0, own});
      if (agent == name_) {
        theirs.items.push_back({At(piece.there), piece.bytes, 0, own_again});
      } else {
        theirs.items.push_back({base_.at(agent) + piece.there, piece.bytes, 0, remote_.at(agent)});
      }
    }
    return engine->Prepare(operation, mine, theirs, agent, *request, nullptr);
  }
  abi::Status Post(abi::RequestHandle* request, const char* note = nullptr) {
    const abi::Spans none(abi::kDram);
    abi::PostOptions options;
    options.has_notification = note != nullptr;
    if (note != nullptr) options.notification = note;
    return engine->Post(abi::kRead, none, none, "", request, &options);
  }
  abi::Status Await(abi::RequestHandle* request) {
    const auto until = std::chrono::steady_clock::now() + kHung;
    for (;;) {
      const abi::Status status = engine->Check(request);
      if (status != abi::kInProgress || std::chrono::steady_clock::now() > until) return status;
    }
  }
  void Release(abi::RequestHandle* request) {
    for (int times = 0; engine->Release(request) != abi::kSuccess; ++times) ASSERT_LT(times, 2);
  }
  abi::Status Move(abi::Operation operation, const std::string& agent,
                   const std::vector<Piece>& pieces, const char* note = nullptr) {
    abi::RequestHandle* request = nullptr;
    abi::Status status = Prepare(operation, agent, pieces, &request);
    if (status != abi::kSuccess) return status;
    status = Post(request, note);
    if (status == abi::kInProgress) status = Await(request);
    Release(request);
    return status;
  }
  abi::Notifications TakeNotes(size_t count) {
    const auto until = std::chrono::steady_clock::now() + kHung;
    abi::Notifications notes;
    while (notes.size() < count && std::chrono::steady_clock::now() < until) {
      EXPECT_EQ(engine->TakeNotifications(notes), abi::kSuccess);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return notes;
  }
  uintptr_t At(size_t offset) const { return reinterpret_cast<uintptr_t>(memory.data()) + offset; }
  std::string Text(size_t offset, size_t bytes) const {
    return {memory.begin() + static_cast<long>(offset),
            memory.begin() + static_cast<long>(offset + bytes)};
  }

  std::vector<char> memory;
  struct DestroyEngine {
    void operator()(abi::Engine* engine) const { LoadPlugin()->destroy(engine); }
  };
  std::unique_ptr<abi::Engine, DestroyEngine> engine;
  abi::MemoryHandle *own = nullptr, *own_again = nullptr;

 private:
  const std::string name_;
  std::map<std::string, abi::MemoryHandle*> remote_;
  std::map<std::string, uintptr_t> base_;
};

void Fill(std::vector<char>* memory, unsigned seed) {
  std::minstd_rand random(seed);
  for (char& byte : *memory) byte = static_cast<char>(random());
}

// Every other block of `bytes`, in a mixed order at both ends.
std::vector<Side::Piece> Blocks(size_t count, size_t bytes, unsigned seed) {
  std::vector<size_t> here(count), there(count);
  for (size_t i = 0; i < count; ++i) here[i] = there[i] = i;
  std::minstd_rand random(seed);
  std::shuffle(here.begin(), here.end(), random);
  std::shuffle(there.begin(), there.end(), random);
  std::vector<Side::Piece> pieces;
  for (size_t i = 0; i < count; ++i) {
    pieces.push_back({here[i] * 2 * bytes, there[i] * 2 * bytes, bytes});
  }
  return pieces;
}

TEST(PluginTest, SaysWhatItIs) {
  const abi::Plugin* const plugin = LoadPlugin();
  EXPECT_EQ(plugin->version, 1);
  EXPECT_STREQ(plugin->name(), "TRYST");
  EXPECT_NE(std::string(plugin->release()).find("NIXL 1.5"), std::string::npos);
  EXPECT_EQ(plugin->memories(), abi::Memories{abi::kDram});
  // An agent may give back what it was shown.
  Side side("self", 16, plugin->options());
  EXPECT_TRUE(side.engine->SupportsRemote() && side.engine->SupportsLocal() &&
              side.engine->SupportsNotifications());
  // The last of the virtual functions: had another agent one more, it would call another one.
  abi::Spans none(abi::kDram);
  std::chrono::microseconds time, margin;
  abi::CostMethod method;
  EXPECT_EQ(side.engine->EstimateCost(abi::kRead, none, none, "self", nullptr, time, margin, method,
                                      nullptr),
            abi::kNotSupported);
}

// By the ABI of GCC and Clang a pointer to a virtual function is its offset in the table, and one.
template <typename Function>
size_t SlotOf(Function function) {
  uintptr_t words[2];
  static_assert(sizeof(function) == sizeof(words));
  memcpy(words, &function, sizeof(words));
  return (words[0] - 1) / sizeof(void*);
}

// An agent calls by the place alone. NIXL's package has them so (tests/frameworks/nixl/vtable.py).
TEST(PluginTest, VirtualFunctionsStandWhereAgentsCallThem) {
#ifndef __x86_64__
  GTEST_SKIP() << "needs x86-64, where NIXL's interface was read";
#endif
  using E = abi::Engine;
  const size_t slots[] = {SlotOf(&E::SupportsRemote),
                          SlotOf(&E::SupportsLocal),
                          SlotOf(&E::SupportsNotifications),
                          SlotOf(&E::SupportedMemories),
                          SlotOf(&E::Register),
                          SlotOf(&E::Deregister),
                          SlotOf(&E::Connect),
                          SlotOf(&E::Disconnect),
                          SlotOf(&E::Unload),
                          SlotOf(&E::Prepare),
                          SlotOf(&E::Post),
                          SlotOf(&E::Check),
                          SlotOf(&E::Release),
                          SlotOf(&E::PrepareRemoteView),
                          SlotOf(&E::PrepareView),
                          SlotOf(&E::ReleaseView),
                          SlotOf(&E::PublicData),
                          SlotOf(&E::ConnectionInfo),
                          SlotOf(&E::LoadConnectionInfo),
                          SlotOf(&E::LoadRemote),
                          SlotOf(&E::LoadOwn),
                          SlotOf(&E::TakeNotifications),
                          SlotOf(&E::Notify),
                          SlotOf(&E::Query),
                          SlotOf(&E::EstimateCost)};
  constexpr size_t kOfTheDestructor = 2;
  for (size_t i = 0; i < std::size(slots); ++i) EXPECT_EQ(slots[i], kOfTheDestructor + i);
}

TEST(PluginTest, AnEngineThatCannotStartSaysSo) {
  abi::Parameters parameters = {{"no_such_setting", "1"}};
  abi::EngineOptions options;
  options.agent = "self";
  options.parameters = &parameters;
  abi::Engine* const engine = LoadPlugin()->create(&options);
  EXPECT_TRUE(engine->failed());
  LoadPlugin()->destroy(engine);
}

TEST(PluginTest, MemoryOfGpusAndOfNobodyIsRefused) {
  Side side("self", 16);
  abi::MemoryHandle* handle = nullptr;
  EXPECT_EQ(side.engine->Register({side.At(0), 16, 0, ""}, abi::kVram, handle), abi::kNotSupported);
  EXPECT_EQ(side.engine->Register({side.At(0), 0, 0, ""}, abi::kDram, handle),
            abi::kInvalidParameter);
  EXPECT_EQ(side.engine->LoadRemote({side.At(0), 16, 0, "what"}, abi::kDram, "other", handle),
            abi::kInvalidParameter);
  EXPECT_EQ(side.engine->LoadConnectionInfo("other", "what"), abi::kInvalidParameter);
  EXPECT_EQ(side.engine->Connect("other"), abi::kNotFound);
  EXPECT_EQ(side.engine->Notify("other", "?"), abi::kNotFound);
}

class PairTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 16 << 20;
  PairTest() : a_("a", kBytes), b_("b", kBytes) {
    a_.Load(&b_);
    Fill(&b_.memory, 1);
  }
  Side a_, b_;
};

TEST_F(PairTest, ReadsFillWhatWasNamedAndNothingElse) {
  for (const auto& [count, bytes] : {std::pair<size_t, size_t>{1, 8}, {1000, 4096}, {1, 8 << 20}}) {
    const auto pieces = Blocks(count, bytes, 7);
    std::fill(a_.memory.begin(), a_.memory.end(), '.');
    std::vector<char> expected = a_.memory;
    for (const auto& piece : pieces) {
      memcpy(&expected[piece.here], &b_.memory[piece.there], piece.bytes);
    }
    EXPECT_EQ(a_.Move(abi::kRead, "b", pieces), abi::kSuccess);
    EXPECT_TRUE(a_.memory == expected) << count << " of " << bytes;
  }
}

TEST_F(PairTest, WritesFillWhatWasNamedAndNothingElse) {
  for (const auto& [count, bytes] : {std::pair<size_t, size_t>{1, 8}, {1000, 4096}, {1, 8 << 20}}) {
    Fill(&a_.memory, 3);
    const auto pieces = Blocks(count, bytes, 9);
    std::fill(b_.memory.begin(), b_.memory.end(), '.');
    std::vector<char> expected = b_.memory;
    for (const auto& piece : pieces) {
      memcpy(&expected[piece.there], &a_.memory[piece.here], piece.bytes);
    }
    EXPECT_EQ(a_.Move(abi::kWrite, "b", pieces, "written"), abi::kSuccess);
    EXPECT_TRUE(b_.memory == expected) << count << " of " << bytes;
    const abi::Notifications notes = b_.TakeNotes(1);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0], (std::pair<std::string, std::string>("a", "written")));
  }
}

TEST_F(PairTest, ARequestIsPostedAgainAndAgain) {
  abi::RequestHandle* request = nullptr;
  ASSERT_EQ(a_.Prepare(abi::kRead, "b", {{0, 64, 32}}, &request), abi::kSuccess);
  EXPECT_EQ(a_.engine->Check(request), abi::kNotPosted);
  for (unsigned i = 0; i < 100; ++i) {
    memset(&b_.memory[64], static_cast<int>(i), 32);
    abi::Status status = a_.Post(request, "read");
    if (status == abi::kInProgress) status = a_.Await(request);
    ASSERT_EQ(status, abi::kSuccess);
    ASSERT_EQ(a_.Text(0, 32), b_.Text(64, 32));
  }
  a_.Release(request);
  EXPECT_EQ(b_.TakeNotes(100).size(), 100u);
}

TEST_F(PairTest, NotificationsComeInTheirOrderWholeAndOnce) {
  const std::string large(300'000, 'x');
  abi::Notifications expected;
  for (int i = 0; i < 2000; ++i) {
    std::string note = i == 700 ? large : i == 900 ? "" : "note " + std::to_string(i);
    ASSERT_EQ(a_.engine->Notify("b", note), abi::kSuccess);
    expected.emplace_back("a", std::move(note));
  }
  EXPECT_TRUE(b_.TakeNotes(2000) == expected);
  abi::Notifications more;
  EXPECT_EQ(b_.engine->TakeNotifications(more), abi::kSuccess);
  EXPECT_TRUE(more.empty());
}

TEST_F(PairTest, WhoTakesNoNotificationsIsNotFilled) {
  const std::string note(100'000, 'x');
  int accepted = 0, refused = 0;  // In a row: it may be that they are only on their way.
  while (accepted < 3000 && refused < 50) {
    if (a_.engine->Notify("b", std::to_string(accepted) + note) == abi::kSuccess) {
      ++accepted;
      refused = 0;
    } else {
      ++refused;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  // What waits here and there has its bounds: 64 MiB each, and what is on its way.
  EXPECT_LT(accepted, 2000);
  EXPECT_GT(accepted, 1200);
  const abi::Notifications notes = b_.TakeNotes(static_cast<size_t>(accepted));
  ASSERT_EQ(notes.size(), static_cast<size_t>(accepted));
  for (int i = 0; i < accepted; ++i) EXPECT_EQ(notes[i].second, std::to_string(i) + note);
}

TEST_F(PairTest, AnAgentReachesItself) {
  Fill(&a_.memory, 5);
  const std::string from = a_.Text(1000, 100);
  EXPECT_EQ(a_.Move(abi::kRead, "a", {{0, 1000, 100}}, "read"), abi::kSuccess);
  EXPECT_EQ(a_.Text(0, 100), from);
  EXPECT_EQ(a_.Move(abi::kWrite, "a", {{1000, 2000, 100}}), abi::kSuccess);
  EXPECT_EQ(a_.Text(2000, 100), from);
  EXPECT_EQ(a_.engine->Notify("a", "note"), abi::kSuccess);
  EXPECT_EQ(a_.TakeNotes(2), (abi::Notifications{{"a", "read"}, {"a", "note"}}));
}

TEST_F(PairTest, AnAgentDoesNotTouchMemoryOfItsOwnThatIsDeregistered) {
  for (const abi::Operation operation : {abi::kRead, abi::kWrite}) {
    Side self("self", 4096);
    Fill(&self.memory, 5);
    const std::string before = self.Text(0, 4096);
    abi::RequestHandle* request = nullptr;
    ASSERT_EQ(self.Prepare(operation, "self", {{0, 1000, 100}}, &request), abi::kSuccess);
    self.Forget();
    EXPECT_EQ(self.Post(request), abi::kNotFound);
    EXPECT_EQ(self.Text(0, 4096), before);
    self.Release(request);
  }
  // A copy that is under way is waited for.
  std::minstd_rand random(17);
  constexpr size_t kHalf = 2 * kBytes;  // To copy it takes longer than to deregister.
  for (int i = 0; i < 10; ++i) {
    Side self("self", 2 * kHalf);
    abi::RequestHandle* request = nullptr;
    ASSERT_EQ(self.Prepare(abi::kWrite, "self", {{0, kHalf, kHalf}}, &request), abi::kSuccess);
    std::thread posts([&] { self.Post(request); });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    self.Forget();
    const auto lands = self.memory.begin() + static_cast<long>(kHalf);
    std::fill(lands, self.memory.end(), 0x5a);
    posts.join();
    EXPECT_EQ(std::count(lands, self.memory.end(), 0x5a), static_cast<long>(kHalf));
    self.Release(request);
  }
}

TEST_F(PairTest, WhatMakesNoSenseIsRefused) {
  abi::RequestHandle* request = nullptr;
  EXPECT_EQ(a_.Prepare(abi::kRead, "b", {{kBytes - 8, 0, 16}}, &request), abi::kInvalidParameter);
  EXPECT_EQ(a_.Prepare(abi::kRead, "b", {{0, kBytes - 8, 16}}, &request), abi::kInvalidParameter);
  EXPECT_EQ(a_.Prepare(abi::kRead, "b", {{0, SIZE_MAX - 8, 16}}, &request), abi::kInvalidParameter);
  EXPECT_EQ(a_.Prepare(abi::kRead, "a", {{0, kBytes - 8, 16}}, &request), abi::kInvalidParameter);
  // Nobody could say which of the bytes stay that are written twice.
  EXPECT_EQ(a_.Move(abi::kRead, "b", {{0, 0, 16}, {8, 100, 16}}), abi::kInvalidParameter);
  EXPECT_EQ(a_.Move(abi::kWrite, "b", {{0, 0, 16}, {100, 8, 16}}), abi::kInvalidParameter);
  // Nothing is a transfer, too.
  EXPECT_EQ(a_.Move(abi::kRead, "b", {{0, 0, 0}}), abi::kSuccess);
  EXPECT_EQ(a_.Move(abi::kWrite, "b", {}, "nothing"), abi::kSuccess);
  EXPECT_EQ(b_.TakeNotes(1), (abi::Notifications{{"a", "nothing"}}));
  // Bytes may be read twice.
  EXPECT_EQ(a_.Move(abi::kRead, "b", {{0, 0, 16}, {16, 0, 16}}), abi::kSuccess);
}

TEST_F(PairTest, MemoryThatIsDeregisteredIsNotFoundAndThePeerIs) {
  b_.Forget();
  EXPECT_EQ(a_.Move(abi::kRead, "b", {{0, 0, 16}}), abi::kNotFound);
  EXPECT_EQ(a_.Move(abi::kWrite, "b", {{0, 0, 16}}, "never"), abi::kNotFound);
  EXPECT_EQ(a_.engine->Notify("b", "here"), abi::kSuccess);
  EXPECT_EQ(b_.TakeNotes(1), (abi::Notifications{{"a", "here"}}));
}

// At random moments of a large transfer it is released; then the memory is another's.
TEST_F(PairTest, NoByteLandsAfterARelease) {
  std::minstd_rand random(11);
  int released = 0;
  for (int i = 0; i < 120; ++i) {
    const abi::Operation operation = i % 2 == 0 ? abi::kRead : abi::kWrite;
    std::vector<char>* const lands = operation == abi::kRead ? &a_.memory : &b_.memory;
    abi::RequestHandle* request = nullptr;
    ASSERT_EQ(a_.Prepare(operation, "b", Blocks(500, 16 << 10, random()), &request), abi::kSuccess);
    abi::Status status = a_.Post(request, "moved");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    if (status == abi::kInProgress) status = a_.engine->Check(request);
    released += status == abi::kInProgress;
    a_.Release(request);
    std::fill(lands->begin(), lands->end(), 0x5a);
    if (i % 10 < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(std::count(lands->begin(), lands->end(), 0x5a), static_cast<long>(kBytes)) << i;
    std::fill(lands->begin(), lands->end(), static_cast<char>(i % 50));  // Then it is a source.
    abi::Notifications notes;
    b_.engine->TakeNotifications(notes);
  }
  EXPECT_GT(released, 10) << "most had ended: nothing was tried";
}

TEST_F(PairTest, NoByteLandsInMemoryThatWasDeregistered) {
  std::minstd_rand random(13);
  for (int i = 0; i < 20; ++i) {
    Side mine("mine", kBytes);
    mine.Load(&b_);
    b_.Load(&mine);
    Side* const reader = i % 2 == 0 ? &mine : &b_;
    const abi::Operation operation = i % 2 == 0 ? abi::kRead : abi::kWrite;
    abi::RequestHandle* request = nullptr;
    ASSERT_EQ(reader->Prepare(operation, i % 2 == 0 ? "b" : "mine", Blocks(500, 16 << 10, random()),
                              &request),
              abi::kSuccess);
    abi::Status status = reader->Post(request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    mine.Forget();
    std::fill(mine.memory.begin(), mine.memory.end(), 0x5a);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(std::count(mine.memory.begin(), mine.memory.end(), 0x5a), static_cast<long>(kBytes));
    if (status == abi::kInProgress) status = reader->Await(request);
    EXPECT_TRUE(status == abi::kSuccess || status == abi::kCancelled || status == abi::kNotFound)
        << status;
    reader->Release(request);
    b_.Unload("mine");
  }
}

TEST_F(PairTest, ManyRequestsAtOnce) {
  std::vector<abi::RequestHandle*> requests(300);
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t at = i * 8192;
    ASSERT_EQ(
        a_.Prepare(i % 2 == 0 ? abi::kRead : abi::kWrite, "b", {{at, at, 4096}}, &requests[i]),
        abi::kSuccess);
  }
  for (abi::RequestHandle* const request : requests) ASSERT_GE(a_.Post(request, "done"), 0);
  for (abi::RequestHandle* const request : requests) {
    EXPECT_EQ(a_.Await(request), abi::kSuccess);
    a_.Release(request);
  }
  EXPECT_EQ(b_.TakeNotes(requests.size()).size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(a_.Text(i * 8192, 4096), b_.Text(i * 8192, 4096)) << i;
  }
}

TEST(RestartTest, ANewLifeUnderOneNameIsAnotherPeer) {
  Side a("a", 4096);
  auto b = std::make_unique<Side>("b", 4096);
  a.Load(b.get());
  Fill(&b->memory, 1);
  ASSERT_EQ(a.Move(abi::kRead, "b", {{0, 0, 16}}), abi::kSuccess);
  abi::RequestHandle* of_old = nullptr;
  ASSERT_EQ(a.Prepare(abi::kWrite, "b", {{0, 0, 16}}, &of_old), abi::kSuccess);
  b = nullptr;
  b = std::make_unique<Side>("b", 4096);
  Fill(&b->memory, 2);
  const std::string before = b->Text(0, 4096);
  abi::Status status = a.Post(of_old, "for the old one");
  if (status == abi::kInProgress) status = a.Await(of_old);
  EXPECT_EQ(status, abi::kRemoteGone);
  a.Release(of_old);
  a.Unload("b");
  a.Load(b.get());
  EXPECT_EQ(a.Move(abi::kRead, "b", {{0, 0, 16}}, "new"), abi::kSuccess);
  EXPECT_EQ(a.Text(0, 16), before.substr(0, 16));
  EXPECT_EQ(b->Text(0, 4096), before);
  EXPECT_EQ(b->TakeNotes(1), (abi::Notifications{{"a", "new"}}));
}

TEST(ForkTest, AChildOfAForkHurtsNothing) {
  Side a("a", 4096), b("b", 4096);
  a.Load(&b);
  ASSERT_EQ(a.Move(abi::kRead, "b", {{0, 0, 16}}), abi::kSuccess);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    a.engine.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(a.Move(abi::kWrite, "b", {{0, 0, 16}}, "still here"), abi::kSuccess);
  EXPECT_EQ(b.TakeNotes(1).size(), 1u);
}

// The other process of the tests below: serves memory and prints what it has published.
TEST(ChildTest, DISABLED_Serves) {
  Side side("b", 16 << 20);
  const Side::Metadata metadata = side.Publish();
  printf("\n@%s\n@%s\n@%zx\n@%zx\n", metadata.connection.c_str(), metadata.text.c_str(),
         metadata.address, metadata.bytes);
  fflush(stdout);
  // It ends with its parent, or after a minute.
  for (int i = 0; i < 600 && getppid() != 1; ++i) usleep(100'000);
}

class Child {
 public:
  Child() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl("/proc/self/exe", "child", "--gtest_filter=ChildTest.DISABLED_Serves",
            "--gtest_also_run_disabled_tests", nullptr);
      _exit(1);
    }
    close(ends[1]);
    FILE* const file = fdopen(ends[0], "r");
    char line[4096];
    std::vector<std::string> words;
    while (words.size() < 4 && fgets(line, sizeof(line), file) != nullptr) {
      if (line[0] == '@') words.emplace_back(line + 1, strcspn(line, "\n") - 1);
    }
    fclose(file);
    EXPECT_EQ(words.size(), 4u);
    if (words.size() == 4) {
      metadata = {words[0], words[1], std::stoul(words[2], nullptr, 16),
                  std::stoul(words[3], nullptr, 16)};
    }
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Signal(int number) { kill(pid_, number); }

  Side::Metadata metadata;

 private:
  pid_t pid_;
};

TEST(ProcessTest, APeerThatIsKilledEndsWhatIsUnderWay) {
  for (const abi::Operation operation : {abi::kRead, abi::kWrite}) {
    Side a("a", 16 << 20);
    Child b;
    a.Load("b", b.metadata);
    ASSERT_EQ(a.Move(operation, "b", Blocks(100, 4096, 1)), abi::kSuccess);
    b.Signal(SIGSTOP);  // So that it surely is under way.
    abi::RequestHandle *request = nullptr, *later = nullptr;
    ASSERT_EQ(a.Prepare(operation, "b", Blocks(100, 64 << 10, 2), &request), abi::kSuccess);
    ASSERT_EQ(a.Prepare(operation, "b", Blocks(100, 64 << 10, 3), &later), abi::kSuccess);
    EXPECT_EQ(a.Post(request), abi::kInProgress);
    b.Kill();
    EXPECT_EQ(a.Await(request), abi::kRemoteGone);
    const abi::Status posted = a.Post(later, "?");
    EXPECT_EQ(posted == abi::kInProgress ? a.Await(later) : posted, abi::kRemoteGone);
    a.Release(request);
    a.Release(later);
  }
}

// Little is copied in the post, under a grant that the first READ asks for; so it needs no target.
TEST(ProcessTest, ASmallReadEndsInItsPost) {
  Side a("a", 16 << 20);
  Child b;
  a.Load("b", b.metadata);
  abi::RequestHandle* request = nullptr;
  ASSERT_EQ(a.Prepare(abi::kRead, "b", Blocks(16, 4096, 1), &request), abi::kSuccess);
  abi::Status posted = abi::kInProgress;
  for (int times = 0; times < 100 && posted != abi::kSuccess; ++times) {
    std::fill(a.memory.begin(), a.memory.end(), 0x5a);
    b.Signal(SIGSTOP);
    posted = a.Post(request);
    b.Signal(SIGCONT);
    if (posted == abi::kInProgress) {
      ASSERT_EQ(a.Await(request), abi::kSuccess);
    }
  }
  EXPECT_EQ(posted, abi::kSuccess);
  EXPECT_EQ(std::count(a.memory.begin(), a.memory.end(), 0x5a),
            static_cast<long>(a.memory.size() - 16 * 4096));
  a.Release(request);
  // And when the target is gone, it is told.
  b.Kill();
  EXPECT_EQ(a.Move(abi::kRead, "b", Blocks(16, 4096, 2)), abi::kRemoteGone);
}

TEST(ProcessTest, AReleaseDoesNotWaitForAReadsPeerThatStandsStill) {
  Side a("a", 16 << 20, {{"patience", "30s"}});
  Child b;
  a.Load("b", b.metadata);
  ASSERT_EQ(a.Move(abi::kRead, "b", Blocks(100, 4096, 1)), abi::kSuccess);
  b.Signal(SIGSTOP);
  abi::RequestHandle* request = nullptr;
  ASSERT_EQ(a.Prepare(abi::kRead, "b", Blocks(100, 64 << 10, 2), &request), abi::kSuccess);
  EXPECT_EQ(a.Post(request), abi::kInProgress);
  const auto began = std::chrono::steady_clock::now();
  a.Release(request);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  std::fill(a.memory.begin(), a.memory.end(), 0x5a);
  b.Signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(std::count(a.memory.begin(), a.memory.end(), 0x5a), static_cast<long>(a.memory.size()));
}

}  // namespace
}  // namespace tryst::nixl
