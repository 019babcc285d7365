// The C interface: every call in every state, and what its header promises about timeouts and the
// caller's memory. tests/release/sdk compiles it with a C compiler.
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/c/status_code.h"
#include "server/c/tryst.h"

namespace {

constexpr absl::Duration kHung = absl::Seconds(30);

tryst_server* Create(const char* job, const std::string& listen = "127.0.0.1:0") {
  const std::string at = "--listen=" + listen;
  const char* settings[] = {job, at.c_str(), "--insecure", "--open_cluster", "--nic=soft"};
  tryst_server* server = nullptr;
  EXPECT_EQ(Code(tryst_server_create(settings, 5, &server)), TRYST_OK);
  return server;
}

std::string OwnKey(tryst_server* server, const char* edge) {
  const std::string device = absl::StrCat(tryst_server_worker(server), "/device:CPU:0");
  char* key = nullptr;
  EXPECT_EQ(Code(tryst_key(device.c_str(), tryst_server_incarnation(server), device.c_str(), edge,
                           0, 0, &key)),
            TRYST_OK);
  std::string text = key;
  tryst_string_free(key);
  return text;
}

tryst_tensor* Floats(std::vector<int64_t> dims, float first) {
  tryst_tensor* tensor = nullptr;
  EXPECT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, dims.data(), dims.size(), &tensor)), TRYST_OK);
  float* values = static_cast<float*>(tryst_tensor_data(tensor));
  for (uint64_t i = 0; i < tryst_tensor_bytes(tensor) / sizeof(float); ++i) {
    values[i] = first + static_cast<float>(i);
  }
  return tensor;
}

// Keeps a receive's outcome, which its callback stores.
struct Outcome {
  static void Done(void* arg, const tryst_status* status, tryst_tensor* tensor, int is_dead) {
    auto* const self = static_cast<Outcome*>(arg);
    self->code = tryst_status_code(status);
    self->message = tryst_status_message(status);
    self->is_dead = is_dead != 0;
    if (tensor != nullptr) self->data = tryst_tensor_data(tensor);
    tryst_tensor_free(tensor);
    if (self->body) self->body();
    self->done.Notify();
  }
  tryst_code code = TRYST_UNKNOWN;
  std::string message;
  bool is_dead = false;
  void* data = nullptr;
  std::function<void()> body;
  absl::Notification done;
};

struct Call {
  const char* name;
  // `serves`: the server of this state serves, so steps can be used.
  std::function<void(tryst_server*, bool serves)> make;
};

const std::vector<Call>& Calls() {
  static const auto* const calls = new std::vector<Call>{
      {"worker", [](tryst_server* s,
                    bool) { EXPECT_TRUE(absl::StartsWith(tryst_server_worker(s), "/job")); }},
      {"address", [](tryst_server* s, bool) { (void)std::strlen(tryst_server_address(s)); }},
      {"incarnation", [](tryst_server* s, bool) { EXPECT_NE(tryst_server_incarnation(s), 0u); }},
      {"peer_incarnation",
       [](tryst_server* s, bool) {
         uint64_t incarnation = 1;
         EXPECT_NE(Code(tryst_server_peer_incarnation(s, "/job:nobody/replica:0/task:0", 20,
                                                      &incarnation)),
                   TRYST_OK);
         EXPECT_EQ(incarnation, 0u);
         EXPECT_NE(Code(tryst_server_peer_incarnation(s, nullptr, 20, &incarnation)), TRYST_OK);
       }},
      {"explain",
       [](tryst_server* s, bool) {
         for (const char* peer :
              {"", static_cast<const char*>(nullptr), "/job:x/replica:0/task:0"}) {
           char* text = tryst_server_explain(s, peer);
           ASSERT_NE(text, nullptr);
           EXPECT_NE(std::strlen(text), 0u);
           tryst_string_free(text);
         }
       }},
      {"send, recv",
       [](tryst_server* s, bool serves) {
         const std::string key = OwnKey(s, "e");
         for (auto send : {tryst_send, tryst_send_copy}) {
           EXPECT_EQ(Code(send(s, 1000, key.c_str(), nullptr)) == TRYST_OK, serves);
           tryst_tensor* got = nullptr;
           EXPECT_EQ(Code(tryst_recv(s, 1000, key.c_str(), nullptr, 2000, &got)) == TRYST_OK,
                     serves);
         }
         EXPECT_EQ(Code(tryst_send(s, 1000, nullptr, nullptr)), TRYST_INVALID_ARGUMENT);
       }},
      {"recv_async",
       [](tryst_server* s, bool serves) {
         const std::string key = OwnKey(s, "async");
         // Its callback may run after this function has returned.
         auto* const outcome = new Outcome;
         outcome->body = [] {};
         tryst_recv_async(
             s, 1000, key.c_str(), nullptr,
             [](void* arg, const tryst_status* status, tryst_tensor* tensor, int is_dead) {
               Outcome::Done(arg, status, tensor, is_dead);
               delete static_cast<Outcome*>(arg);
             },
             outcome);
         EXPECT_EQ(Code(tryst_send(s, 1000, key.c_str(), nullptr)) == TRYST_OK, serves);
       }},
      {"step_abort",
       [](tryst_server* s, bool) {
         (void)Code(tryst_step_abort(s, 1001, TRYST_DATA_LOSS, "bad rows"));
         EXPECT_EQ(Code(tryst_step_abort(s, 1001, TRYST_OK, nullptr)), TRYST_INVALID_ARGUMENT);
         (void)Code(tryst_step_abort(s, 1002, TRYST_DATA_LOSS, nullptr));
       }},
      {"step_cleanup", [](tryst_server* s, bool) { tryst_step_cleanup(s, 1003); }},
  };
  return *calls;
}

