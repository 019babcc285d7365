#ifndef TRYST_TESTS_DOUBLES_IBV_IBV_NIC_FIXTURE_H_
#define TRYST_TESTS_DOUBLES_IBV_IBV_NIC_FIXTURE_H_

#include <poll.h>

#include <memory>

#include "gtest/gtest.h"
#include "tests/doubles/ibv/fake_ibv.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {

inline bool Readable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// A NIC over the fake library, which must get everything back.
class IbvNicTest : public ::testing::Test {
 protected:
  IbvNicTest() : device_(fake_.AddDevice("fake0")) {
    options_.calls = fake_.Calls();
    options_.choice.sysfs_root = "/does-not-exist";
    options_.random = [] { return 0xff123456u; };
  }
  ~IbvNicTest() override {
    nic_.reset();
    EXPECT_EQ(fake_.live(), 0) << "something stays open";
    EXPECT_EQ(fake_.unacknowledged_events(), 0);
  }

  Nic* Open() {
    absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(options_);
    EXPECT_TRUE(nic.ok()) << nic.status();
    if (nic.ok()) nic_ = *std::move(nic);
    return nic_.get();
  }
  absl::Status OpenFailure() { return OpenIbvNic(options_).status(); }

  FakeIbv fake_;
  FakeIbv::Device& device_;
  IbvNicOptions options_;
  std::unique_ptr<Nic> nic_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_IBV_IBV_NIC_FIXTURE_H_
