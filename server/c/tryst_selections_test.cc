// Selections, groups and regions of the C interface, of one worker with itself.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "gtest/gtest.h"
#include "server/c/status_code.h"
#include "server/c/tryst_v1.h"

namespace {

constexpr int64_t kHungMs = 30'000;

class SelectionsTest : public testing::Test {
 protected:
  SelectionsTest() {
    const char* settings[] = {"--job=self", "--listen=127.0.0.1:0", "--insecure", "--open_cluster",
                              "--nic=soft"};
    EXPECT_EQ(Code(tryst_server_create(settings, 5, &server_)), TRYST_OK);
    EXPECT_EQ(Code(tryst_server_start(server_)), TRYST_OK);
    EXPECT_EQ(Code(tryst_group_create(&group_)), TRYST_OK);
    pool_ = Bytes("aaaabbbbccccdddd");
    into_ = Bytes("................");
  }
  ~SelectionsTest() override {
    tryst_group_free(group_);
    tryst_tensor_free(pool_);
    tryst_tensor_free(into_);
    tryst_server_free(server_);
  }
  static tryst_tensor* Bytes(const std::string& text) {
    const int64_t dims[] = {static_cast<int64_t>(text.size())};
    tryst_tensor* tensor = nullptr;
    EXPECT_EQ(Code(tryst_tensor_allocate(TRYST_UINT8, dims, 1, &tensor)), TRYST_OK);
    memcpy(tryst_tensor_data(tensor), text.data(), text.size());
    return tensor;
  }
  static std::string TextOf(tryst_tensor* tensor) {
    return {static_cast<const char*>(tryst_tensor_data(tensor)), tryst_tensor_bytes(tensor)};
  }
  std::string Key(const std::string& edge) {
    const std::string device = absl::StrCat(tryst_server_worker(server_), "/device:CPU:0");
    char* key = nullptr;
    EXPECT_EQ(Code(tryst_key(device.c_str(), tryst_server_incarnation(server_), device.c_str(),
                             edge.c_str(), 0, 0, &key)),
              TRYST_OK);
    std::string text = key;
    tryst_string_free(key);
    return text;
  }
  static tryst_selection Blocks(const std::vector<uint32_t>& blocks) {
    return {TRYST_SELECT_INDICES, 0, 4, blocks.data(), blocks.size()};
  }
  tryst_code Start(const std::string& edge, const tryst_selection* wanted,
                   const tryst_selection* landing, tryst_group* group, tryst_op** op,
                   int64_t timeout_ms = -1) {
    return Code(tryst_gather_start(server_, 1, Key(edge).c_str(), wanted, into_, landing, nullptr,
                                   timeout_ms, group, nullptr, nullptr, op),
                &message_);
  }
  tryst_code EndOf(tryst_op* op) {
    EXPECT_EQ(tryst_op_wait(op, kHungMs), 1);
    tryst_tensor* tensor = nullptr;
    int is_dead = 0;
    const tryst_code code = Code(tryst_op_result(op, 0, &tensor, &is_dead), &message_);
    if (code == TRYST_OK) {
      EXPECT_EQ(tryst_tensor_data(tensor), tryst_tensor_data(into_));
    }
    tryst_tensor_free(tensor);
    tryst_op_free(op);
    return code;
  }

  tryst_server* server_ = nullptr;
  tryst_group* group_ = nullptr;
  tryst_tensor* pool_ = nullptr;
  tryst_tensor* into_ = nullptr;
  std::string message_;
  const std::vector<uint32_t> from_{3, 1}, to_{0, 2};
};

TEST_F(SelectionsTest, BlocksOfOneLandInBlocksOfTheOther) {
  const tryst_selection from = Blocks(from_), to = Blocks(to_);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, nullptr, &op), TRYST_OK) << message_;
  ASSERT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &from, nullptr)),
            TRYST_OK);
  EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
  EXPECT_EQ(TextOf(into_), "dddd....bbbb....");
}

TEST_F(SelectionsTest, RunsAndSpansAreSelectionsToo) {
  const tryst_run run = {0, 1, 4, 4};
  const tryst_span spans[] = {{8, 2}, {14, 2}};
  const tryst_selection from = {TRYST_SELECT_RUNS, 0, 0, &run, 1};
  const tryst_selection to = {TRYST_SELECT_SPANS, 0, 0, spans, 2};
  ASSERT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &from, nullptr)),
            TRYST_OK);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, group_, &op), TRYST_OK) << message_;
  EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
  EXPECT_EQ(TextOf(into_), "........ab....cd");
}

