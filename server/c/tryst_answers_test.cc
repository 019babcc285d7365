// Answers of the C interface between two workers.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/c/status_code.h"
#include "server/c/tryst_v1.h"

namespace {

constexpr int64_t kHungMs = 30'000;

tryst_server* StartServer(const std::string& job, bool open = true) {
  std::vector<std::string> settings = {absl::StrCat("--job=", job), "--listen=127.0.0.1:0",
                                       "--insecure", "--nic=soft"};
  settings.push_back(open ? "--open_cluster"
                          : absl::StrCat("--cluster_spec=", job, "=127.0.0.1:0"));
  std::vector<const char*> words;
  for (const std::string& setting : settings) words.push_back(setting.c_str());
  tryst_server* server = nullptr;
  std::string message;
  EXPECT_EQ(Code(tryst_server_create(words.data(), words.size(), &server), &message), TRYST_OK)
      << message;
  EXPECT_EQ(Code(tryst_server_start(server), &message), TRYST_OK) << message;
  return server;
}

class AnswersTest : public testing::Test {
 protected:
  AnswersTest() : asker_(StartServer("asker")), owner_(StartServer("owner")) {
    const std::string peer =
        absl::StrCat(tryst_server_worker(owner_), "@", tryst_server_address(owner_));
    EXPECT_EQ(Code(tryst_server_add_peer(asker_, peer.c_str()), &message_), TRYST_OK) << message_;
    EXPECT_EQ(Code(tryst_answers_open(owner_, "test", &OnAsk, this, &answers_), &message_),
              TRYST_OK)
        << message_;
  }
  ~AnswersTest() override {
    tryst_answers_free(answers_);
    for (tryst_ask* const ask : kept_) tryst_ask_answer(ask, nullptr, TRYST_CANCELLED, "");
    tryst_server_free(asker_);
    tryst_server_free(owner_);
  }
  static void OnAsk(void* arg, tryst_ask* ask, const char* peer, const char* text) {
    auto* const test = static_cast<AnswersTest*>(arg);
    test->peer_ = peer;
    if (strcmp(text, "fail") == 0) {
      return tryst_ask_answer(ask, nullptr, TRYST_NOT_FOUND, "not here");
    }
    if (strcmp(text, "nothing") == 0) return tryst_ask_answer(ask, nullptr, TRYST_OK, nullptr);
    if (strcmp(text, "later") == 0) {
      test->kept_.push_back(ask);
      test->asked_.store(true);
      return;
    }
    Answer(ask, text);
  }
  static void Answer(tryst_ask* ask, const std::string& text) {
    const int64_t dims[] = {static_cast<int64_t>(text.size())};
    tryst_tensor* tensor = nullptr;
    EXPECT_EQ(Code(tryst_tensor_allocate(TRYST_UINT8, dims, 1, &tensor)), TRYST_OK);
    memcpy(tryst_tensor_data(tensor), text.data(), text.size());
    tryst_ask_answer(ask, tensor, TRYST_OK, nullptr);
    tryst_tensor_free(tensor);
  }
  tryst_op* Ask(const std::string& edge, int64_t timeout_ms = -1) {
    char* key = nullptr;
    EXPECT_EQ(Code(tryst_key(absl::StrCat(tryst_server_worker(owner_), "/device:CPU:0").c_str(),
                             tryst_server_incarnation(owner_),
                             absl::StrCat(tryst_server_worker(asker_), "/device:CPU:0").c_str(),
                             edge.c_str(), 0, 0, &key)),
              TRYST_OK);
    const tryst_recv_item item = {key, nullptr};
    tryst_op* op = nullptr;
    EXPECT_EQ(
        Code(tryst_recv_start(asker_, 1, &item, 1, nullptr, timeout_ms, nullptr, nullptr, &op)),
        TRYST_OK);
    tryst_string_free(key);
    return op;
  }
  tryst_code EndOf(tryst_op* op, std::string* text = nullptr) {
    EXPECT_EQ(tryst_op_wait(op, kHungMs), 1);
    tryst_tensor* tensor = nullptr;
    int is_dead = 0;
    const tryst_code code = Code(tryst_op_result(op, 0, &tensor, &is_dead), &message_);
    if (text != nullptr && tensor != nullptr) {
      text->assign(static_cast<const char*>(tryst_tensor_data(tensor)), tryst_tensor_bytes(tensor));
    }
    tryst_tensor_free(tensor);
    tryst_op_free(op);
    return code;
  }
  void AwaitAsked() {
    while (!asked_.load()) std::this_thread::yield();
  }

