// README.md shows what stands between the two lines below; it is built and run here.

// example begins
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"

absl::StatusOr<float> SendAndReceive() {
  tryst::ThreadAlarms alarms;
  tryst::LocalRendezvous rendezvous(tryst::LocalRendezvous::Options(), &alarms);

  absl::StatusOr<tryst::TensorKey> key = tryst::TensorKey::Parse(
      "/job:ps/replica:0/task:0/device:CPU:0;00000000000000a1;"
      "/job:worker/replica:0/task:1/device:CPU:0;weights;0:0");
  if (!key.ok()) return key.status();
  absl::StatusOr<tryst::Tensor> weights = tryst::Tensor::Allocate(tryst::DType::kFloat, {1});
  if (!weights.ok()) return weights.status();
  *static_cast<float*>(weights->mutable_data()) = 0.5f;

  absl::StatusOr<float> got = absl::UnknownError("done has not run");
  rendezvous.RecvAsync(*key, tryst::Args(),
                       [&got](absl::Status status, const tryst::Args&, const tryst::Args&,
                              tryst::Tensor tensor, bool is_dead) {
                         if (status.ok() && !is_dead) got = *tensor.data_as<float>();
                         if (!status.ok()) got = status;
                       });
  absl::Status sent = rendezvous.Send(*key, tryst::Args(), *weights, /*is_dead=*/false);
  if (!sent.ok()) return sent;
  return got;
}
// example ends

#include "gtest/gtest.h"

TEST(ReadmeTest, TheExampleWorks) {
  const absl::StatusOr<float> got = SendAndReceive();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, 0.5f);
}