TEST_F(SelectionsTest, BoxesAreSelectionsToo) {
  // Columns 1 and 2 of four rows of four go where rows are five apart.
  const uint64_t extent[] = {4, 2}, rows[] = {4, 1}, pitch[] = {5, 1};
  const tryst_box from_box = {1, 1, extent, rows, 2}, to_box = {0, 1, extent, pitch, 2};
  const tryst_selection from = {TRYST_SELECT_BOXES, 0, 0, &from_box, 1};
  const tryst_selection to = {TRYST_SELECT_BOXES, 0, 0, &to_box, 1};
  memcpy(tryst_tensor_data(pool_), "0123456789abcdef", 16);
  ASSERT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &from, nullptr)),
            TRYST_OK);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, nullptr, &op), TRYST_OK) << message_;
  EXPECT_EQ(EndOf(op), TRYST_INVALID_ARGUMENT) << "it needs 17 bytes";
  const uint64_t transposed[] = {1, 4};
  const tryst_box columns[] = {{0, 1, extent, transposed, 2}};
  const tryst_selection into = {TRYST_SELECT_BOXES, 0, 0, columns, 1};
  ASSERT_EQ(Start("a", nullptr, &into, nullptr, &op), TRYST_OK) << message_;
  EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
  EXPECT_EQ(TextOf(into_), "159d26ae........");
  tryst_box bad = columns[0];
  bad.strides = nullptr;
  const tryst_selection wrong = {TRYST_SELECT_BOXES, 0, 0, &bad, 1};
  EXPECT_EQ(Start("a", nullptr, &wrong, nullptr, &op), TRYST_INVALID_ARGUMENT) << message_;
}

TEST_F(SelectionsTest, SpansHaveDigests) {
  const tryst_selection from = Blocks(from_), to = Blocks(to_);
  tryst_options sends = {}, receives = {};
  sends.flags = TRYST_SEND_DIGESTS;
  receives.flags = TRYST_RECV_DIGESTS | TRYST_RECV_PARTIAL;
  ASSERT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &from, &sends)),
            TRYST_OK);
  tryst_op* op = nullptr;
  ASSERT_EQ(Code(tryst_gather_start(server_, 1, Key("a").c_str(), nullptr, into_, &to, &receives,
                                    -1, group_, nullptr, nullptr, &op)),
            TRYST_OK);
  ASSERT_EQ(tryst_op_wait(op, kHungMs), 1);
  EXPECT_EQ(tryst_op_failed_spans(op, nullptr, 0), 0u);
  uint32_t digests[2] = {};
  EXPECT_EQ(tryst_op_span_digests(op, digests, 1), 2u);
  EXPECT_EQ(digests[0], tryst::Crc32c(0, "dddd", 4));
  EXPECT_EQ(digests[1], 0u) << "there was room for one";
  EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
  EXPECT_EQ(TextOf(into_), "dddd....bbbb....");

  sends.flags = TRYST_RECV_DIGESTS;
  EXPECT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &from, &sends)),
            TRYST_INVALID_ARGUMENT);
  receives.flags = TRYST_RECV_RECURRING;
  EXPECT_EQ(Code(tryst_gather_start(server_, 1, Key("a").c_str(), nullptr, into_, &to, &receives,
                                    -1, group_, nullptr, nullptr, &op)),
            TRYST_INVALID_ARGUMENT);
}

TEST_F(SelectionsTest, WhatHasFailedHasNoSpans) {
  const tryst_selection to = Blocks(to_);
  tryst_op* op = nullptr;
  for (const bool late : {false, true}) {  // Before the group is cancelled, and after.
    ASSERT_EQ(Start("a", nullptr, &to, group_, &op), TRYST_OK) << message_;
    if (!late) {
      EXPECT_EQ(tryst_op_failed_spans(op, nullptr, 0), 0u) << "it is under way";
    }
    tryst_group_cancel(group_);
    ASSERT_EQ(tryst_op_wait(op, kHungMs), 1);
    uint32_t failed[2] = {9, 9};
    EXPECT_EQ(tryst_op_failed_spans(op, failed, 2), 2u);
    EXPECT_EQ(failed[0] + 10 * failed[1], 10u);
    EXPECT_EQ(tryst_op_span_digests(op, failed, 2), 0u);
    EXPECT_EQ(EndOf(op), TRYST_CANCELLED);
  }
}

