#include "rendezvous/routing_rendezvous.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/cord.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/match_core.h"
#include "rendezvous/packed_tensor.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

std::string Device(absl::string_view worker, absl::string_view type) {
  return absl::StrCat(worker, "/device:", type, ":0");
}
TensorKey RemoteKey(absl::string_view edge) {
  return KeyBetween(Device(kWorker1, "CPU"), Device(kWorker0, "CPU"), edge);
}

// Keeps fetches until the test answers them.
class HeldFetcher final : public TensorFetcher {
 public:
  struct One {
    TensorKey key;
    RecvArgs args;
    FetchedFn done;
  };
  void Fetch(int64_t, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    if (before_fetch) std::exchange(before_fetch, nullptr)();
    if (at_once) return std::move(done)({absl::UnavailableError("at once")});
    ones.push_back({key, args, std::move(done)});
  }
  void FetchMany(int64_t, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override {
    if (before_fetch) std::exchange(before_fetch, nullptr)();
    many_keys = keys.size();
    many_destinations.clear();
    for (const Tensor& into : args.destinations) many_destinations.push_back(into.data());
    many = std::move(done);
  }
  void AbortStep(int64_t, const absl::Status& status) override {
    ++aborts;
    auto failing = std::move(ones);
    ones.clear();
    for (One& one : failing) FailReceive(status, one.args.executor, std::move(one.done));
    if (!many) return;
    std::vector<Received> results(many_keys, Received{status});
    std::exchange(many, nullptr)(status, absl::MakeSpan(results));
  }

  std::vector<One> ones;
  size_t many_keys = 0;
  std::vector<const void*> many_destinations;
  ManyFetchedFn many;
  int aborts = 0;
  std::function<void()> before_fetch;
  bool at_once = false;  // They fail in the call, as from another thread.
};

struct RoutingRendezvousTest : testing::Test {
  int64_t Waiting() const { return step->counters().waiting_fetches; }

  VirtualAlarms alarms;
  HeldFetcher fetcher;
  std::shared_ptr<RoutingRendezvous> step =
      RoutingRendezvous::Make(kWorker0, 1, {}, &alarms, nullptr, &fetcher);
};

TEST_F(RoutingRendezvousTest, LocalKeysMeetInTheTable) {
  ASSERT_TRUE(SendNumber(step.get(), LocalKey("a"), 1).ok());
  EXPECT_EQ(Receive(step.get(), LocalKey("a"))->number(), 1);
  const TensorKey implicit = KeyBetween("", Device(kWorker0, "CPU"), "a");
  ASSERT_TRUE(SendNumber(step.get(), implicit, 2).ok());
  EXPECT_EQ(Receive(step.get(), implicit)->number(), 2);
  EXPECT_TRUE(fetcher.ones.empty());
}

TEST_F(RoutingRendezvousTest, RemoteKeysAreFetched) {
  const auto outcome = Receive(step.get(), RemoteKey("a"));
  ASSERT_EQ(fetcher.ones.size(), 1u);
  EXPECT_EQ(fetcher.ones[0].key, RemoteKey("a"));
  EXPECT_EQ(Waiting(), 1);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(3)});
  EXPECT_EQ(outcome->number(), 3);
  EXPECT_EQ(Waiting(), 0);
  EXPECT_EQ(step->counters().fetches, 1);
}

TEST_F(RoutingRendezvousTest, FetchesEndInAnyOrder) {
  for (const std::vector<size_t>& order : {std::vector<size_t>{2, 1, 0}, {0, 1, 2}, {1, 0, 2}}) {
    fetcher.ones.clear();
    for (const char* const edge : {"a", "b", "c"}) Receive(step.get(), RemoteKey(edge));
    EXPECT_EQ(Waiting(), 3);
    int64_t left = 3;
    for (const size_t which : order) {
      std::move(fetcher.ones[which].done)({absl::OkStatus(), Number(3)});
      EXPECT_EQ(Waiting(), --left);
    }
  }
}

TEST_F(RoutingRendezvousTest, ListsNoMoreThanItIsAskedFor) {
  const auto one = Receive(step.get(), LocalKey("a"));
  const auto other = Receive(step.get(), LocalKey("b"));
  WaitingItems items(1);
  step->ListWaiting(&items);
  EXPECT_EQ(items.left_out(), 1u);
  EXPECT_EQ(items.Take().size(), 1u);
  step->StartAbort(absl::InternalError("the end"));
}

