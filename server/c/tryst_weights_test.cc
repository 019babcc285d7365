// Version 1 of the C interface: weights.
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/c/status_code.h"
#include "server/c/tryst_v1.h"

namespace {

constexpr int64_t kLongMs = 30'000;

std::string Taken(char* text) {
  const std::string copy = text;
  tryst_string_free(text);
  return copy;
}

tryst_server* StartServer(const std::string& job, const std::string& join) {
  const std::string is_job = "--job=" + job, joins = "--join=" + join;
  const char* settings[] = {is_job.c_str(),   "--listen=127.0.0.1:0", "--insecure",
                            "--open_cluster", "--protocol=grpc",      joins.c_str()};
  tryst_server* server = nullptr;
  EXPECT_EQ(Code(tryst_server_create(settings, join.empty() ? 5 : 6, &server)), TRYST_OK);
  EXPECT_EQ(Code(tryst_server_start(server)), TRYST_OK);
  return server;
}

class WeightsInC : public testing::Test {
 protected:
  WeightsInC()
      : owner_server_(StartServer("owner", "")),
        member_server_(StartServer("member", absl::StrCat(tryst_server_worker(owner_server_), "@",
                                                          tryst_server_address(owner_server_)))),
        owner_(Open(owner_server_, "role=owner")),
        member_(Open(member_server_, "role=member")) {
    layout_.name = "w";
    layout_.dtype = TRYST_FLOAT;
    layout_.dims = kDims;
    layout_.rank = 2;
  }
  ~WeightsInC() override {
    tryst_weights_free(member_);
    tryst_weights_free(owner_);
    tryst_server_free(member_server_);
    tryst_server_free(owner_server_);
  }
  tryst_weights* Open(tryst_server* server, const char* role,
                      const char* headless = "on_headless=stop") {
    const char* owners[] = {tryst_server_worker(owner_server_)};
    const char* settings[] = {role, "permit_ms=600", headless, "bytes_per_second=1000000000"};
    tryst_weights* weights = nullptr;
    std::string message;
    EXPECT_EQ(
        Code(tryst_weights_open(server, "policy", owners, 1, settings, 4, &weights), &message),
        TRYST_OK)
        << message;
    return weights;
  }
  static tryst_weights_item Whole(const tryst_tensor* tensor, int64_t offset,
                                  const int64_t* strides) {
    tryst_weights_item item = {};
    item.name = "w";
    item.begin = kZeros;
    item.extent = kDims;
    item.rank = 2;
    item.tensor = tensor;
    item.offset = offset;
    item.strides = strides;
    return item;
  }

