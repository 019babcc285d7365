// Version 1 of the C interface: what tryst_v1.h promises and the examples do not show.
#include "server/c/tryst_v1.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/dlpack_abi.h"
#include "server/c/status_code.h"

namespace {

constexpr int64_t kHungMs = 30'000;

struct Old {
  tryst::dlpack::DLTensor tensor;
  int* deleted;
  void (*deleter)(Old*);
};
using New = tryst::dlpack::DLManagedTensorVersioned;

class V1 : public testing::Test {
 protected:
  V1() {
    const char* settings[] = {"--job=self", "--listen=127.0.0.1:0", "--insecure", "--open_cluster",
                              "--nic=soft"};
    EXPECT_EQ(Code(tryst_server_create(settings, 5, &server_)), TRYST_OK);
    EXPECT_EQ(Code(tryst_server_start(server_)), TRYST_OK);
    EXPECT_EQ(Code(tryst_queue_create(&queue_)), TRYST_OK);
  }
  ~V1() override {
    tryst_server_free(server_);
    tryst_queue_free(queue_);
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
  tryst_op* Start(const std::vector<std::string>& keys, tryst_queue* queue, void* tag = nullptr,
                  int64_t timeout_ms = -1) {
    std::vector<tryst_recv_item> items;
    for (const std::string& key : keys) items.push_back({key.c_str(), nullptr});
    tryst_op* op = nullptr;
    EXPECT_EQ(Code(tryst_recv_start(server_, 1, items.data(), items.size(), nullptr, timeout_ms,
                                    queue, tag, &op),
                   &message_),
              TRYST_OK)
        << message_;
    return op;
  }
  bool Readable() {
    pollfd ready = {tryst_queue_fd(queue_), POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
  }

  tryst_server* server_ = nullptr;
  tryst_queue* queue_ = nullptr;
  std::string message_;
};

TEST_F(V1, TheDescriptorIsReadableAsLongAsSomethingCanBeTaken) {
  int tags[3];
  tryst_op* ops[3];
  for (int i = 0; i < 3; ++i) ops[i] = Start({Key(absl::StrCat("k", i))}, queue_, &tags[i]);
  EXPECT_FALSE(Readable());
  tryst_op* taken[3];
  EXPECT_EQ(tryst_queue_take(queue_, taken, 3, 0), 0u);
  for (const int i : {2, 0, 1}) {
    ASSERT_EQ(Code(tryst_send(server_, 1, Key(absl::StrCat("k", i)).c_str(), nullptr)), TRYST_OK);
    ASSERT_TRUE(tryst_op_wait(ops[i], kHungMs));
  }
  EXPECT_TRUE(Readable());
  EXPECT_EQ(tryst_queue_take(queue_, taken, 2, 0), 2u);
  EXPECT_EQ(tryst_op_tag(taken[0]), &tags[2]);
  EXPECT_EQ(taken[1], ops[0]);
  EXPECT_TRUE(Readable());
  tryst_op_free(ops[1]);  // It is in the queue.
  EXPECT_FALSE(Readable());
  tryst_op_free(ops[0]);
  tryst_op_free(ops[2]);
}

// Plans of this server's own device, both ways.
class V1Plan : public V1 {
 protected:
  tryst_plan* Plan(const std::vector<const char*>& edges, tryst_code expected = TRYST_OK) {
    const std::string device = absl::StrCat(tryst_server_worker(server_), "/device:CPU:0");
    tryst_plan* plan = nullptr;
    EXPECT_EQ(Code(tryst_plan_create(server_, device.c_str(), tryst_server_incarnation(server_),
                                     device.c_str(), edges.data(), edges.size(), &plan),
                   &message_),
              expected)
        << message_;
    return plan;
  }
};

TEST_F(V1Plan, CarriesTheSameNamesStepAfterStep) {
  tryst_plan* const plan = Plan({"a", "b", "c"});
  ASSERT_NE(plan, nullptr);
  const int64_t dims[] = {2};
  tryst_tensor* sent[3] = {};
  tryst_tensor* into[3] = {};
  for (int i = 0; i < 2; ++i) {  // The third is dead.
    ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, dims, 1, &sent[i])), TRYST_OK);
    ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, dims, 1, &into[i])), TRYST_OK);
  }
  for (int64_t step = 1; step < 4; ++step) {
    for (int i = 0; i < 2; ++i) {
      static_cast<float*>(tryst_tensor_data(sent[i]))[1] = static_cast<float>(10 * step + i);
    }
    tryst_op* op = nullptr;
    ASSERT_EQ(Code(tryst_plan_recv_start(plan, step, into, nullptr, kHungMs, queue_, &op, &op)),
              TRYST_OK);
    ASSERT_EQ(Code(tryst_plan_send(plan, step, sent, nullptr)), TRYST_OK);
    ASSERT_EQ(tryst_op_wait(op, kHungMs), 1);
    for (size_t i = 0; i < 3; ++i) {
      tryst_tensor* got = nullptr;
      int is_dead = 0;
      ASSERT_EQ(Code(tryst_op_result(op, i, &got, &is_dead), &message_), TRYST_OK) << message_;
      EXPECT_EQ(is_dead, i == 2 ? 1 : 0);
      if (i == 2) continue;
      EXPECT_EQ(tryst_tensor_data(got), tryst_tensor_data(into[i]));
      EXPECT_EQ(static_cast<float*>(tryst_tensor_data(got))[1],
                static_cast<float>(10 * step + static_cast<int64_t>(i)));
      tryst_tensor_free(got);
    }
    tryst_op_free(op);
  }
  // The keys are those of the calls without a plan.
  ASSERT_EQ(Code(tryst_plan_send(plan, 9, sent, nullptr)), TRYST_OK);
  tryst_tensor* got = nullptr;
  ASSERT_EQ(Code(tryst_recv(server_, 9, Key("b").c_str(), nullptr, kHungMs, &got)), TRYST_OK);
  EXPECT_EQ(tryst_tensor_data(got), tryst_tensor_data(sent[1]));
  tryst_tensor_free(got);
  for (tryst_tensor* tensor : sent) tryst_tensor_free(tensor);
  for (tryst_tensor* tensor : into) tryst_tensor_free(tensor);
  tryst_plan_free(plan);
}