TEST_F(RoutingRendezvousTest, ANullDoneThrowsAwayWhatIsFetched) {
  step->RecvAsync(RemoteKey("a"), RecvArgs(), nullptr);
  ASSERT_EQ(fetcher.ones.size(), 1u);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(3)});
  EXPECT_EQ(Waiting(), 0);
}

TEST_F(RoutingRendezvousTest, KeysOfOthersAreRefused) {
  EXPECT_EQ(SendNumber(step.get(), RemoteKey("a"), 1).code(), absl::StatusCode::kInvalidArgument);
  SendItem items[] = {{LocalKey("a"), Number(1), false}, {RemoteKey("a"), Number(1), false}};
  EXPECT_EQ(step->SendMany(absl::MakeSpan(items), SendArgs()).code(),
            absl::StatusCode::kInvalidArgument);
  const TensorKey away = KeyBetween(Device(kWorker0, "CPU"), Device(kWorker1, "CPU"), "a");
  EXPECT_EQ(Receive(step.get(), away)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(step.get(), TensorKey())->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(step->counters().sends, 0);
  auto alone = RoutingRendezvous::Make(kWorker0, 1, {}, &alarms, nullptr, nullptr);
  EXPECT_EQ(Receive(alone.get(), RemoteKey("a"))->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RoutingRendezvousTest, AbortEndsFetchesAndLaterOnesAtOnce) {
  const auto outcome = Receive(step.get(), RemoteKey("a"));
  step->StartAbort(absl::InternalError("cause"));
  EXPECT_EQ(outcome->status.message(), "cause");
  EXPECT_TRUE(IsDerived(outcome->status));
  EXPECT_EQ(Receive(step.get(), RemoteKey("b"))->status.message(), "cause");
  EXPECT_EQ(fetcher.aborts, 1);
  EXPECT_TRUE(fetcher.ones.empty());
}

TEST_F(RoutingRendezvousTest, AnAbortThatOvertakesAFetchIsNotLost) {
  fetcher.before_fetch = [this] { step->StartAbort(absl::InternalError("cause")); };
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"))->status.message(), "cause");
}

TEST_F(RoutingRendezvousTest, AnAbortThatOvertakesAFetchOfManyIsNotLost) {
  fetcher.before_fetch = [this] { step->StartAbort(absl::InternalError("cause")); };
  int calls = 0;
  absl::Status error;
  step->RecvManyAsync({RemoteKey("a"), RemoteKey("b")}, RecvArgs(),
                      [&](absl::Status status, absl::Span<Received>) {
                        ++calls;
                        error = std::move(status);
                      });
  EXPECT_EQ(calls, 1) << "nobody else ends it";
  EXPECT_EQ(error.message(), "cause");
  EXPECT_EQ(Waiting(), 0);
}

TEST_F(RoutingRendezvousTest, ACancelledReceiveIsNotFetched) {
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"), args)->code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(fetcher.ones.empty());
}

TEST_F(RoutingRendezvousTest, AReadOnlyDestinationIsRefused) {
  struct ReadOnly final : Storage {
    ReadOnly() : Storage(&value, sizeof(value), MemorySpace(), /*read_only=*/true) {}
    float value = 1;
  };
  RecvArgs args;
  args.destination = *Tensor::FromStorage(StorageRef::Own(new ReadOnly), 0, DType::kFloat, {1});
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"), args)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(fetcher.ones.empty());
  // So it is among many.
  const std::vector<Tensor> into = {Number(0), args.destination};
  args = RecvArgs();
  args.destinations = into;
  std::vector<absl::Status> ends;
  step->RecvManyAsync({RemoteKey("a"), RemoteKey("b")}, args,
                      [&](const absl::Status&, absl::Span<Received> results) {
                        for (const Received& one : results) ends.push_back(one.status);
                      });
  EXPECT_EQ(fetcher.many_keys, 0u);
  ASSERT_EQ(fetcher.ones.size(), 1u);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(4)});
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_TRUE(ends[0].ok()) << ends[0];
  EXPECT_EQ(ends[1].code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RoutingRendezvousTest, AFetchKeepsTheStep) {
  const auto watched = std::make_shared<HeldBytes>(1 << 20);  // The step refers to it.
  step = RoutingRendezvous::Make(kWorker0, 1, {}, &alarms, watched, &fetcher);
  const auto outcome = Receive(step.get(), RemoteKey("a"));
  const auto many = std::make_shared<int>(0);
  step->RecvManyAsync({RemoteKey("b"), RemoteKey("c")}, RecvArgs(),
                      [many](const absl::Status&, absl::Span<Received>) { ++*many; });
  step.reset();
  EXPECT_GT(watched.use_count(), 1);
  FetchedFn done = std::move(fetcher.ones[0].done);
  fetcher.ones.clear();
  std::move(done)({absl::UnavailableError("peer lost")});
  EXPECT_EQ(outcome->code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(watched.use_count(), 1);
  std::vector<Received> results(2);
  std::move(fetcher.many)(absl::OkStatus(), absl::MakeSpan(results));
  EXPECT_EQ(*many, 1);
  EXPECT_EQ(watched.use_count(), 1);
}

// Its results may come, and its last user go, while the call that asked for them is still at it.
TEST_F(RoutingRendezvousTest, TheLastUserMayGoBeforeTheCallIsOver) {
  const auto watched = std::make_shared<HeldBytes>(1 << 20);
  step = RoutingRendezvous::Make(kWorker0, 1, {}, &alarms, watched, &fetcher);
  fetcher.at_once = true;
  step->RecvAsync(RemoteKey("a"), RecvArgs(), [this](Received&&) { step.reset(); });
  EXPECT_EQ(step, nullptr);
  EXPECT_EQ(watched.use_count(), 1);
}

TEST_F(RoutingRendezvousTest, BatchesAreFusedWhereTheyCanBe) {
  int calls = 0;
  step->RecvManyAsync({RemoteKey("a"), RemoteKey("b")}, RecvArgs(),
                      [&](const absl::Status& status, absl::Span<Received> got) {
                        ++calls;
                        EXPECT_TRUE(status.ok()) << status;
                        EXPECT_EQ(*got[1].tensor.data_as<int64_t>(), 7);
                      });
  EXPECT_EQ(fetcher.many_keys, 2u);
  EXPECT_EQ(Waiting(), 2);
  std::vector<Received> results(2);
  results[1].tensor = Number(7);
  std::move(fetcher.many)(absl::OkStatus(), absl::MakeSpan(results));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Waiting(), 0);
  const auto alone = Receive(step.get(), RemoteKey("c"));  // Where those of before were.
  EXPECT_EQ(Waiting(), 1);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(3)});
  fetcher.ones.clear();
  EXPECT_EQ(alone->number(), 3);

  ASSERT_TRUE(SendNumber(step.get(), LocalKey("l"), 5).ok());
  absl::Status error;
  std::vector<int64_t> numbers;
  step->RecvManyAsync({RemoteKey("a"), LocalKey("l"), TensorKey()}, RecvArgs(),
                      [&](absl::Status status, absl::Span<Received> mixed) {
                        error = status;
                        for (const Received& r : mixed) {
                          numbers.push_back(r.status.ok() ? *r.tensor.data_as<int64_t>() : -1);
                        }
                      });
  ASSERT_EQ(fetcher.ones.size(), 1u);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(4)});
  EXPECT_EQ(numbers, (std::vector<int64_t>{4, 5, -1}));
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  step->RecvManyAsync({}, RecvArgs(), [&](absl::Status, absl::Span<Received>) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_F(RoutingRendezvousTest, EachOfManyHasItsDestination) {
  const TensorShape eight_dims = *TensorShape::Make(std::vector<int64_t>(8, 1));
  const std::vector<Tensor> into = {*Tensor::Allocate(DType::kInt64, eight_dims), Number(0)};
  RecvArgs args;
  args.destinations = into;
  step->RecvManyAsync({RemoteKey("a"), RemoteKey("b")}, args,
                      [](const absl::Status&, absl::Span<Received>) {});
  EXPECT_EQ(fetcher.many_keys, 2u);
  EXPECT_EQ(fetcher.many_destinations, (std::vector<const void*>{into[0].data(), into[1].data()}));
  std::vector<Received> results(2);
  std::move(fetcher.many)(absl::OkStatus(), absl::MakeSpan(results));

  // Receives whose tensors come by different ways are made one by one.
  step->RecvManyAsync({LocalKey("l"), RemoteKey("b")}, args,
                      [](const absl::Status&, absl::Span<Received>) {});
  ASSERT_EQ(fetcher.ones.size(), 1u);
  EXPECT_EQ(fetcher.ones[0].args.destination.data(), into[1].data());
  std::move(fetcher.ones[0].done)({absl::OkStatus(), Number(4)});
  ASSERT_TRUE(SendNumber(step.get(), LocalKey("l"), 5).ok());
}

// A "device" whose memory is the host's, marked as a device's.
class PretendDevice final : public DeviceContext {
 public:
  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes& attributes) override {
    if (attributes.on_host) return Tensor::Allocate(dtype, shape);
    return OnDevice(*Tensor::Allocate(dtype, shape));
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    memcpy(into.mutable_data(), from.data(), from.bytes());
    pending = std::move(done);
  }
  static Tensor OnDevice(const Tensor& tensor) {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kDevice;
    space.device_ordinal = 0;
    return *Tensor::Adopt(tensor.mutable_data(), tensor.dtype(), tensor.shape(), space,
                          [tensor] {});
  }
  absl::AnyInvocable<void(absl::Status) &&> pending;
};

