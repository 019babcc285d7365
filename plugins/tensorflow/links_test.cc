// Two workers in this process, over the C interface that is linked into the test.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "plugins/tensorflow/consumer_link.h"
#include "plugins/tensorflow/keys.h"
#include "plugins/tensorflow/producer_link.h"

namespace tryst_tensorflow {
namespace {

const Library* Linked() {
#define TRYST_TENSORFLOW_CALL(name) ::name,
  static const Library library = {TRYST_TENSORFLOW_CALLS(TRYST_TENSORFLOW_CALL)};
#undef TRYST_TENSORFLOW_CALL
  return &library;
}

std::string KeyOf(const std::string& edge) {
  return "/job:ps/replica:0/task:0/device:CPU:0;00000000000000ff;"
         "/job:worker/replica:0/task:0/device:CPU:0;" +
         edge + ";0:0";
}

void DeleteBytes(void* bytes) { delete static_cast<std::string*>(bytes); }

tryst_tensor* Bytes(const std::string& text) {
  auto* kept = new std::string(text);
  const auto size = static_cast<int64_t>(kept->size());
  tryst_tensor* tensor = nullptr;
  tryst_status_free(
      tryst_tensor_adopt(kept->data(), TRYST_UINT8, &size, 1, DeleteBytes, kept, &tensor));
  return tensor;
}

// Keeps the results of fetches.
class Results {
 public:
  ProducerLink::Done Into(const std::string& name) {
    return [this, name](const tryst_status* failed, tryst_tensor* tensor, bool is_dead) {
      std::string text = is_dead ? "dead" : "failed";
      if (failed == nullptr && !is_dead) {
        text.assign(static_cast<const char*>(tryst_tensor_data(tensor)),
                    tryst_tensor_bytes(tensor));
        tryst_tensor_free(tensor);
      }
      const std::lock_guard<std::mutex> lock(mu_);
      results_[name] = text;
      more_.notify_all();
    };
  }
  std::string Wait(const std::string& name) {
    std::unique_lock<std::mutex> lock(mu_);
    more_.wait_for(lock, std::chrono::seconds(60), [&] { return results_.count(name) > 0; });
    return results_.count(name) > 0 ? results_[name] : "nothing came";
  }
  bool Has(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mu_);
    return results_.count(name) > 0;
  }

 private:
  std::mutex mu_;
  std::condition_variable more_;
  std::map<std::string, std::string> results_;
};

class LinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ps_ = Worker::Start(Linked(), "ps", 0, "127.0.0.1", &why);
    ASSERT_NE(ps_, nullptr) << why;
    worker_ = Worker::Start(Linked(), "worker", 0, "127.0.0.1", &why);
    ASSERT_NE(worker_, nullptr) << why;
    Introduce(ps_.get(), worker_->self());
    Introduce(worker_.get(), ps_->self());
  }

  void Introduce(Worker* to, const Peer& peer) {
    std::mutex mu;
    std::condition_variable more;
    std::string why = "not yet";
    to->Introduce(peer, [&](const std::string& why_not) {
      const std::lock_guard<std::mutex> lock(mu);
      why = why_not;
      more.notify_all();
    });
    std::unique_lock<std::mutex> lock(mu);
    more.wait_for(lock, std::chrono::seconds(60), [&] { return why != "not yet"; });
    ASSERT_EQ(why, "");
  }

  std::shared_ptr<ConsumerLink> Listen(uint32_t number, ConsumerLink::OnWanted on_wanted) {
    auto link =
        std::make_shared<ConsumerLink>(ps_.get(), worker_->self(), number, std::move(on_wanted),
                                       [this](int64_t step) { cancelled_ = step; });
    link->Listen();
    return link;
  }
  std::shared_ptr<ProducerLink> Link(uint32_t number) {
    return std::make_shared<ProducerLink>(worker_.get(), ps_->self(), number);
  }

  Results results_;  // Declared first, because the workers call it until they are destroyed.
  std::atomic<int64_t> cancelled_{0};
  std::unique_ptr<Worker> ps_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(LinksTest, ManyFetchesShareAFewBatches) {
  constexpr int kFetches = 1000;
  const auto served = Listen(5, [](ConsumerLink::Wanted wanted) {
    wanted.link->Send(wanted, Bytes(wanted.key->text + "@" + std::to_string(wanted.step)));
  });
  const auto link = Link(5);
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < kFetches; ++i) {
      const std::string key = KeyOf("edge_" + std::to_string(i));
      ASSERT_TRUE(link->Fetch(step, key, results_.Into(std::to_string(step) + key)));
    }
    for (int i = 0; i < kFetches; ++i) {
      const std::string key = KeyOf("edge_" + std::to_string(i));
      EXPECT_EQ(results_.Wait(std::to_string(step) + key), key + "@" + std::to_string(step));
    }
  }
  EXPECT_LT(link->batches(), 3 * kFetches / 4);
  served->Close();
}