TEST_F(V1Plan, RefusesWhatIsNoKey) {
  EXPECT_EQ(Plan({}, TRYST_INVALID_ARGUMENT), nullptr);
  EXPECT_EQ(Plan({"a", "b;c"}, TRYST_INVALID_ARGUMENT), nullptr);
  EXPECT_EQ(Plan({"a", nullptr}, TRYST_INVALID_ARGUMENT), nullptr);
  tryst_plan* plan = nullptr;
  const char* edge = "a";
  EXPECT_EQ(Code(tryst_plan_create(server_, "nowhere", 1, "nowhere", &edge, 1, &plan), &message_),
            TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "full device name")) << message_;
  EXPECT_EQ(plan, nullptr);
  tryst_plan_free(nullptr);
  tryst_plan* const good = Plan({"a"});
  tryst_op* op = nullptr;
  const tryst_options unknown = {128, 0, 0, 0, nullptr};
  EXPECT_EQ(Code(tryst_plan_recv_start(good, 1, nullptr, &unknown, 0, nullptr, nullptr, &op)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(op, nullptr);
  tryst_plan_free(good);
}

TEST_F(V1, ACancelledReceiveTakesNothing) {
  for (const bool freed : {false, true}) {
    tryst_op* const op = Start({Key("a"), Key("b")}, queue_);
    tryst_tensor* tensor = nullptr;
    int is_dead = 0;
    EXPECT_EQ(Code(tryst_op_result(op, 0, &tensor, &is_dead)), TRYST_FAILED_PRECONDITION);
    if (freed) {
      tryst_op_free(op);
    } else {
      tryst_op_cancel(op);
      ASSERT_TRUE(tryst_op_wait(op, kHungMs));
      tryst_status* const status = tryst_op_result(op, 1, &tensor, &is_dead);
      EXPECT_EQ(tryst_status_is_derived(status), 1);
      EXPECT_EQ(Code(status), TRYST_CANCELLED);
      EXPECT_EQ(Code(tryst_op_result(op, 2, &tensor, &is_dead)), TRYST_OUT_OF_RANGE);
      tryst_op_free(op);
    }
    EXPECT_FALSE(Readable());
  }
  ASSERT_EQ(Code(tryst_send(server_, 1, Key("a").c_str(), nullptr)), TRYST_OK);
  tryst_tensor* got = nullptr;
  EXPECT_EQ(Code(tryst_recv(server_, 1, Key("a").c_str(), nullptr, kHungMs, &got)), TRYST_OK);
}

TEST_F(V1, AnAbortIsTheCauseAndWhatFollowsIsDerived) {
  tryst_op* const op = Start({Key("a")}, nullptr);
  ASSERT_EQ(Code(tryst_step_abort(server_, 1, TRYST_DATA_LOSS, "bad rows")), TRYST_OK);
  ASSERT_TRUE(tryst_op_wait(op, kHungMs));
  tryst_tensor* tensor = nullptr;
  int is_dead = 0;
  tryst_status* const status = tryst_op_result(op, 0, &tensor, &is_dead);
  EXPECT_EQ(tryst_status_is_derived(status), 1);
  EXPECT_EQ(Code(status, &message_), TRYST_DATA_LOSS);
  EXPECT_TRUE(absl::StrContains(message_, "bad rows")) << message_;
  tryst_op_free(op);
  EXPECT_EQ(tryst_status_is_derived(nullptr), 0);
}

TEST_F(V1, OptionsThatAreNotKnownAreRefused) {
  const std::string key = Key("a");
  const tryst_recv_item item = {key.c_str(), nullptr};
  tryst_options options = {};
  tryst_op* op = nullptr;
  options.flags = 64;
  EXPECT_EQ(Code(tryst_recv_start(server_, 1, &item, 1, &options, -1, nullptr, nullptr, &op)),
            TRYST_INVALID_ARGUMENT);
  options = {};
  options.has_stream = 1;
  options.gpu = 5;
  EXPECT_EQ(
      Code(tryst_recv_start(server_, 1, &item, 1, &options, -1, nullptr, nullptr, &op), &message_),
      TRYST_FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(message_, "GPU 5")) << message_;
  EXPECT_EQ(Code(tryst_recv_start(server_, 1, nullptr, 0, nullptr, -1, nullptr, nullptr, &op)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(op, nullptr);
}

TEST_F(V1, StringsTravel) {
  const char* texts[] = {"a", "", "x\0y"};
  const size_t sizes[] = {1, 0, 3};
  const int64_t dims[] = {3};
  tryst_tensor* strings = nullptr;
  ASSERT_EQ(Code(tryst_tensor_strings(texts, sizes, dims, 1, &strings)), TRYST_OK);
  const std::string key = Key("s");
  const tryst_send_item item = {key.c_str(), strings};
  ASSERT_EQ(Code(tryst_send_many(server_, 1, &item, 1, nullptr)), TRYST_OK);
  tryst_tensor_free(strings);
  tryst_tensor* got = nullptr;
  ASSERT_EQ(Code(tryst_recv(server_, 1, key.c_str(), nullptr, kHungMs, &got)), TRYST_OK);
  const char* text;
  size_t size;
  ASSERT_EQ(Code(tryst_tensor_string(got, 2, &text, &size)), TRYST_OK);
  EXPECT_EQ(std::string(text, size), std::string("x\0y", 3));
  EXPECT_EQ(Code(tryst_tensor_string(got, 3, &text, &size)), TRYST_OUT_OF_RANGE);
  EXPECT_STREQ(tryst_dtype_name(tryst_tensor_dtype(got)), "string");
  EXPECT_STREQ(tryst_dtype_name(-3), "invalid");
  DLManagedTensorVersioned* managed = nullptr;
  EXPECT_EQ(Code(tryst_tensor_to_dlpack(got, &managed)), TRYST_INVALID_ARGUMENT);
  tryst_tensor_free(got);
}

TEST_F(V1, StringsThatCannotBeAreRefused) {
  const char* texts[] = {"a", nullptr};
  const size_t sizes[] = {1, 1};
  const int64_t two[] = {2}, many[] = {int64_t{1} << 40};
  tryst_tensor* strings = nullptr;
  EXPECT_EQ(Code(tryst_tensor_strings(texts, sizes, many, 1, &strings)), TRYST_RESOURCE_EXHAUSTED);
  EXPECT_EQ(Code(tryst_tensor_strings(nullptr, sizes, many, 1, &strings)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_tensor_strings(texts, nullptr, many, 1, &strings)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_tensor_strings(texts, sizes, two, 1, &strings)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(strings, nullptr);
}

// Strings are objects, whose bytes must not be copied over others.
TEST_F(V1, StringsAreNotReceivedIntoOthers) {
  const char* texts[] = {"long enough to be in memory of its own", "b"};
  const size_t sizes[] = {std::strlen(texts[0]), 1};
  const int64_t dims[] = {2};
  tryst_tensor* sent = nullptr;
  tryst_tensor* into = nullptr;
  ASSERT_EQ(Code(tryst_tensor_strings(texts, sizes, dims, 1, &sent)), TRYST_OK);
  ASSERT_EQ(Code(tryst_tensor_strings(texts, sizes, dims, 1, &into)), TRYST_OK);
  const std::string key = Key("s");
  ASSERT_EQ(Code(tryst_send(server_, 1, key.c_str(), sent)), TRYST_OK);
  tryst_tensor_free(sent);
  const tryst_recv_item item = {key.c_str(), into};
  tryst_op* op = nullptr;
  EXPECT_EQ(
      Code(tryst_recv_start(server_, 1, &item, 1, nullptr, -1, nullptr, nullptr, &op), &message_),
      TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "strings")) << message_;
  tryst_op_free(op);
  tryst_tensor* got = nullptr;
  EXPECT_EQ(Code(tryst_recv(server_, 1, key.c_str(), into, kHungMs, &got)), TRYST_INVALID_ARGUMENT);
  tryst_tensor_free(into);
  ASSERT_EQ(Code(tryst_recv(server_, 1, key.c_str(), nullptr, kHungMs, &got)), TRYST_OK);
  const char* text;
  size_t size;
  ASSERT_EQ(Code(tryst_tensor_string(got, 0, &text, &size)), TRYST_OK);
  EXPECT_EQ(std::string(text, size), texts[0]) << "it was still there";
  tryst_tensor_free(got);
}

TEST_F(V1, DLPackOfBothLayouts) {
  float values[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[] = {2, 3};
  int deleted = 0;
  Old old = {{values, {1, 0}, 2, {2, 32, 1}, shape, nullptr, 0}, &deleted, [](Old* self) {
               ++*self->deleted;
             }};
  tryst_tensor* tensor = nullptr;
  old.tensor.dtype.lanes = 4;
  EXPECT_EQ(Code(tryst_tensor_from_dlpack0(reinterpret_cast<DLManagedTensor*>(&old), &tensor)),
            TRYST_UNIMPLEMENTED);
  EXPECT_EQ(deleted, 0) << "it is still the caller's";
  old.tensor.dtype.lanes = 1;
  ASSERT_EQ(Code(tryst_tensor_from_dlpack0(reinterpret_cast<DLManagedTensor*>(&old), &tensor)),
            TRYST_OK);
  EXPECT_EQ(tryst_tensor_data(tensor), values);
  EXPECT_EQ(tryst_tensor_is_read_only(tensor), 0);
  EXPECT_EQ(tryst_tensor_gpu(tensor), -1);

  DLManagedTensor* out = nullptr;
  ASSERT_EQ(Code(tryst_tensor_to_dlpack0(tensor, &out)), TRYST_OK);
  DLManagedTensorVersioned* versioned = nullptr;
  ASSERT_EQ(Code(tryst_tensor_to_dlpack(tensor, &versioned)), TRYST_OK);
  auto* const named = reinterpret_cast<New*>(versioned);
  EXPECT_EQ(named->flags & tryst::dlpack::kFlagReadOnly, 0u);
  tryst_tensor_free(tensor);
  reinterpret_cast<Old*>(out)->deleter(reinterpret_cast<Old*>(out));
  EXPECT_EQ(deleted, 0);

  named->flags |= tryst::dlpack::kFlagReadOnly;  // Imported again, now as read-only memory.
  ASSERT_EQ(Code(tryst_tensor_from_dlpack(versioned, &tensor)), TRYST_OK);
  EXPECT_EQ(tryst_tensor_is_read_only(tensor), 1);
  EXPECT_EQ(Code(tryst_tensor_to_dlpack0(tensor, &out)), TRYST_FAILED_PRECONDITION);
  const std::string key = Key("a");
  const tryst_recv_item item = {key.c_str(), tensor};
  tryst_op* op = nullptr;
  EXPECT_EQ(
      Code(tryst_recv_start(server_, 1, &item, 1, nullptr, -1, nullptr, nullptr, &op), &message_),
      TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "read-only")) << message_;
  tryst_tensor_free(tensor);
  EXPECT_EQ(deleted, 1);
  EXPECT_EQ(Code(tryst_tensor_from_dlpack(nullptr, &tensor)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_tensor_from_dlpack0(nullptr, &tensor)), TRYST_INVALID_ARGUMENT);
}

TEST_F(V1, WhatAWorkerSendsItselfIsReadOnly) {
  const int64_t dims[] = {2};
  tryst_tensor* sent = nullptr;
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, dims, 1, &sent)), TRYST_OK);
  const std::string key = Key("own");
  ASSERT_EQ(Code(tryst_send(server_, 1, key.c_str(), sent)), TRYST_OK);
  tryst_op* const op = Start({key}, nullptr);
  ASSERT_TRUE(tryst_op_wait(op, kHungMs));
  tryst_tensor* got = nullptr;
  int is_dead = 0;
  ASSERT_EQ(Code(tryst_op_result(op, 0, &got, &is_dead)), TRYST_OK);
  EXPECT_EQ(tryst_tensor_data(got), tryst_tensor_data(sent));
  EXPECT_EQ(tryst_tensor_is_read_only(got), 1);
  tryst_tensor_free(got);
  tryst_tensor_free(sent);
  tryst_op_free(op);
}

// The waiting receives of version 0 say so as well, and fill no such tensor.
TEST_F(V1, WhatAWorkerSendsItselfIsReadOnlyInVersion0) {
  float values[] = {1, 2};
  float others[] = {3, 4};
  const int64_t dims[] = {2};
  tryst_tensor* sent[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Code(tryst_tensor_adopt(i == 0 ? values : others, TRYST_FLOAT, dims, 1, nullptr,
                                      nullptr, &sent[i])),
              TRYST_OK);
  }
  const std::string key = Key("own");
  std::atomic<int> async_read_only{-1};
  ASSERT_EQ(Code(tryst_send(server_, 1, key.c_str(), sent[0])), TRYST_OK);
  tryst_recv_async(
      server_, 1, key.c_str(), nullptr,
      [](void* arg, const tryst_status*, tryst_tensor* tensor, int) {
        *static_cast<std::atomic<int>*>(arg) = tryst_tensor_is_read_only(tensor);
        tryst_tensor_free(tensor);
      },
      &async_read_only);
  tryst_tensor* got = nullptr;
  ASSERT_EQ(Code(tryst_send(server_, 1, key.c_str(), sent[0])), TRYST_OK);
  ASSERT_EQ(Code(tryst_recv(server_, 1, key.c_str(), nullptr, kHungMs, &got)), TRYST_OK);
  EXPECT_EQ(tryst_tensor_data(got), values);
  EXPECT_EQ(tryst_tensor_is_read_only(got), 1);
  ASSERT_EQ(Code(tryst_send(server_, 2, key.c_str(), sent[1])), TRYST_OK);
  tryst_tensor* filled = nullptr;
  EXPECT_EQ(Code(tryst_recv(server_, 2, key.c_str(), got, kHungMs, &filled), &message_),
            TRYST_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(message_, "read-only")) << message_;
  EXPECT_EQ(values[0], 1);
  tryst_tensor_free(filled);
  tryst_tensor_free(got);
  for (tryst_tensor* tensor : sent) tryst_tensor_free(tensor);
  EXPECT_EQ(Code(tryst_server_stop(server_, kHungMs)), TRYST_OK);  // Every callback has run.
  EXPECT_EQ(async_read_only, 1);
}