void CallAll(tryst_server* server, bool serves) {
  for (const Call& call : Calls()) {
    SCOPED_TRACE(call.name);
    call.make(server, serves);
  }
}

TEST(AnyState, BeforeTheStart) {
  tryst_server* const server = Create("--job=self");
  CallAll(server, false);
  EXPECT_STREQ(tryst_server_address(server), "");
  std::string message;
  EXPECT_EQ(Code(tryst_send(server, 1, OwnKey(server, "e").c_str(), nullptr), &message),
            TRYST_FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(message, "has not started")) << message;
  EXPECT_EQ(Code(tryst_server_stop(server, 1000)), TRYST_OK);
  EXPECT_EQ(Code(tryst_server_start(server)), TRYST_FAILED_PRECONDITION);
  CallAll(server, false);
  tryst_server_free(server);
}

TEST(AnyState, AfterAStartThatFailed) {
  tryst_server* const first = Create("--job=first");
  ASSERT_EQ(Code(tryst_server_start(first)), TRYST_OK);
  tryst_server* const server = Create("--job=self", tryst_server_address(first));
  EXPECT_EQ(Code(tryst_server_start(server)), TRYST_UNAVAILABLE);
  CallAll(server, false);
  EXPECT_EQ(Code(tryst_server_start(server)), TRYST_FAILED_PRECONDITION);
  EXPECT_EQ(Code(tryst_server_stop(server, -1)), TRYST_OK);
  CallAll(server, false);
  tryst_server_free(server);
  tryst_server_free(first);
}

TEST(AnyState, WhileItServesInACallbackAndAfterwards) {
  tryst_server* const server = Create("--job=self");
  ASSERT_EQ(Code(tryst_server_start(server)), TRYST_OK);
  CallAll(server, true);
  EXPECT_EQ(Code(tryst_server_start(server)), TRYST_FAILED_PRECONDITION);
  Outcome outcome;
  outcome.body = [server] {
    std::string message;
    EXPECT_EQ(Code(tryst_server_stop(server, 1000), &message), TRYST_FAILED_PRECONDITION);
    EXPECT_TRUE(absl::StrContains(message, "another thread")) << message;
    char* text = tryst_server_explain(server, nullptr);
    EXPECT_NE(text, nullptr);
    tryst_string_free(text);
    tryst_step_cleanup(server, 1);
  };
  const std::string key = OwnKey(server, "k");
  tryst_recv_async(server, 1, key.c_str(), nullptr, Outcome::Done, &outcome);
  EXPECT_EQ(Code(tryst_send(server, 1, key.c_str(), nullptr)), TRYST_OK);
  ASSERT_TRUE(outcome.done.WaitForNotificationWithTimeout(kHung));
  EXPECT_EQ(Code(tryst_server_stop(server, -1)), TRYST_OK);
  CallAll(server, false);
  std::string message;
  EXPECT_EQ(Code(tryst_send(server, 5, key.c_str(), nullptr), &message), TRYST_ABORTED);
  EXPECT_TRUE(absl::StrContains(message, "stopping")) << message;
  tryst_server_free(server);
}