struct HandoverTest : RoutingRendezvousTest {
  HandoverTest() { on_gpu.device_context = of_gpu.device_context = gpu; }
  TensorKey Key(absl::string_view src, absl::string_view dst) {
    return KeyBetween(Device(kWorker0, src), Device(kWorker0, dst), "e");
  }
  std::shared_ptr<PretendDevice> gpu = std::make_shared<PretendDevice>();
  SendArgs of_gpu;
  RecvArgs on_gpu;
};

TEST_F(HandoverTest, DeviceToHostIsCopiedByTheSender) {
  ASSERT_TRUE(
      step->Send(Key("GPU", "CPU"), of_gpu, PretendDevice::OnDevice(Number(9)), false).ok());
  const auto outcome = Receive(step.get(), Key("GPU", "CPU"));
  EXPECT_EQ(outcome->calls, 0) << "the copy is still running";
  std::move(gpu->pending)(absl::OkStatus());
  EXPECT_EQ(outcome->number(), 9);
  EXPECT_TRUE(outcome->tensor.space().host_readable());
}

TEST_F(HandoverTest, HostToDeviceIsCopiedByTheReceiverIntoItsDestination) {
  ASSERT_TRUE(SendNumber(step.get(), Key("CPU", "GPU"), 8).ok());
  RecvArgs args = on_gpu;
  args.destination = PretendDevice::OnDevice(Number(0));
  const auto outcome = Receive(step.get(), Key("CPU", "GPU"), args);
  std::move(gpu->pending)(absl::OkStatus());
  ASSERT_TRUE(outcome->ok());
  EXPECT_TRUE(outcome->tensor.SharesBytesWith(args.destination));
  EXPECT_EQ(outcome->number(), 8);
  ASSERT_TRUE(
      step->Send(Key("CPU", "GPU"), SendArgs(), *Tensor::Allocate(DType::kInt64, {2}), false).ok());
  EXPECT_EQ(Receive(step.get(), Key("CPU", "GPU"), args)->code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HandoverTest, WhatLiesRightIsShared) {
  const Tensor device = PretendDevice::OnDevice(Number(1));
  ASSERT_TRUE(step->Send(Key("GPU", "GPU"), of_gpu, device, false).ok());
  EXPECT_TRUE(Receive(step.get(), Key("GPU", "GPU"), on_gpu)->tensor.SharesBytesWith(device));
  // on_host: a host tensor although the device is a GPU.
  SendArgs of_host;
  RecvArgs on_host;
  on_host.alloc_attrs.on_host = of_host.alloc_attrs.on_host = true;
  const Tensor host = Number(2);
  ASSERT_TRUE(step->Send(Key("GPU", "GPU"), of_host, host, false).ok());
  EXPECT_TRUE(Receive(step.get(), Key("GPU", "GPU"), on_host)->tensor.SharesBytesWith(host));
  ASSERT_TRUE(step->Send(Key("GPU", "GPU"), SendArgs(), Tensor(), true).ok());
  EXPECT_TRUE(Receive(step.get(), Key("GPU", "GPU"), on_gpu)->is_dead) << "nothing to copy";
}

// A program that does not care writes keys that name the CPU at both ends.
TEST_F(HandoverTest, DeviceMemoryUnderTheCpusNameWaitsForItsStream) {
  struct Slow final : DeviceContext {
    absl::StatusOr<Tensor> Allocate(DType, const TensorShape&,
                                    const AllocatorAttributes&) override {
      return absl::InternalError("nothing is to be allocated");
    }
    void StartCopy(const Tensor& from, const Tensor& into,
                   absl::AnyInvocable<void(absl::Status) &&> done) override {
      memcpy(into.mutable_data(), from.data(), from.bytes());
      std::move(done)(absl::OkStatus());
    }
    void WhenSent(const DeviceContext*, absl::AnyInvocable<void(absl::Status) &&> fn) override {
      pending = std::move(fn);
    }
    absl::AnyInvocable<void(absl::Status) &&> pending;
  };
  LocalRendezvous::Options options;
  options.has_devices = true;
  step = RoutingRendezvous::Make(kWorker0, 1, options, &alarms, nullptr, &fetcher);
  const TensorKey key = Key("CPU", "CPU");
  for (const bool send_first : {true, false}) {
    auto slow = std::make_shared<Slow>();
    SendArgs sends;
    sends.device_context = slow;
    const Tensor device = PretendDevice::OnDevice(Number(6));
    std::shared_ptr<Outcome> outcome;
    if (!send_first) outcome = Receive(step.get(), key);
    ASSERT_TRUE(step->Send(key, sends, device, false).ok());
    if (send_first) outcome = Receive(step.get(), key);
    EXPECT_EQ(outcome->calls, 0) << "its stream still works on it";
    std::move(slow->pending)(absl::OkStatus());
    ASSERT_EQ(outcome->calls, 1);
    EXPECT_TRUE(outcome->tensor.SharesBytesWith(device));
  }
  // Now tensors go into the receiver's own memory, and several by one RecvMany.
  auto slow = std::make_shared<Slow>();
  SendArgs sends;
  RecvArgs into;
  sends.device_context = slow;
  into.destination = Number(0);
  ASSERT_TRUE(step->Send(key, sends, PretendDevice::OnDevice(Number(7)), false).ok());
  const auto filled = Receive(step.get(), key, into);
  ASSERT_TRUE(filled->ok());
  EXPECT_EQ(*into.destination.data_as<int64_t>(), 7);
  ASSERT_TRUE(step->Send(key, sends, PretendDevice::OnDevice(Number(8)), false).ok());
  int calls = 0;
  step->RecvManyAsync({key}, RecvArgs(),
                      [&](const absl::Status&, absl::Span<Received>) { ++calls; });
  EXPECT_EQ(calls, 0);
  std::move(slow->pending)(absl::OkStatus());
  EXPECT_EQ(calls, 1);
}

TEST_F(HandoverTest, FailuresReachTheReceiver) {
  struct Failed final : DeviceContext {
    absl::StatusOr<Tensor> Allocate(DType, const TensorShape&,
                                    const AllocatorAttributes&) override {
      return absl::InternalError("nothing is to be allocated");
    }
    void StartCopy(const Tensor&, const Tensor&,
                   absl::AnyInvocable<void(absl::Status) &&>) override {
      ADD_FAILURE() << "the receiver's device copies";
    }
    void WhenSent(const DeviceContext*, absl::AnyInvocable<void(absl::Status) &&> fn) override {
      std::move(fn)(absl::InternalError("stream"));
    }
  };
  SendArgs of_another;
  of_another.device_context = std::make_shared<Failed>();
  const TensorKey between =
      KeyBetween(Device(kWorker0, "GPU"), absl::StrCat(kWorker0, "/device:GPU:1"), "between");
  ASSERT_TRUE(step->Send(between, of_another, PretendDevice::OnDevice(Number(9)), false).ok());
  const auto not_made = Receive(step.get(), between, on_gpu);
  EXPECT_EQ(not_made->status.message(), "stream");
  EXPECT_FALSE(not_made->tensor.valid());
  ASSERT_TRUE(
      step->Send(Key("GPU", "CPU"), of_gpu, PretendDevice::OnDevice(Number(9)), false).ok());
  const auto failed = Receive(step.get(), Key("GPU", "CPU"));
  std::move(gpu->pending)(absl::InternalError("copy"));
  EXPECT_EQ(failed->status.message(), "copy");
  EXPECT_FALSE(failed->tensor.valid());
  ASSERT_TRUE(SendNumber(step.get(), Key("CPU", "GPU"), 8).ok());
  EXPECT_EQ(Receive(step.get(), Key("CPU", "GPU"))->code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(
      step->Send(Key("CPU", "GPU"), SendArgs(), *Tensor::FromStrings({"s"}, {1}), false).ok());
  EXPECT_EQ(Receive(step.get(), Key("CPU", "GPU"), on_gpu)->code(),
            absl::StatusCode::kInvalidArgument);
  const auto aborted = Receive(step.get(), Key("CPU", "GPU"));
  step->StartAbort(absl::InternalError("cause"));
  EXPECT_EQ(aborted->status.message(), "cause");
}

TEST_F(RoutingRendezvousTest, MoreThanEightDimensionsTravelPacked) {
  const TensorKey away = KeyBetween(Device(kWorker0, "CPU"), Device(kWorker1, "CPU"), "a");
  const TensorShape nine_dims = *TensorShape::Make(std::vector<int64_t>(9, 1));
  const Tensor nine = *Tensor::Allocate(DType::kInt64, nine_dims);
  *static_cast<int64_t*>(nine.mutable_data()) = 41;
  const TensorShape eight_dims = *TensorShape::Make(std::vector<int64_t>(8, 1));
  const Tensor eight = *Tensor::Allocate(DType::kInt64, eight_dims);
  const TensorKey away_too = KeyBetween(Device(kWorker0, "CPU"), Device(kWorker1, "CPU"), "b");
  SendItem items[] = {{LocalKey("a"), nine, false}, {away, nine, false}, {away_too, eight, false}};
  ASSERT_TRUE(step->SendMany(absl::MakeSpan(items), SendArgs()).ok());
  EXPECT_EQ(Receive(step.get(), LocalKey("a"))->tensor.shape().rank(), 9);
  Received taken;
  step->table()->RecvAsync(away, RecvArgs(), [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    taken.tensor = std::move(received.tensor);
  });
  EXPECT_EQ(taken.tensor.dtype(), DType::kPacked);
  EXPECT_EQ(taken.tensor.shape().rank(), 1);
  step->table()->RecvAsync(away_too, RecvArgs(), [&](Received&& received) {
    EXPECT_EQ(received.tensor.shape(), eight_dims) << "as it is";
  });

  const auto anywhere = Receive(step.get(), RemoteKey("b"));
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kInt64, nine_dims);
  const auto inside = Receive(step.get(), RemoteKey("c"), args);
  args.destination = *Tensor::Allocate(DType::kFloat, nine_dims);
  const auto other = Receive(step.get(), RemoteKey("d"), args);
  ASSERT_EQ(fetcher.ones.size(), 3u);
  for (auto& fetch : fetcher.ones) {
    EXPECT_FALSE(fetch.args.destination.valid());
    std::move(fetch.done)({absl::OkStatus(), taken.tensor});
  }
  ASSERT_TRUE(anywhere->status.ok()) << anywhere->status;
  EXPECT_EQ(anywhere->tensor.shape(), nine_dims);
  EXPECT_EQ(*anywhere->tensor.data_as<int64_t>(), 41);
  ASSERT_TRUE(inside->status.ok()) << inside->status;
  EXPECT_EQ(*inside->tensor.data_as<int64_t>(), 41);
  EXPECT_EQ(other->status.code(), absl::StatusCode::kInvalidArgument) << other->status;

  const auto broken = Receive(step.get(), RemoteKey("e"));
  const Tensor nonsense = *Tensor::Allocate(DType::kPacked, {2});
  memset(nonsense.mutable_data(), 0xff, nonsense.bytes());
  std::move(fetcher.ones.back().done)({absl::OkStatus(), nonsense});
  EXPECT_FALSE(broken->status.ok());
  EXPECT_FALSE(broken->tensor.valid());

  absl::Status first;
  std::vector<Tensor> came;
  step->RecvManyAsync({RemoteKey("f"), RemoteKey("g"), RemoteKey("h")}, RecvArgs(),
                      [&](absl::Status status, absl::Span<Received> results) {
                        first = std::move(status);
                        for (Received& one : results) came.push_back(std::move(one.tensor));
                      });
  std::vector<Received> results(3);
  results[0].tensor = eight;
  results[1].tensor = taken.tensor;
  results[2].tensor = nonsense;
  std::move(fetcher.many)(absl::OkStatus(), absl::MakeSpan(results));
  EXPECT_TRUE(absl::IsDataLoss(first)) << first;
  ASSERT_EQ(came.size(), 3u);
  EXPECT_EQ(came[0].shape(), eight_dims);
  EXPECT_EQ(came[1].shape(), nine_dims);
  EXPECT_FALSE(came[2].valid());

  const Tensor strings = *Tensor::FromStrings({"s"}, nine_dims);
  EXPECT_EQ(step->Send(away, SendArgs(), strings, false).code(),
            absl::StatusCode::kInvalidArgument);
}

// The peer has let go of it.
struct KeptHereTest : RoutingRendezvousTest {
  KeptHereTest() {
    into_floats.destination = *Tensor::Allocate(DType::kFloat, nine_dims);
    into_numbers.destination = *Tensor::Allocate(DType::kInt64, nine_dims);
  }
  Tensor Nine(int64_t number) { return *Pack(*Number(number).Reshape(nine_dims)); }
  void End(size_t i, Received received) { std::move(fetcher.ones[i].done)(std::move(received)); }
  void FailOneWith(int64_t number) {
    const auto failed = Receive(step.get(), RemoteKey("a"), into_floats);
    End(fetcher.ones.size() - 1, {absl::OkStatus(), Nine(number)});
    EXPECT_TRUE(absl::IsInvalidArgument(failed->status)) << failed->status;
  }

  const TensorShape nine_dims = *TensorShape::Make(std::vector<int64_t>(9, 1));
  RecvArgs into_floats, into_numbers;
};

TEST_F(KeptHereTest, WhatDidNotFitIsTheNextReceives) {
  FailOneWith(1);
  const auto again = Receive(step.get(), RemoteKey("a"), into_floats);
  EXPECT_TRUE(absl::IsInvalidArgument(again->status)) << again->status;
  const auto into = Receive(step.get(), RemoteKey("a"), into_numbers);
  ASSERT_TRUE(into->ok()) << into->status;
  EXPECT_EQ(*into_numbers.destination.data_as<int64_t>(), 1);
  EXPECT_TRUE(into->tensor.SharesBytesWith(into_numbers.destination));

  FailOneWith(2);
  const auto anywhere = Receive(step.get(), RemoteKey("a"));
  ASSERT_TRUE(anywhere->ok()) << anywhere->status;
  EXPECT_EQ(anywhere->number(), 2);
  EXPECT_EQ(anywhere->tensor.shape(), nine_dims);

  FailOneWith(3);
  step->RecvManyAsync({RemoteKey("b"), RemoteKey("c")}, RecvArgs(),
                      [](const absl::Status&, absl::Span<Received>) {});
  EXPECT_EQ(fetcher.many_keys, 2u) << "nothing is kept of these";
  std::vector<Received> of_others(2);
  std::move(fetcher.many)(absl::OkStatus(), absl::MakeSpan(of_others));
  std::vector<int64_t> came;
  step->RecvManyAsync({RemoteKey("a"), RemoteKey("b")}, RecvArgs(),
                      [&](const absl::Status&, absl::Span<Received> results) {
                        for (const Received& one : results) {
                          came.push_back(*one.tensor.data_as<int64_t>());
                        }
                      });
  ASSERT_EQ(fetcher.ones.size(), 4u) << "it was asked for again";
  End(3, {absl::OkStatus(), Number(4)});
  EXPECT_EQ(came, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(Waiting(), 0);
}

TEST_F(KeptHereTest, ADestinationOfFewDimensionsDoesNotFitItEither) {
  FailOneWith(1);
  RecvArgs args;
  args.destination = Number(0);
  const auto scalar = Receive(step.get(), RemoteKey("a"), args);
  EXPECT_TRUE(absl::IsInvalidArgument(scalar->status)) << scalar->status;
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"))->number(), 1);
}

TEST_F(KeptHereTest, WhatIsKeptComesBeforeWhatWasFetchedBehindIt) {
  const auto a = Receive(step.get(), RemoteKey("a"), into_floats);
  const auto b = Receive(step.get(), RemoteKey("a"), into_numbers);
  End(0, {absl::OkStatus(), Nine(1)});
  End(1, {absl::OkStatus(), Tensor(), /*is_dead=*/true});
  EXPECT_FALSE(a->ok());
  ASSERT_TRUE(b->ok()) << b->status;
  EXPECT_FALSE(b->is_dead);
  EXPECT_EQ(*into_numbers.destination.data_as<int64_t>(), 1);
  const auto third = Receive(step.get(), RemoteKey("a"));
  EXPECT_TRUE(third->ok() && third->is_dead) << third->status;
  EXPECT_EQ(fetcher.ones.size(), 2u);
}

TEST_F(KeptHereTest, WhoWantsItOnADeviceIsToldWhereItIs) {
  FailOneWith(1);
  RecvArgs args;
  args.device_context = std::make_shared<PretendDevice>();
  args.on_device = true;
  const auto there = Receive(step.get(), RemoteKey("a"), args);
  EXPECT_TRUE(absl::IsInvalidArgument(there->status)) << there->status;
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"))->number(), 1);
}

TEST_F(KeptHereTest, WhoHasCancelledAndWhoseStepIsOverGetNone) {
  FailOneWith(1);
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"), args)->code(), absl::StatusCode::kCancelled);
  fetcher.ones.clear();  // It has ended.
  step->StartAbort(absl::InternalError("cause"));
  EXPECT_EQ(Receive(step.get(), RemoteKey("a"))->status.message(), "cause");
}

// Nobody can read it there.
TEST_F(RoutingRendezvousTest, APackedTensorInADevicesMemoryIsRefused) {
  const auto outcome = Receive(step.get(), RemoteKey("a"));
  ASSERT_EQ(fetcher.ones.size(), 1u);
  std::move(fetcher.ones[0].done)({absl::OkStatus(), OnDevice(DType::kPacked, {4096})});
  EXPECT_TRUE(absl::IsInvalidArgument(outcome->status)) << outcome->status;
  EXPECT_FALSE(outcome->tensor.valid());

  const TensorShape nine_dims = *TensorShape::Make(std::vector<int64_t>(9, 1));
  RecvArgs args;
  args.destination = OnDevice(DType::kInt64, nine_dims);
  const auto into = Receive(step.get(), RemoteKey("b"), args);
  EXPECT_TRUE(absl::IsInvalidArgument(into->status)) << into->status;
  EXPECT_EQ(fetcher.ones.size(), 1u) << "the tensor stays where it is";
}

TEST_F(RoutingRendezvousTest, TheStatusOfAnAbortComesOutAsItWasGiven) {
  absl::Status given = absl::DataLossError("the very words");
  given.SetPayload("example.org/why", absl::Cord("a payload"));
  const auto expect_given = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), given.code());
    EXPECT_EQ(status.message(), given.message());
    EXPECT_EQ(status.GetPayload("example.org/why"), absl::Cord("a payload"));
    EXPECT_TRUE(IsDerived(status));
  };
  const auto local = Receive(step.get(), LocalKey("a"));
  const auto remote = Receive(step.get(), RemoteKey("a"));
  absl::Status of_batch, of_room;
  step->RecvManyAsync({LocalKey("b"), LocalKey("c")}, RecvArgs(),
                      [&](absl::Status status, absl::Span<Received>) { of_batch = status; });
  step->StartAbort(given);
  step->StartAbort(absl::InternalError("a second one"));
  expect_given(local->status);
  expect_given(remote->status);
  expect_given(of_batch);
  expect_given(SendNumber(step.get(), LocalKey("a"), 1));
  expect_given(Receive(step.get(), LocalKey("a"))->status);
  expect_given(Receive(step.get(), RemoteKey("a"))->status);
  step->WhenRoom(8, [&](absl::Status status) { of_room = status; });
  expect_given(of_room);
  EXPECT_EQ(step->table()->abort_cause(), given) << "without the mark";
}

}  // namespace
}  // namespace tryst