TEST_F(V1, SharedMemoryIsGivenOut) {
  const int64_t dims[] = {2, 512};
  tryst_tensor* tensor = nullptr;
  ASSERT_EQ(Code(tryst_server_allocate(server_, TRYST_DOUBLE, dims, 2, &tensor), &message_),
            TRYST_OK)
      << message_;
  EXPECT_EQ(tryst_tensor_bytes(tensor), 8192u);
  EXPECT_EQ(tryst_tensor_is_read_only(tensor), 0);
  std::memset(tryst_tensor_data(tensor), 1, 8192);
  tryst_tensor_free(tensor);
  for (const int32_t no_type : {0, -1, 999}) {
    EXPECT_EQ(Code(tryst_server_allocate(server_, no_type, dims, 2, &tensor)),
              TRYST_INVALID_ARGUMENT);
  }
}

TEST(V1Memory, WithoutSharedMemoryTypesAreCheckedToo) {
  const char* settings[] = {"--job=self", "--listen=127.0.0.1:0", "--insecure", "--open_cluster",
                            "--shm=off"};
  tryst_server* server = nullptr;
  ASSERT_EQ(Code(tryst_server_create(settings, 5, &server)), TRYST_OK);
  ASSERT_EQ(Code(tryst_server_start(server)), TRYST_OK);
  const int64_t dims[] = {int64_t{1} << 45};
  tryst_tensor* tensor = nullptr;
  EXPECT_EQ(Code(tryst_server_allocate(server, TRYST_STRING, dims, 1, &tensor)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(tensor, nullptr);
  tryst_server_free(server);
}

TEST_F(V1, Views) {
  for (char* text : {tryst_server_explain_json(server_, nullptr),
                     tryst_server_waiting_json(server_), tryst_server_stats_json(server_)}) {
    EXPECT_EQ(text[0], '{') << text;
    tryst_string_free(text);
  }
  char* job = tryst_server_setting(server_, "job");
  EXPECT_STREQ(job, "self");
  tryst_string_free(job);
  EXPECT_EQ(tryst_server_setting(server_, "nothing"), nullptr);
}

TEST_F(V1, AForkedChildIsToldSo) {
  const std::string key = Key("a");
  const pid_t child = fork();
  if (child == 0) {
    tryst_status* const status = tryst_send(server_, 1, key.c_str(), nullptr);
    const bool told = tryst_status_code(status) == TRYST_FAILED_PRECONDITION &&
                      std::strstr(tryst_status_message(status), "fork") != nullptr;
    tryst_server_free(server_);
    _exit(told ? 0 : 1);
  }
  int end = -1;
  ASSERT_EQ(waitpid(child, &end, 0), child);
  EXPECT_EQ(end, 0);
  EXPECT_EQ(Code(tryst_send(server_, 1, key.c_str(), nullptr)), TRYST_OK) << "the parent goes on";
}

TEST_F(V1, InAForkedChildWhatWasUnderWayHasEnded) {
  const std::string key = Key("a");
  tryst_op* const op = Start({key}, queue_);
  tryst_op* const ended = Start({Key("b")}, queue_);
  ASSERT_EQ(Code(tryst_send(server_, 1, Key("b").c_str(), nullptr)), TRYST_OK);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    tryst_op* taken = nullptr;
    tryst_tensor* tensor = nullptr;
    int is_dead = 0;
    const bool none = tryst_queue_take(queue_, &taken, 1, -1) == 0;
    const bool over = tryst_op_wait(op, -1) == 1;
    tryst_op_cancel(op);
    const bool told =
        Code(tryst_op_result(op, 0, &tensor, &is_dead), &message_) == TRYST_FAILED_PRECONDITION &&
        absl::StrContains(message_, "fork");
    tryst_op_free(op);
    tryst_queue_free(queue_);
    _exit(none && over && told ? 0 : 1);
  }
  int end = -1;
  ASSERT_EQ(waitpid(child, &end, 0), child);
  EXPECT_EQ(end, 0);
  tryst_op* taken = nullptr;
  EXPECT_TRUE(Readable()) << "the parent's queue is as it was";
  EXPECT_EQ(tryst_queue_take(queue_, &taken, 1, kHungMs), 1u);
  EXPECT_EQ(taken, ended);
  EXPECT_EQ(tryst_op_wait(op, 0), 0);
  tryst_op_free(op);
  tryst_op_free(ended);
}

// A server that is freed in one of its callbacks ends on a thread of its own, and until then other
// receives of it may end well.
class V1Freed : public V1 {
 protected:
  void FreeWhileReceiving(int task);
};

void V1Freed::FreeWhileReceiving(int task) {
  struct Freed {
    tryst_server* server;
    std::atomic<bool> over{false};
    std::atomic<bool> go_on{false};
    std::atomic<bool> returned{false};
  };
  const std::string join =
      absl::StrCat("--join=", tryst_server_worker(server_), "@", tryst_server_address(server_));
  const std::string number = absl::StrCat("--task=", task);
  const char* settings[] = {"--job=other", number.c_str(),   "--listen=127.0.0.1:0",
                            "--insecure",  "--open_cluster", join.c_str()};
  Freed freed;
  ASSERT_EQ(Code(tryst_server_create(settings, 6, &freed.server)), TRYST_OK);
  ASSERT_EQ(Code(tryst_server_start(freed.server)), TRYST_OK);
  const std::string from = absl::StrCat(tryst_server_worker(server_), "/device:CPU:0");
  const std::string to = absl::StrCat(tryst_server_worker(freed.server), "/device:CPU:0");
  std::string keys[2];
  for (std::string& text : keys) {
    char* key = nullptr;
    ASSERT_EQ(Code(tryst_key(from.c_str(), tryst_server_incarnation(server_), to.c_str(),
                             absl::StrCat("k", &text - keys).c_str(), 0, 0, &key)),
              TRYST_OK);
    text = key;
    tryst_string_free(key);
  }
  const int64_t dims[] = {2};
  tryst_tensor* sent = nullptr;
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, dims, 1, &sent)), TRYST_OK);
  const tryst_recv_item item = {keys[1].c_str(), nullptr};
  tryst_op* op = nullptr;
  ASSERT_EQ(Code(tryst_recv_start(freed.server, 1, &item, 1, nullptr, -1, nullptr, nullptr, &op)),
            TRYST_OK);
  tryst_recv_async(
      freed.server, 1, keys[0].c_str(), nullptr,
      [](void* arg, const tryst_status*, tryst_tensor* tensor, int) {
        auto* const freed = static_cast<Freed*>(arg);
        tryst_tensor_free(tensor);
        tryst_server_free(freed->server);
        freed->over = true;
        while (!freed->go_on) usleep(1000);
        freed->returned = true;
      },
      &freed);
  ASSERT_EQ(Code(tryst_send(server_, 1, keys[0].c_str(), nullptr)), TRYST_OK);
  while (!freed.over) usleep(1000);
  ASSERT_EQ(Code(tryst_send(server_, 1, keys[1].c_str(), sent)), TRYST_OK);
  EXPECT_TRUE(tryst_op_wait(op, kHungMs));
  tryst_tensor* got = nullptr;
  int is_dead = 0;
  (void)Code(tryst_op_result(op, 0, &got, &is_dead));  // It, or that the server stops.
  tryst_tensor_free(got);
  tryst_tensor_free(sent);
  tryst_op_free(op);
  freed.go_on = true;
  while (!freed.returned) usleep(1000);
}