TEST_F(LinksTest, OneKeyInManyStepsAtOnce) {
  std::mutex mu;
  std::vector<ConsumerLink::Wanted> waiting;
  const auto served = Listen(6, [&](ConsumerLink::Wanted wanted) {
    const std::lock_guard<std::mutex> lock(mu);
    waiting.push_back(std::move(wanted));
    if (waiting.size() < 20) return;
    // The answers go out in reverse order.
    for (; !waiting.empty(); waiting.pop_back()) {
      waiting.back().link->Send(waiting.back(), Bytes(std::to_string(waiting.back().step)));
    }
  });
  const auto link = Link(6);
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(link->Fetch(step, KeyOf("same"), results_.Into(std::to_string(step))));
  }
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(results_.Wait(std::to_string(step)), std::to_string(step));
  }
  served->Close();
}

TEST_F(LinksTest, DeadTensorsAnswersAndCancels) {
  const auto served = Listen(7, [](ConsumerLink::Wanted wanted) {
    if (wanted.step == 1) return wanted.link->Send(wanted, nullptr);
    Answer answer;
    answer.kind = Answer::kFailed;
    answer.code = 3;
    answer.message = "no";
    wanted.link->Send(wanted, answer);
  });
  const auto link = Link(7);
  ASSERT_TRUE(link->Fetch(1, KeyOf("edge"), results_.Into("dead one")));
  EXPECT_EQ(results_.Wait("dead one"), "dead");
  ASSERT_TRUE(link->Fetch(2, KeyOf("edge"), results_.Into("answer")));
  Answer answer;
  ASSERT_TRUE(ReadAnswer(results_.Wait("answer"), &answer));
  EXPECT_EQ(answer.message, "no");
  link->Cancel(77);
  ASSERT_TRUE(link->Fetch(1, KeyOf("edge"), results_.Into("after it")));
  EXPECT_EQ(results_.Wait("after it"), "dead");
  EXPECT_EQ(cancelled_, 77);
  served->Close();
}

TEST_F(LinksTest, MoreKeysThanAreRememberedGoOn) {
  const auto served = Listen(
      8, [](ConsumerLink::Wanted wanted) { wanted.link->Send(wanted, Bytes(wanted.key->text)); });
  const auto link = Link(8);
  const int keys = static_cast<int>(kMaxKeys) + 100;
  std::string last;
  for (int i = 0; i < keys; ++i) {
    last = KeyOf("edge_" + std::to_string(i));
    ASSERT_TRUE(link->Fetch(1, last, results_.Into(last)));
    if (i % 1000 == 0) {
      EXPECT_EQ(results_.Wait(last), last);
    }
  }
  for (int i = 0; i < keys; ++i) {
    const std::string key = KeyOf("edge_" + std::to_string(i));
    EXPECT_EQ(results_.Wait(key), key);
  }
  served->Close();
}

TEST_F(LinksTest, AProducerThatIsGoneFailsWhatIsOut) {
  const auto served = Listen(9, [](ConsumerLink::Wanted) {});
  const auto link = Link(9);
  ASSERT_TRUE(link->Fetch(1, KeyOf("edge"), results_.Into("lost")));
  served->Close();
  ps_->Stop();
  EXPECT_EQ(results_.Wait("lost"), "failed");
  EXPECT_TRUE(link->broken());
}