TEST_F(SelectionsTest, WhatIsWrongIsSaid) {
  const tryst_selection good = Blocks(to_);
  tryst_selection bad = good;
  bad.kind = 9;
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &bad, nullptr, &op), TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "kind 9")) << message_;
  bad = good;
  bad.items = nullptr;
  EXPECT_EQ(Start("a", nullptr, &bad, nullptr, &op), TRYST_INVALID_ARGUMENT);
  bad = good;
  bad.reserved = 1;
  EXPECT_EQ(Start("a", nullptr, &bad, nullptr, &op), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(op, nullptr);
  const std::vector<uint32_t> twice = {1, 1};
  bad = Blocks(twice);
  ASSERT_EQ(Start("a", nullptr, &bad, nullptr, &op), TRYST_OK);
  EXPECT_EQ(EndOf(op), TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "twice")) << message_;
  tryst_options options = {};
  options.flags = TRYST_SEND_COPY;
  EXPECT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &good, &options)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), nullptr, &good, nullptr)),
            TRYST_INVALID_ARGUMENT);
  options.flags = 0;
  options.has_stream = 1;
  options.gpu = 5;
  EXPECT_EQ(Code(tryst_send_selected(server_, 1, Key("a").c_str(), pool_, &good, &options)),
            TRYST_FAILED_PRECONDITION);
  EXPECT_EQ(Code(tryst_gather_start(server_, 1, Key("a").c_str(), nullptr, into_, &good, &options,
                                    -1, nullptr, nullptr, nullptr, &op)),
            TRYST_FAILED_PRECONDITION);
  EXPECT_EQ(TextOf(into_), "................");
}

TEST_F(SelectionsTest, AGroupIsFencedWhenItsReceivesHaveEnded) {
  const tryst_selection to = Blocks(to_);
  tryst_op *a = nullptr, *b = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, group_, &a), TRYST_OK);
  ASSERT_EQ(Start("b", nullptr, &to, group_, &b, 1), TRYST_OK);
  EXPECT_EQ(EndOf(b), TRYST_DEADLINE_EXCEEDED);
  while (tryst_group_under_way(group_) > 1) std::this_thread::yield();  // It counts a bit later.
  EXPECT_EQ(tryst_group_fenced(group_, 1), 0) << "nobody has cancelled it";
  EXPECT_EQ(tryst_group_report_json(group_), nullptr);
  tryst_group_cancel(group_);
  EXPECT_EQ(tryst_group_fenced(group_, kHungMs), 1);
  EXPECT_EQ(EndOf(a), TRYST_CANCELLED);
  char* report = tryst_group_report_json(group_);
  EXPECT_TRUE(absl::StrContains(report, "\"cancelled\":1,\"failed\":1,")) << report;
  tryst_string_free(report);
  tryst_op* late = nullptr;
  ASSERT_EQ(Start("c", nullptr, &to, group_, &late), TRYST_OK);
  EXPECT_EQ(EndOf(late), TRYST_CANCELLED);
  tryst_group_cancel(group_);
  EXPECT_EQ(tryst_group_fenced(group_, 0), 1);
}

TEST_F(SelectionsTest, AnOperationThatIsFreedIsCancelled) {
  const tryst_selection to = Blocks(to_);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, group_, &op), TRYST_OK);
  tryst_op_free(op);
  EXPECT_EQ(tryst_group_under_way(group_), 0u);
}

TEST_F(SelectionsTest, RegionsAreFetchedWithoutASend) {
  tryst_region* region = nullptr;
  const char* readers[] = {"/job:self"};
  ASSERT_EQ(Code(tryst_region_open(server_, "l1", pool_, readers, 1, &region), &message_), TRYST_OK)
      << message_;
  const tryst_selection from = Blocks(from_), to = Blocks(to_);
  for (const char* const edge : {"|region|l1", "|region|l1|"}) {
    memset(tryst_tensor_data(into_), '.', 16);
    tryst_op* op = nullptr;
    ASSERT_EQ(Start(edge, &from, &to, group_, &op), TRYST_OK) << message_;
    EXPECT_EQ(EndOf(op), TRYST_OK) << message_;
    EXPECT_EQ(TextOf(into_), "dddd....bbbb....");
  }
  EXPECT_EQ(tryst_region_close(region, kHungMs), 1);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("|region|l1", &from, &to, nullptr, &op), TRYST_OK);
  EXPECT_EQ(EndOf(op), TRYST_UNAVAILABLE) << message_;
  tryst_region_free(region);
  ASSERT_EQ(Start("not a region", &from, &to, nullptr, &op), TRYST_OK);
  EXPECT_EQ(EndOf(op), TRYST_INVALID_ARGUMENT) << message_;
}

TEST_F(SelectionsTest, AChildOfAForkHurtsNothing) {
  tryst_region* region = nullptr;
  ASSERT_EQ(Code(tryst_region_open(server_, "l1", pool_, nullptr, 0, &region)), TRYST_OK);
  const tryst_selection to = Blocks(to_);
  tryst_op* op = nullptr;
  ASSERT_EQ(Start("a", nullptr, &to, group_, &op), TRYST_OK);
  const pid_t child = fork();
  if (child == 0) {
    tryst_group_cancel(group_);
    const bool fenced = tryst_group_fenced(group_, -1) == 1;
    const bool closed = tryst_region_close(region, -1) == 1;
    tryst_region_free(region);
    tryst_group_free(group_);
    _exit(fenced && closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tryst_group_under_way(group_), 1u);
  tryst_op_free(op);
  tryst_region_free(region);
}

}  // namespace