TEST_F(V1Freed, AReceiveEndsWhileItsServerIsBeingFreed) {
  for (int task = 0; task < 20 && !HasFatalFailure(); ++task) FreeWhileReceiving(task);
}

TEST_F(V1, NullIsRefusedOrDoesNothing) {
  tryst_tensor* tensor = nullptr;
  tryst_op* op = nullptr;
  uint64_t incarnation = 0;
  char* key = nullptr;
  int is_dead = 0;
  const int64_t dims[] = {1};
  const std::string good = Key("e");
  const tryst_recv_item item = {good.c_str(), nullptr};
  const char* const settings[] = {"--insecure"};
  for (tryst_status* status :
       {tryst_server_create(settings, 1, nullptr),
        tryst_server_start(nullptr),
        tryst_server_stop(nullptr, 0),
        tryst_tensor_allocate(TRYST_FLOAT, dims, 1, nullptr),
        tryst_tensor_adopt(&is_dead, TRYST_FLOAT, dims, 1, nullptr, nullptr, nullptr),
        tryst_server_peer_incarnation(nullptr, "", 0, &incarnation),
        tryst_server_peer_incarnation(server_, "", 0, nullptr),
        tryst_key("", 0, "", "", 0, 0, nullptr),
        tryst_send(nullptr, 1, good.c_str(), nullptr),
        tryst_send_copy(nullptr, 1, good.c_str(), nullptr),
        tryst_send(server_, 1, nullptr, nullptr),
        tryst_recv(nullptr, 1, good.c_str(), nullptr, 0, &tensor),
        tryst_recv(server_, 1, good.c_str(), nullptr, 0, nullptr),
        tryst_step_abort(nullptr, 1, TRYST_ABORTED, ""),
        tryst_recv_start(server_, 1, &item, 1, nullptr, 0, nullptr, nullptr, nullptr),
        tryst_recv_start(nullptr, 1, &item, 1, nullptr, 0, nullptr, nullptr, &op),
        tryst_recv_start(server_, 1, nullptr, 1, nullptr, 0, nullptr, nullptr, &op),
        tryst_send_many(nullptr, 1, nullptr, 0, nullptr),
        tryst_queue_create(nullptr),
        tryst_op_result(nullptr, 0, &tensor, &is_dead),
        tryst_server_allocate(nullptr, TRYST_FLOAT, dims, 1, &tensor),
        tryst_server_allocate(server_, TRYST_FLOAT, dims, 1, nullptr),
        tryst_tensor_from_dlpack(nullptr, nullptr),
        tryst_tensor_to_dlpack0(nullptr, nullptr),
        tryst_tensor_strings(nullptr, nullptr, dims, 1, &tensor),
        tryst_peer_step_begin(nullptr, "", 1, 0),
        tryst_peer_step_cleanup(nullptr, "", 1, 0),
        tryst_peer_step_abort(nullptr, "", 1, TRYST_ABORTED, "", 0)}) {
    EXPECT_EQ(Code(status), TRYST_INVALID_ARGUMENT);
  }
  tryst_recv_async(server_, 1, good.c_str(), nullptr, nullptr, nullptr);
  tryst_step_cleanup(nullptr, 1);
  tryst_status_free(nullptr);
  tryst_tensor_free(nullptr);
  tryst_string_free(nullptr);
  tryst_server_free(nullptr);
  tryst_op_free(nullptr);
  tryst_op_cancel(nullptr);
  tryst_queue_free(nullptr);
  EXPECT_EQ(tryst_op_tag(nullptr), nullptr);
  EXPECT_EQ(tryst_queue_fd(nullptr), -1);
  EXPECT_EQ(tryst_queue_take(nullptr, &op, 1, 0), 0u);
  EXPECT_EQ(tryst_tensor_bytes(nullptr), 0u);
  EXPECT_EQ(tryst_tensor_dim(nullptr, 0), 0);
  EXPECT_EQ(tryst_tensor_data(nullptr), nullptr);
  EXPECT_STREQ(tryst_server_worker(nullptr), "");
  EXPECT_EQ(tryst_server_explain(nullptr, nullptr), nullptr);
  EXPECT_EQ(tryst_server_setting(nullptr, "job"), nullptr);
  EXPECT_EQ(tryst_server_release_gpu_memory(nullptr), 0u);
  char* const stats = tryst_server_stats_json(nullptr);
  EXPECT_STREQ(stats, "{}\n");
  tryst_string_free(stats);
  EXPECT_EQ(key, nullptr);
  tryst_step_cleanup(server_, 1);
}