  tryst_server *const asker_, *const owner_;
  tryst_answers* answers_ = nullptr;
  std::string message_;
  std::string peer_;
  std::vector<tryst_ask*> kept_;
  std::atomic<bool> asked_{false};
};

TEST_F(AnswersTest, APeerIsAnsweredAtOnceOrWithAFailure) {
  std::string text;
  EXPECT_EQ(EndOf(Ask("|test|hello"), &text), TRYST_OK) << message_;
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(peer_, "/job:asker/replica:0/task:0");
  EXPECT_EQ(EndOf(Ask("|test|fail")), TRYST_NOT_FOUND);
  EXPECT_TRUE(absl::StrContains(message_, "not here")) << message_;
  EXPECT_EQ(EndOf(Ask("|test|nothing")), TRYST_INTERNAL);
}

TEST_F(AnswersTest, AnAnswerMayComeLater) {
  tryst_op* const op = Ask("|test|later");
  AwaitAsked();
  EXPECT_EQ(tryst_op_wait(op, 0), 0);
  Answer(kept_[0], "now");
  kept_.clear();
  std::string text;
  EXPECT_EQ(EndOf(op, &text), TRYST_OK) << message_;
  EXPECT_EQ(text, "now");
}

TEST_F(AnswersTest, WhoGivesItsAskUpWaitsForNobody) {
  tryst_op* const op = Ask("|test|later");
  AwaitAsked();
  tryst_op_cancel(op);
  EXPECT_EQ(EndOf(op), TRYST_CANCELLED);
  EXPECT_EQ(EndOf(Ask("|test|later", 20)), TRYST_DEADLINE_EXCEEDED);
}

TEST_F(AnswersTest, NobodyIsAskedAfterTheEnd) {
  tryst_op* const op = Ask("|test|later");
  AwaitAsked();
  tryst_answers* another = nullptr;
  EXPECT_EQ(Code(tryst_answers_open(owner_, "test", &OnAsk, this, &another)), TRYST_ALREADY_EXISTS);
  tryst_answers_free(answers_);
  answers_ = nullptr;
  EXPECT_EQ(EndOf(Ask("|test|hello")), TRYST_UNAVAILABLE);
  Answer(kept_[0], "after the end");
  kept_.clear();
  EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
}

TEST_F(AnswersTest, WhatIsWrongIsSaid) {
  tryst_answers* answers = nullptr;
  for (const char* const name : {"", "a|b", "a;b"}) {
    EXPECT_EQ(Code(tryst_answers_open(owner_, name, &OnAsk, this, &answers)),
              TRYST_INVALID_ARGUMENT);
  }
  EXPECT_EQ(Code(tryst_answers_open(owner_, "region", &OnAsk, this, &answers)),
            TRYST_ALREADY_EXISTS);
  EXPECT_EQ(Code(tryst_answers_open(owner_, "x", nullptr, this, &answers)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(answers, nullptr);
  for (const char* const peer : {"", "/job:x/replica:0/task:0", "x@127.0.0.1:1"}) {
    EXPECT_EQ(Code(tryst_server_add_peer(asker_, peer)), TRYST_INVALID_ARGUMENT) << peer;
  }
  // One that is known keeps its address, and oneself is known.
  EXPECT_EQ(Code(tryst_server_add_peer(asker_, "/job:owner/replica:0/task:0@127.0.0.1:1")),
            TRYST_OK);
  EXPECT_EQ(Code(tryst_server_add_peer(asker_, "/job:asker/replica:0/task:0@127.0.0.1:1")),
            TRYST_OK);
  EXPECT_EQ(EndOf(Ask("|test|hello")), TRYST_OK) << message_;
  EXPECT_EQ(Code(tryst_server_add_peer(nullptr, "x")), TRYST_INVALID_ARGUMENT);
  tryst_answers_free(nullptr);
  tryst_ask_answer(nullptr, nullptr, TRYST_OK, nullptr);
}

TEST(AddPeerTest, AClosedClusterTakesNone) {
  tryst_server* const server = StartServer("alone", false);
  EXPECT_EQ(Code(tryst_server_add_peer(server, "/job:x/replica:0/task:0@127.0.0.1:1")),
            TRYST_FAILED_PRECONDITION);
  tryst_server_free(server);
}

}  // namespace