TEST(AnyState, IsFreedInACallback) {
  tryst_server* const server = Create("--job=self");
  ASSERT_EQ(Code(tryst_server_start(server)), TRYST_OK);
  const std::string address = tryst_server_address(server);
  Outcome outcome;
  outcome.body = [server] { tryst_server_free(server); };
  const std::string key = OwnKey(server, "k");
  ASSERT_EQ(Code(tryst_send(server, 1, key.c_str(), nullptr)), TRYST_OK);
  tryst_recv_async(server, 1, key.c_str(), nullptr, Outcome::Done, &outcome);
  ASSERT_TRUE(outcome.done.WaitForNotificationWithTimeout(kHung));
  // The server ends all the same, so its address becomes free.
  tryst_code code = TRYST_UNKNOWN;
  for (const absl::Time until = absl::Now() + kHung; code != TRYST_OK && absl::Now() < until;) {
    tryst_server* const next = Create("--job=next", address);
    code = Code(tryst_server_start(next));
    tryst_server_free(next);
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(code, TRYST_OK);
}

class Into : public testing::Test {
 protected:
  Into() : server_(Create("--job=self")) {
    EXPECT_EQ(Code(tryst_server_start(server_)), TRYST_OK);
    key_ = OwnKey(server_, "k");
  }
  ~Into() override { tryst_server_free(server_); }
  void Send(tryst_tensor* tensor) {
    EXPECT_EQ(Code(tryst_send(server_, 1, key_.c_str(), tensor)), TRYST_OK);
    tryst_tensor_free(tensor);
  }
  tryst_code Recv(const tryst_tensor* into, int64_t timeout_ms, tryst_tensor** got) {
    return Code(tryst_recv(server_, 1, key_.c_str(), into, timeout_ms, got), &message_);
  }

  tryst_server* const server_;
  std::string key_;
  std::string message_;
};

TEST_F(Into, IsFilledByATensorOfTheSameWorker) {
  tryst_tensor* const into = Floats({2, 3}, 100);
  float* const values = static_cast<float*>(tryst_tensor_data(into));
  tryst_tensor* got = nullptr;
  Send(Floats({2, 3}, 1));
  ASSERT_EQ(Recv(into, 1000, &got), TRYST_OK) << message_;
  EXPECT_EQ(tryst_tensor_data(got), values);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[5], 6);
  tryst_tensor_free(got);

  for (const bool sent_first : {true, false}) {
    Outcome outcome;
    values[5] = 0;
    if (sent_first) Send(Floats({2, 3}, 7));
    tryst_recv_async(server_, 1, key_.c_str(), into, Outcome::Done, &outcome);
    if (!sent_first) Send(Floats({2, 3}, 7));
    ASSERT_TRUE(outcome.done.WaitForNotificationWithTimeout(kHung));
    EXPECT_EQ(outcome.code, TRYST_OK) << outcome.message;
    EXPECT_EQ(outcome.data, values);
    EXPECT_EQ(values[5], 12);
  }
  Send(nullptr);
  EXPECT_EQ(Recv(into, 1000, &got), TRYST_OK);
  EXPECT_EQ(got, nullptr) << "a dead tensor";
  tryst_tensor_free(into);
}