TEST_F(V1, APeersStepsAreBegunAbortedAndCleanedUp) {
  const std::string join =
      absl::StrCat("--join=", tryst_server_worker(server_), "@", tryst_server_address(server_));
  const char* settings[] = {"--job=chief",    "--listen=127.0.0.1:0", "--insecure",
                            "--open_cluster", "--nic=soft",           join.c_str()};
  tryst_server* chief = nullptr;
  ASSERT_EQ(Code(tryst_server_create(settings, 6, &chief)), TRYST_OK);
  ASSERT_EQ(Code(tryst_server_start(chief)), TRYST_OK);
  const char* const peer = tryst_server_worker(server_);
  EXPECT_EQ(Code(tryst_peer_step_begin(chief, peer, 7, kHungMs)), TRYST_OK);
  const std::string key = Key("waits");
  const tryst_recv_item item = {key.c_str(), nullptr};
  tryst_op* op = nullptr;
  ASSERT_EQ(Code(tryst_recv_start(server_, 7, &item, 1, nullptr, -1, nullptr, nullptr, &op)),
            TRYST_OK);
  EXPECT_EQ(Code(tryst_peer_step_abort(chief, peer, 7, TRYST_OK, "no failure", kHungMs)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_peer_step_abort(chief, peer, 7, TRYST_ABORTED, "enough of it", kHungMs)),
            TRYST_OK);
  ASSERT_EQ(tryst_op_wait(op, kHungMs), 1);
  tryst_tensor* tensor = nullptr;
  int is_dead = 0;
  std::string message;
  EXPECT_EQ(Code(tryst_op_result(op, 0, &tensor, &is_dead), &message), TRYST_ABORTED);
  EXPECT_TRUE(absl::StrContains(message, "enough of it")) << message;
  tryst_op_free(op);
  EXPECT_EQ(Code(tryst_peer_step_cleanup(chief, peer, 7, kHungMs)), TRYST_OK);
  EXPECT_NE(Code(tryst_send(server_, 7, key.c_str(), nullptr)), TRYST_OK) << "the step is over";
  EXPECT_EQ(Code(tryst_peer_step_begin(chief, "/job:nobody/replica:0/task:0", 7, 100)),
            TRYST_UNAVAILABLE);
  tryst_server_free(chief);
}

}  // namespace
