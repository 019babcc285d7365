// Callbacks as 0.2.0 had them, with five arguments, are received by for one more release.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "rendezvous/local_rendezvous.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tryst {
namespace {

class FiveArgumentsTest : public ::testing::Test {
 protected:
  // Receives `number` of what is sent and what fails, by each static type that has RecvAsync.
  template <typename Step>
  void ReceiveBy(Step* step) {
    Args from;
    from.alloc_attrs.scope_id = 5;
    Args to;
    to.alloc_attrs.scope_id = 6;
    int calls = 0;
    const auto done = [&calls, only = std::make_unique<int>(7)](
                          absl::Status status, const Args& send_args, const Args& recv_args,
                          Tensor tensor, bool is_dead) {
      ++calls;
      EXPECT_EQ(*only, 7);
      EXPECT_EQ(recv_args.alloc_attrs.scope_id, 6);
      EXPECT_EQ(send_args.alloc_attrs.scope_id, status.ok() ? 5 : 0);
      EXPECT_EQ(tensor.valid(), status.ok() && !is_dead);
      if (tensor.valid()) {
        EXPECT_EQ(*tensor.data_as<int64_t>(), 3);
      }
      EXPECT_EQ(is_dead, calls == 2);
      EXPECT_EQ(status.ok(), calls < 3) << status;
    };
    const auto receive = [&] {
      step->RecvAsync(LocalKey("a"), to,
                      [&done](absl::Status status, const Args& send_args, const Args& recv_args,
                              Tensor tensor, bool is_dead) {
                        done(std::move(status), send_args, recv_args, std::move(tensor), is_dead);
                      });
    };
    receive();
    ASSERT_TRUE(step->Send(LocalKey("a"), from, Number(3), false).ok());
    EXPECT_EQ(calls, 1);
    ASSERT_TRUE(step->Send(LocalKey("a"), from, Tensor(), true).ok());
    receive();
    EXPECT_EQ(calls, 2);
    // A null one throws the tensor away.
    ASSERT_TRUE(step->Send(LocalKey("b"), from, Number(3), false).ok());
    step->RecvAsync(LocalKey("b"), to, FiveArgumentDoneFn());
    receive();
    step->StartAbort(absl::AbortedError("over"));
    EXPECT_EQ(calls, 3);
  }

  VirtualAlarms alarms_;
};

TEST_F(FiveArgumentsTest, AreStillReceivedBy) {
  LocalRendezvous local(LocalRendezvous::Options(), &alarms_);
  ReceiveBy(&local);
  const auto step =
      RoutingRendezvous::Make(kWorker0, 1, LocalRendezvous::Options(), &alarms_, nullptr, nullptr);
  ReceiveBy(step.get());
  LocalRendezvous other(LocalRendezvous::Options(), &alarms_);
  ReceiveBy(static_cast<Rendezvous*>(&other));
}

}  // namespace
}  // namespace tryst

#pragma GCC diagnostic pop
