#ifndef TRYST_RENDEZVOUS_TESTING_H_
#define TRYST_RENDEZVOUS_TESTING_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/rendezvous.h"

// What tests of a Rendezvous share.
namespace tryst {

inline constexpr char kWorker0[] = "/job:w/replica:0/task:0";
inline constexpr char kWorker1[] = "/job:w/replica:0/task:1";

inline TensorKey KeyBetween(absl::string_view src, absl::string_view dst, absl::string_view edge) {
  return *TensorKey::Parse(absl::StrCat(src, ";0000000000000001;", dst, ";", edge, ";0:0"));
}
// From worker 0 to itself.
inline TensorKey LocalKey(absl::string_view edge) {
  return KeyBetween(absl::StrCat(kWorker0, "/device:CPU:0"),
                    absl::StrCat(kWorker0, "/device:CPU:0"), edge);
}

inline Tensor Number(int64_t number) {
  Tensor tensor = *Tensor::Allocate(DType::kInt64, {});
  *static_cast<int64_t*>(tensor.mutable_data()) = number;
  return tensor;
}

// In a device's memory, as it says: whoever reads it on the host gets a fault.
inline Tensor OnDevice(DType dtype, const TensorShape& shape) {
  constexpr size_t kBytes = 4096;
  void* const unreadable = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(unreadable, MAP_FAILED);
  MemorySpace device;
  device.kind = MemorySpace::Kind::kDevice;
  return *Tensor::Adopt(unreadable, dtype, shape, device,
                        [unreadable] { munmap(unreadable, kBytes); });
}

// What a receive ended with. Fails the test when its `done` is dropped without having
// been called, or called twice.
struct Outcome : Received {
  int calls = 0;

  int64_t number() const { return tensor.valid() ? *tensor.data_as<int64_t>() : -1; }
  bool ok() const { return calls == 1 && status.ok(); }
  absl::StatusCode code() const { return status.code(); }
};

// Explodes when it is destroyed unless it has been defused.
class Bomb {
 public:
  Bomb() = default;
  Bomb(Bomb&& other) noexcept : armed_(std::exchange(other.armed_, false)) {}
  Bomb& operator=(Bomb&&) = delete;
  ~Bomb() {
    if (armed_) ADD_FAILURE() << "a callback was dropped without having been called";
  }
  void Defuse() {
    if (!std::exchange(armed_, false)) ADD_FAILURE() << "a callback was called twice";
  }

 private:
  bool armed_ = true;
};

inline DoneFn Into(std::shared_ptr<Outcome> outcome) {
  return [outcome = std::move(outcome), bomb = Bomb()](Received&& received) mutable {
    bomb.Defuse();
    ++outcome->calls;
    static_cast<Received&>(*outcome) = std::move(received);
  };
}

inline std::shared_ptr<Outcome> Receive(Rendezvous* rendezvous, const TensorKey& key,
                                        const RecvArgs& args = RecvArgs()) {
  auto outcome = std::make_shared<Outcome>();
  rendezvous->RecvAsync(key, args, Into(outcome));
  return outcome;
}

inline absl::Status SendNumber(Rendezvous* rendezvous, const TensorKey& key, int64_t number) {
  return rendezvous->Send(key, SendArgs(), Number(number), false);
}

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TESTING_H_