TEST_F(Into, OfAnotherTypeOrShapeFailsAndTakesNothing) {
  const int64_t dims[] = {2, 3};
  tryst_tensor* ints = nullptr;
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_INT32, dims, 2, &ints)), TRYST_OK);
  tryst_tensor* const row = Floats({6}, 100);
  Send(Floats({2, 3}, 1));
  Send(Floats({2, 3}, 2));
  tryst_tensor* got = nullptr;
  for (const tryst_tensor* into : {ints, row}) {
    EXPECT_EQ(Recv(into, 1000, &got), TRYST_INVALID_ARGUMENT);
    EXPECT_EQ(got, nullptr);
    EXPECT_TRUE(absl::StrContains(message_, "float[2,3]")) << message_;
    EXPECT_TRUE(absl::StrContains(message_, into == ints ? "int32[2,3]" : "float[6]")) << message_;
    Outcome outcome;
    tryst_recv_async(server_, 1, key_.c_str(), into, Outcome::Done, &outcome);
    ASSERT_TRUE(outcome.done.WaitForNotificationWithTimeout(kHung));
    EXPECT_EQ(outcome.code, TRYST_INVALID_ARGUMENT) << outcome.message;
  }
  EXPECT_EQ(static_cast<float*>(tryst_tensor_data(row))[0], 100);
  for (const float first : {1, 2}) {  // Both tensors are still there, in order.
    ASSERT_EQ(Recv(nullptr, 1000, &got), TRYST_OK) << message_;
    EXPECT_EQ(static_cast<float*>(tryst_tensor_data(got))[0], first);
    tryst_tensor_free(got);
  }
  tryst_tensor_free(ints);
  tryst_tensor_free(row);
}

// `into` is the memory that is sent, first with another shape and then with the same one.
TEST_F(Into, MayBeTheMemoryThatIsSent) {
  float values[6] = {1, 2, 3, 4, 5, 6};
  const int64_t row[] = {6};
  const int64_t square[] = {2, 3};
  tryst_tensor* sent = nullptr;
  tryst_tensor* into = nullptr;
  tryst_tensor* got = nullptr;
  for (const bool same : {false, true}) {
    ASSERT_EQ(Code(tryst_tensor_adopt(values, TRYST_FLOAT, row, 1, nullptr, nullptr, &sent)),
              TRYST_OK);
    ASSERT_EQ(Code(tryst_tensor_adopt(values, TRYST_FLOAT, same ? row : square, same ? 1 : 2,
                                      nullptr, nullptr, &into)),
              TRYST_OK);
    Send(sent);
    EXPECT_EQ(Recv(into, 1000, &got), same ? TRYST_OK : TRYST_INVALID_ARGUMENT) << message_;
    tryst_tensor_free(into);
    if (!same) {
      ASSERT_EQ(Recv(nullptr, 1000, &got), TRYST_OK) << message_;
    }
    EXPECT_EQ(tryst_tensor_data(got), values);
    tryst_tensor_free(got);
  }
}

TEST_F(Into, ANegativeTimeoutIsNone) {
  tryst_tensor* got = nullptr;
  EXPECT_EQ(Recv(nullptr, 0, &got), TRYST_DEADLINE_EXCEEDED) << message_;
  std::thread sends([this] {
    absl::SleepFor(absl::Milliseconds(200));
    Send(Floats({1}, 3));
  });
  EXPECT_EQ(Recv(nullptr, -1, &got), TRYST_OK) << message_;
  sends.join();
  tryst_tensor_free(got);
  Send(Floats({1}, 3));
  EXPECT_EQ(Recv(nullptr, 0, &got), TRYST_OK) << "it is here already";
  tryst_tensor_free(got);
  uint64_t incarnation = 0;
  EXPECT_EQ(
      Code(tryst_server_peer_incarnation(server_, tryst_server_worker(server_), -1, &incarnation)),
      TRYST_OK);
  EXPECT_EQ(incarnation, tryst_server_incarnation(server_));
}

TEST(Settings, OneOfAnEarlierReleaseIsRefusedWithWhatToDo) {
  const char* settings[] = {"--job=ps", "--insecure", "--keep_for=20s"};
  tryst_server* server = nullptr;
  tryst_status* status = tryst_server_create(settings, 3, &server);
  EXPECT_EQ(server, nullptr);
  const std::string message = tryst_status_message(status);
  EXPECT_NE(message.find("no setting 'keep_for' any more. Tensors are kept for 2 min"),
            std::string::npos)
      << message;
  EXPECT_EQ(Code(status), TRYST_INVALID_ARGUMENT);
}

TEST(Settings, ANullAmongThemIsRefused) {
  const char* settings[] = {"--job=ps", nullptr};
  tryst_server* server = nullptr;
  EXPECT_EQ(Code(tryst_server_create(settings, 2, &server)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(server, nullptr);
}

}  // namespace