// Sets the flag when nobody refers to the tensor any more.
tryst_tensor* Watched(std::atomic<bool>* freed) {
  static char byte = 0;
  const int64_t size = 1;
  tryst_tensor* tensor = nullptr;
  tryst_status_free(tryst_tensor_adopt(
      &byte, TRYST_UINT8, &size, 1,
      [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, freed, &tensor));
  return tensor;
}

bool Soon(const std::atomic<bool>& flag) {
  for (int i = 0; i < 3000 && !flag; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return flag;
}

TEST_F(LinksTest, WhatAConsumerDidNotTakeGoesWhenItsLinkCloses) {
  std::atomic<bool> asked{false};
  ConsumerLink::Wanted wanted;
  const auto served = Listen(10, [&](ConsumerLink::Wanted it) {
    wanted = std::move(it);
    asked = true;
  });
  const auto link = Link(10);
  ASSERT_TRUE(link->Fetch(1, KeyOf("edge"), results_.Into("first")));
  ASSERT_TRUE(Soon(asked));
  served->Send(wanted, nullptr);
  EXPECT_EQ(results_.Wait("first"), "dead");
  std::atomic<bool> kept_freed{false};
  served->Send(wanted, Watched(&kept_freed));  // As to a consumer that is gone: nobody takes it.
  EXPECT_FALSE(kept_freed);
  served->Close();
  EXPECT_TRUE(Soon(kept_freed));
  std::atomic<bool> late_freed{false};
  served->Send(wanted, Watched(&late_freed));
  EXPECT_TRUE(Soon(late_freed));
  wanted.link = nullptr;
}

// A library whose receives of batches fail at first, as they do when the consumer is paused.
struct Pausing {
  static tryst_status* Away() { return reinterpret_cast<tryst_status*>(&away); }
  static tryst_code CodeOf(const tryst_status* status) {
    return status == Away() ? TRYST_UNAVAILABLE : tryst_status_code(status);
  }
  static void Recv(tryst_server* server, int64_t step, const char* key, const tryst_tensor* into,
                   tryst_done done, void* arg) {
    const bool asks = static_cast<uint32_t>(step) == kAskLane;
    if (asks && left.fetch_sub(1) > 0) return done(arg, Away(), nullptr, 0);
    tryst_recv_async(server, step, key, into, done, arg);
  }
  static const Library* Make(int failures) {
    static Library library;
    library = *Linked();
    library.tryst_status_code = CodeOf;
    library.tryst_recv_async = Recv;
    left = failures;
    return &library;
  }
  static inline char away = 0;
  static inline std::atomic<int> left{0};
};

TEST_F(LinksTest, AConsumerThatWasPausedIsHeardAgain) {
  std::string why;
  ps_ = Worker::Start(Pausing::Make(7), "ps", 0, "127.0.0.1", &why);
  ASSERT_NE(ps_, nullptr) << why;
  Introduce(ps_.get(), worker_->self());
  Introduce(worker_.get(), ps_->self());
  const auto served = Listen(
      11, [](ConsumerLink::Wanted wanted) { wanted.link->Send(wanted, Bytes(wanted.key->text)); });
  const auto link = Link(11);
  ASSERT_TRUE(link->Fetch(1, KeyOf("edge"), results_.Into("it")));
  EXPECT_EQ(results_.Wait("it"), KeyOf("edge"));
  EXPECT_LE(Pausing::left, 0);
  served->Close();
}

TEST(KeysTest, TrystsKeysHaveTensorFlowsNames) {
  const Peer producer{"/job:ps/replica:0/task:0", "", 0xab};
  const std::string worker = "/job:worker/replica:0/task:0";
  EXPECT_EQ(TrystKey(*Linked(), KeyOf("edge_3_ReadVariableOp"), producer, worker),
            "/job:ps/replica:0/task:0/device:CPU:0;00000000000000ab;"
            "/job:worker/replica:0/task:0/device:CPU:0;edge_3_ReadVariableOp;0:0");
  EXPECT_EQ(TrystKey(*Linked(), "no key", producer, worker), "");
}

}  // namespace
}  // namespace tryst_tensorflow
