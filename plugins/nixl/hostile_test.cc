// A peer that says whatever it likes to an agent: it gets an error, and makes the agent hold
// little.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "plugins/nixl/engine.h"

namespace tryst::nixl {
namespace {

constexpr int64_t kHungMs = 20'000;

uint64_t ResidentKb() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4;
}

class HostileTest : public testing::Test {
 protected:
  HostileTest() : memory_(1 << 20, '.') {
    abi::Parameters parameters = {{"patience", "2s"}};
    abi::EngineOptions options;
    options.agent = "victim";
    options.parameters = &parameters;
    engine_ = std::make_unique<TrystEngine>(options);
    EXPECT_FALSE(engine_->failed());
    const abi::Blob blob = {reinterpret_cast<uintptr_t>(memory_.data()), memory_.size(), 0, ""};
    EXPECT_EQ(engine_->Register(blob, abi::kDram, own_), abi::kSuccess);
    std::string text;
    EXPECT_EQ(engine_->ConnectionInfo(text), abi::kSuccess);
    victim_ = *ReadPeerName(text);
    EXPECT_EQ(engine_->PublicData(own_, text), abi::kSuccess);
    region_ = *ReadRegionId(text);
    auto settings = TrystEngine::SettingsOf(parameters);
    auto peer = Worker::Start(*settings, [](auto&&...) {});
    EXPECT_TRUE(peer.ok()) << peer.status();
    peer_ = *std::move(peer);
    EXPECT_TRUE(peer_->AddPeer(victim_).ok());
  }
  ~HostileTest() override {
    peer_ = nullptr;
    EXPECT_EQ(engine_->Deregister(own_), abi::kSuccess);
  }
  Owned<tryst_op> Start(const std::string& text) {
    const std::string key = peer_->Key(victim_, absl::StrCat("|nixl|", text));
    const tryst_recv_item item = {key.c_str(), nullptr};
    tryst_op* op = nullptr;
    const absl::Status started = StatusOf(
        tryst_recv_start(peer_->server(), 1, &item, 1, nullptr, -1, nullptr, nullptr, &op));
    EXPECT_TRUE(started.ok()) << started << " " << text.substr(0, 100);
    return Owned<tryst_op>(op);
  }
  absl::Status EndOf(const Owned<tryst_op>& op) {
    EXPECT_EQ(tryst_op_wait(op.get(), kHungMs), 1);
    return nixl::EndOf(op.get());
  }
  std::string Asked(const std::string& verb, const std::string& record) {
    Question question;
    question.verb = verb;
    question.asker = peer_->name();
    question.record = record;
    return WriteQuestion(question);
  }
  absl::Status Ask(const std::string& verb, const std::string& record) {
    auto question = peer_->AskPeer(victim_, verb, record, -1);
    EXPECT_TRUE(question.ok()) << question.status();
    EXPECT_TRUE((*question)->Ended(kHungMs));
    return (*question)->status();
  }
  Put PutOf(std::vector<PutSpan> spans) {
    Put put;
    put.id = ++last_put_;
    put.parts = {{region_, 1, std::move(spans)}};
    return put;
  }
  absl::Status Send(const Put& put) {
    return Ask("put", WritePut(put.id, "hostile", nullptr, WritePutParts(put.parts)));
  }