  static constexpr int64_t kDims[] = {2, 3}, kZeros[] = {0, 0}, kDense[] = {3, 1},
                           kTransposed[] = {1, 2};
  tryst_server *owner_server_, *member_server_;
  tryst_weights *owner_, *member_;
  tryst_weights_layout layout_ = {};
};

TEST_F(WeightsInC, AVersionIsPublishedActivatedAndServed) {
  ASSERT_EQ(Code(tryst_weights_declare(owner_, &layout_, 1)), TRYST_OK);
  tryst_tensor *from = nullptr, *into = nullptr;
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, kDims, 2, &from)), TRYST_OK);
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, kDims, 2, &into)), TRYST_OK);
  for (int i = 0; i < 6; ++i) static_cast<float*>(tryst_tensor_data(from))[i] = i;
  const tryst_weights_item publishes = Whole(from, 0, kDense);
  ASSERT_EQ(Code(tryst_weights_publish(owner_, 5, &publishes)), TRYST_OK);
  std::string message;
  ASSERT_EQ(Code(tryst_weights_seal(owner_, 5, "five", kLongMs, nullptr), &message), TRYST_OK)
      << message;
  tryst_weights_version* version = nullptr;
  ASSERT_EQ(Code(tryst_weights_find(member_, TRYST_WEIGHTS_NEWER, 0, kLongMs, nullptr, &version)),
            TRYST_OK);
  char* json = nullptr;
  ASSERT_EQ(Code(tryst_weights_describe(member_, version, kLongMs, nullptr, &json)), TRYST_OK);
  const std::string described = Taken(json);
  EXPECT_TRUE(absl::StrContains(described, "{\"number\":5,\"label\":\"five\",\"root\":\""))
      << described;
  EXPECT_TRUE(absl::StrContains(
      described, "\"tensors\":[{\"name\":\"w\",\"dtype\":\"float\",\"shape\":[2,3]}]}"))
      << described;
  const tryst_weights_item fetches = Whole(into, 0, kTransposed);
  ASSERT_EQ(Code(tryst_weights_fetch(member_, version, &fetches, 1, kLongMs, nullptr), &message),
            TRYST_OK)
      << message;
  const float* const came = static_cast<const float*>(tryst_tensor_data(into));
  EXPECT_EQ(std::vector<float>(came, came + 6), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  // Who needs nothing has nothing to name.
  EXPECT_EQ(Code(tryst_weights_fetch(member_, version, nullptr, 0, kLongMs, nullptr)), TRYST_OK);
  EXPECT_EQ(Code(tryst_weights_fetch(member_, version, nullptr, 1, kLongMs, nullptr)),
            TRYST_INVALID_ARGUMENT);
  tryst_weights_version_free(version);

  tryst_code activated = TRYST_UNKNOWN;
  std::thread activates([&] {
    activated = Code(tryst_weights_activate(owner_, 5, TRYST_WEIGHTS_BARRIER, kLongMs, nullptr));
  });
  uint64_t number = 0;
  for (const int32_t expected :
       {TRYST_WEIGHTS_SEALED, TRYST_WEIGHTS_PREPARE, TRYST_WEIGHTS_HOLD, TRYST_WEIGHTS_ACTIVATED}) {
    int32_t kind = -1;
    ASSERT_EQ(Code(tryst_weights_next_event(member_, kLongMs, nullptr, &kind, &number)), TRYST_OK);
    EXPECT_EQ(kind, expected);
    EXPECT_EQ(number, 5u);
    if (kind == TRYST_WEIGHTS_PREPARE) {
      EXPECT_EQ(Code(tryst_weights_stage(member_, 5, nullptr, 1, kLongMs, nullptr)),
                TRYST_INVALID_ARGUMENT);
      EXPECT_EQ(Code(tryst_weights_stage(member_, 5, nullptr, 0, kLongMs, nullptr)), TRYST_OK);
      EXPECT_EQ(Code(tryst_weights_answer(member_, 5, TRYST_WEIGHTS_STAGED)), TRYST_OK);
    } else if (kind == TRYST_WEIGHTS_HOLD) {
      EXPECT_EQ(Code(tryst_weights_answer(member_, 5, TRYST_WEIGHTS_HELD)), TRYST_OK);
    } else if (kind == TRYST_WEIGHTS_ACTIVATED) {
      EXPECT_EQ(tryst_weights_serve(member_, &number), 0);
      EXPECT_EQ(Code(tryst_weights_answer(member_, 5, TRYST_WEIGHTS_SWITCHED)), TRYST_OK);
    }
  }
  activates.join();
  EXPECT_EQ(activated, TRYST_OK);
  EXPECT_EQ(tryst_weights_members(owner_), 1u);
  // The permit comes with the answer after that.
  for (int i = 0; i < 1000 && tryst_weights_serve(member_, &number) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(tryst_weights_serve(member_, &number), 1);
  EXPECT_EQ(number, 5u);
  EXPECT_TRUE(absl::StrContains(Taken(tryst_weights_explain(owner_)), "version 5 is active"));
  tryst_tensor_free(from);
  tryst_tensor_free(into);
}

TEST_F(WeightsInC, WhoKeepsItGoesOnServingWithoutALeader) {
  tryst_weights_free(member_);
  tryst_weights_free(owner_);
  owner_ = Open(owner_server_, "role=owner");
  member_ = Open(member_server_, "role=member", "on_headless=keep");
  ASSERT_EQ(Code(tryst_weights_declare(owner_, &layout_, 1)), TRYST_OK);
  tryst_tensor* from = nullptr;
  ASSERT_EQ(Code(tryst_tensor_allocate(TRYST_FLOAT, kDims, 2, &from)), TRYST_OK);
  const tryst_weights_item publishes = Whole(from, 0, kDense);
  ASSERT_EQ(Code(tryst_weights_publish(owner_, 5, &publishes)), TRYST_OK);
  ASSERT_EQ(Code(tryst_weights_seal(owner_, 5, "", kLongMs, nullptr)), TRYST_OK);
  tryst_code activated = TRYST_UNKNOWN;
  std::thread activates([&] {
    activated = Code(tryst_weights_activate(owner_, 5, TRYST_WEIGHTS_ROLLING, kLongMs, nullptr));
  });
  uint64_t number = 0;
  const auto answer = [&](int32_t to, int32_t what) {
    int32_t kind = -1;
    while (kind != to) {
      const tryst_code heard =
          Code(tryst_weights_next_event(member_, kLongMs, nullptr, &kind, &number));
      if (heard != TRYST_OK) return heard;
    }
    return Code(tryst_weights_answer(member_, 5, what));
  };
  EXPECT_EQ(answer(TRYST_WEIGHTS_PREPARE, TRYST_WEIGHTS_STAGED), TRYST_OK);
  EXPECT_EQ(answer(TRYST_WEIGHTS_ACTIVATED, TRYST_WEIGHTS_SWITCHED), TRYST_OK);
  activates.join();
  EXPECT_EQ(activated, TRYST_OK);
  for (int i = 0; i < 1000 && tryst_weights_serve(member_, &number) != 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(tryst_weights_serve(member_, &number), 1);
  tryst_weights_free(owner_);
  owner_ = nullptr;
  for (int i = 0; i < 1000 && tryst_weights_serve(member_, &number) == 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(tryst_weights_serve(member_, &number), 2) << Taken(tryst_weights_explain(member_));
  EXPECT_EQ(number, 5u);
  tryst_tensor_free(from);
}

TEST_F(WeightsInC, BoxesAreThoseOfTheLayout) {
  const uint32_t owners[] = {0, 1};
  const int64_t mesh[] = {2};
  const int32_t placements[] = {1};
  layout_.owners = owners;
  layout_.owner_count = 2;
  layout_.mesh = mesh;
  layout_.placements = placements;
  layout_.mesh_rank = 1;
  int64_t numbers[4] = {};
  size_t count = 0;
  ASSERT_EQ(Code(tryst_weights_boxes(&layout_, 2, 1, numbers, 4, &count)), TRYST_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(std::vector<int64_t>(numbers, numbers + 4), (std::vector<int64_t>{0, 2, 2, 1}));
  numbers[1] = 70;
  ASSERT_EQ(Code(tryst_weights_boxes(&layout_, 2, 1, numbers, 1, &count)), TRYST_OK);
  EXPECT_EQ(numbers[1], 70) << "no more than there is room for";
}

TEST_F(WeightsInC, WhatIsWrongIsRefused) {
  const char* owners[] = {tryst_server_worker(owner_server_)};
  for (const char* wrong : {"role=chief", "rank=x", "keep=0", "permit_ms=1",
                            "bytes_per_second=fast", "decider=paper", "colour=red", "role"}) {
    const char* settings[] = {"role=member", wrong};
    tryst_weights* weights = nullptr;
    std::string message;
    EXPECT_EQ(Code(tryst_weights_open(member_server_, "policy", owners, 1, settings, 2, &weights),
                   &message),
              TRYST_INVALID_ARGUMENT);
    EXPECT_TRUE(absl::StrContains(message, wrong)) << message;
    EXPECT_EQ(weights, nullptr);
  }
  tryst_weights* weights = nullptr;
  EXPECT_EQ(Code(tryst_weights_open(member_server_, "policy", owners, 1, nullptr, 0, &weights)),
            TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_weights_open(nullptr, "policy", owners, 1, nullptr, 0, &weights)),
            TRYST_INVALID_ARGUMENT);
  const char* in_etcd[] = {"role=owner", "decider=etcd"};
  EXPECT_EQ(Code(tryst_weights_open(member_server_, "other", owners, 1, in_etcd, 2, &weights)),
            TRYST_FAILED_PRECONDITION);
  // Each role has its calls.
  tryst_weights_version* version = nullptr;
  EXPECT_EQ(Code(tryst_weights_find(owner_, TRYST_WEIGHTS_NEWER, 0, 0, nullptr, &version)),
            TRYST_FAILED_PRECONDITION);
  EXPECT_EQ(Code(tryst_weights_seal(member_, 5, "", 0, nullptr)), TRYST_FAILED_PRECONDITION);
  EXPECT_EQ(Code(tryst_weights_find(member_, 3, 0, 0, nullptr, &version)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_weights_answer(member_, 5, 9)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_weights_activate(owner_, 5, 9, 0, nullptr)), TRYST_INVALID_ARGUMENT);
  const tryst_weights_item item = {};
  EXPECT_EQ(Code(tryst_weights_publish(owner_, 5, &item)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_weights_borrow(owner_, 5, &item)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(Code(tryst_weights_release(owner_, 5, 3, kLongMs, nullptr)), TRYST_INVALID_ARGUMENT);
  EXPECT_EQ(tryst_weights_members(member_), 0u);
  EXPECT_EQ(Code(tryst_weights_release(owner_, 5, -1, kLongMs, nullptr)), TRYST_INVALID_ARGUMENT);
  layout_.dims = nullptr;
  EXPECT_EQ(Code(tryst_weights_declare(owner_, &layout_, 1)), TRYST_INVALID_ARGUMENT);
  // A wait that was cancelled before it began ends at once.
  tryst_cancellation* cancellation = nullptr;
  ASSERT_EQ(Code(tryst_cancellation_create(&cancellation)), TRYST_OK);
  tryst_cancellation_cancel(cancellation);
  EXPECT_EQ(Code(tryst_weights_find(member_, TRYST_WEIGHTS_NEWER, 0, -1, cancellation, &version)),
            TRYST_CANCELLED);
  int32_t kind = 0;
  uint64_t number = 0;
  EXPECT_EQ(Code(tryst_weights_next_event(member_, -1, cancellation, &kind, &number)),
            TRYST_CANCELLED);
  tryst_cancellation_free(cancellation);
}

}  // namespace
