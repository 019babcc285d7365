// README.md shows what stands between the two lines below; it is built and run here.

// example begins
#include "rendezvous/rendezvous.h"

absl::StatusOr<float> SendAndReceive(tryst::Rendezvous* step, const tryst::TensorKey& key) {
  absl::StatusOr<tryst::Tensor> loss = tryst::Tensor::Allocate(tryst::DType::kFloat, {1});
  if (!loss.ok()) return loss.status();
  *static_cast<float*>(loss->mutable_data()) = 0.5f;
  absl::Status sent = step->Send(key, tryst::SendArgs(), *std::move(loss), /*is_dead=*/false);
  if (!sent.ok()) return sent;
  absl::StatusOr<tryst::Received> got = step->Recv(key, tryst::RecvArgs(), absl::Seconds(5));
  if (!got.ok()) return got.status();
  return *got->tensor.data_as<float>();
}
// example ends

#include "gtest/gtest.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"

TEST(ReadmeTest, TheExampleWorks) {
  tryst::ThreadAlarms alarms;
  tryst::LocalRendezvous rendezvous(tryst::LocalRendezvous::Options(), &alarms);
  const absl::StatusOr<tryst::TensorKey> key = tryst::TensorKey::Parse(
      "/job:ps/replica:0/task:0/device:CPU:0;00000000000000a1;"
      "/job:worker/replica:0/task:1/device:CPU:0;loss;0:0");
  ASSERT_TRUE(key.ok()) << key.status();
  const absl::StatusOr<float> got = SendAndReceive(&rendezvous, *key);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, 0.5f);
}