  std::string memory_;
  std::unique_ptr<TrystEngine> engine_;
  abi::MemoryHandle* own_ = nullptr;
  PeerName victim_;
  uint64_t region_ = 0;
  uint64_t last_put_ = 0;
  std::unique_ptr<Worker> peer_;
};

TEST_F(HostileTest, TextsThatAreNoQuestionsAreRefused) {
  const std::string me = absl::StrCat(peer_->name().address, "|1|");
  for (const std::string& text :
       {std::string(), std::string("put"), std::string("|||"), absl::StrCat("put|", me, "zz"),
        absl::StrCat("put|", me, "0"), absl::StrCat("put|", me, "00"),
        absl::StrCat("note|", me, std::string(64, 'f')), absl::StrCat("stop|", me, "00"),
        absl::StrCat("put|", me, "@1,"), absl::StrCat("put|", me, "@,5"),
        absl::StrCat("put|", me, "@1,99999999999999999999"),
        absl::StrCat("put|", me, "@1,4000000000"), absl::StrCat("put|", me, "@1,-5"),
        absl::StrCat("what|", me), std::string("put|nowhere at all|1|00"), std::string("record|zz"),
        std::string("record|7"), absl::StrCat("put||1|00")}) {
    EXPECT_FALSE(EndOf(Start(text)).ok()) << text;
  }
  EXPECT_TRUE(Ask("here", "").ok());
}

TEST_F(HostileTest, WritesOutsideOfMemoryTouchNothing) {
  const uint64_t size = memory_.size();
  for (const PutSpan& span : {PutSpan{size - 8, 0, 16}, PutSpan{UINT64_MAX - 8, 0, 16},
                              PutSpan{0, 0, UINT64_MAX}, PutSpan{size, 0, 1}}) {
    EXPECT_EQ(Send(PutOf({span})).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Send(PutOf({{0, 0, 16}, {8, 0, 16}})).code(), absl::StatusCode::kInvalidArgument);
  Put put = PutOf({{0, 0, 16}});
  ++put.parts[0].target;
  EXPECT_EQ(Send(put).code(), absl::StatusCode::kNotFound);
  // The asker has no such region.
  EXPECT_EQ(Send(PutOf({{0, 0, 16}})).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(memory_, std::string(memory_.size(), '.'));
}

TEST_F(HostileTest, AWriteThatWasStoppedBeforeItCameDoesNotBegin) {
  EXPECT_TRUE(Ask("stop", WriteNumber(1)).ok());
  EXPECT_EQ(Send(PutOf({{0, 0, 16}})).code(), absl::StatusCode::kCancelled);
  for (uint64_t id = 0; id < 10'000; ++id) ASSERT_TRUE(Ask("stop", WriteNumber(id)).ok());
}

TEST_F(HostileTest, ABatchOfNotesThatComesAgainIsTakenOnce) {
  for (const uint64_t number : {1, 1, 2, 1, 2}) {
    EXPECT_TRUE(Ask("note", WriteNotes({number, "hostile", {absl::StrCat(number)}})).ok());
  }
  abi::Notifications notes;
  EXPECT_EQ(engine_->TakeNotifications(notes), abi::kSuccess);
  EXPECT_EQ(notes, (abi::Notifications{{"hostile", "1"}, {"hostile", "2"}}));
}

// Else bytes would land after a release.
TEST_F(HostileTest, WhoMayHaveNothingMoreHeldMayStopAWrite) {
  std::vector<std::unique_ptr<Worker::Question>> questions;
  const auto tell = [&](const std::string& note) {
    const Notes notes = {questions.size() + 1, "hostile", {note}};
    auto question = peer_->AskPeer(victim_, "note", WriteNotes(notes), -1);
    ASSERT_TRUE(question.ok());
    questions.push_back(*std::move(question));
  };
  for (int i = 0; i < 8; ++i) {
    tell(std::string(8 << 20, 'x'));
    ASSERT_TRUE(questions.back()->Ended(kHungMs));
  }
  // The inbox is full, and the others wait for it.
  const auto is_refused = [](const auto& question) {
    return question->Ended(0) && question->status().code() == absl::StatusCode::kResourceExhausted;
  };
  for (int i = 0; i < 4200; ++i) tell("");
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kHungMs);
  while (std::none_of(questions.begin(), questions.end(), is_refused)) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
  }
  EXPECT_TRUE(Ask("stop", WriteNumber(7)).ok());
}

// A target that refuses to hear of a stop, and then has heard of it.
TEST(RefusedStopTest, AWriteThatIsReleasedIsStoppedHoweverOftenThatIsRefused) {
  constexpr int kRefused = 4;
  std::atomic<int> stops{0};
  std::vector<nixl::Ask> puts;
  abi::Parameters parameters = {{"patience", "2s"}};
  auto target =
      Worker::Start(*TrystEngine::SettingsOf(parameters),
                    [&](Worker*, const std::string& verb, auto&&, auto&&, nixl::Ask ask, auto&&) {
                      if (verb == "put") return puts.push_back(std::move(ask));
                      if (++stops > kRefused) return ask.End(absl::OkStatus());
                      ask.End(absl::ResourceExhaustedError("not now"));
                    });
  ASSERT_TRUE(target.ok()) << target.status();
  abi::EngineOptions options;
  options.agent = "writer";
  options.parameters = &parameters;
  TrystEngine writer(options);
  std::string memory(4096, '.');
  const abi::Blob blob = {reinterpret_cast<uintptr_t>(memory.data()), memory.size(), 0, ""};
  const abi::Blob there = {blob.address, blob.bytes, 0, WriteRegionId(5)};
  abi::MemoryHandle *own = nullptr, *remote = nullptr;
  ASSERT_EQ(writer.Register(blob, abi::kDram, own), abi::kSuccess);
  ASSERT_EQ(writer.LoadConnectionInfo("target", WritePeerName((*target)->name())), abi::kSuccess);
  ASSERT_EQ(writer.LoadRemote(there, abi::kDram, "target", remote), abi::kSuccess);
  abi::Spans mine(abi::kDram), theirs(abi::kDram);
  mine.items.push_back({blob.address, blob.bytes, 0, own});
  theirs.items.push_back({there.address, there.bytes, 0, remote});
  abi::RequestHandle* request = nullptr;
  ASSERT_EQ(writer.Prepare(abi::kWrite, mine, theirs, "target", request, nullptr), abi::kSuccess);
  EXPECT_EQ(writer.Post(abi::kWrite, mine, theirs, "target", request, nullptr), abi::kInProgress);
  for (int times = 0; writer.Release(request) != abi::kSuccess; ++times) ASSERT_LT(times, 2);
  EXPECT_EQ(stops, kRefused + 1);
  writer.Unload(remote);
  EXPECT_EQ(writer.Deregister(own), abi::kSuccess);
  (*target)->Stop();
}

// Nobody takes the notifications, and the flood goes on.
TEST_F(HostileTest, AFloodIsBounded) {
  const uint64_t before = ResidentKb();
  std::vector<std::unique_ptr<Worker::Question>> questions;
  const std::string note(1 << 20, 'x');
  for (uint64_t i = 1; i <= 400; ++i) {
    auto question = peer_->AskPeer(victim_, "note", WriteNotes({i, "hostile", {note}}), -1);
    ASSERT_TRUE(question.ok());
    questions.push_back(*std::move(question));
  }
  // 64 of them are in the inbox, and 63 may wait for it.

  size_t refused = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kHungMs);
  while (refused < 200 && std::chrono::steady_clock::now() < until) {
    refused = 0;
    for (const auto& question : questions) {
      if (question->Ended(0)) {
        refused += question->status().code() == absl::StatusCode::kResourceExhausted;
      }
    }
  }
  EXPECT_GE(refused, 200u);
  // The asker's 400 records are in this process, too.
  EXPECT_LT(ResidentKb() - before, 800u << 10);
  questions.clear();
  abi::Notifications notes;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(engine_->TakeNotifications(notes), abi::kSuccess);
  EXPECT_GE(notes.size(), 64u);
  EXPECT_TRUE(Ask("here", "").ok());
}

}  // namespace
}  // namespace tryst::nixl
