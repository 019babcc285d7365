#include "plugins/nccl/wire.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace tryst::nccl {
namespace {

// The layouts that NCCL's public headers have on a 64-bit machine.
TEST(AbiTest, LayoutsAreNccls) {
  EXPECT_EQ(sizeof(PropertiesV6), 48u);
  EXPECT_EQ(sizeof(PropertiesV7), 56u);
  EXPECT_EQ(sizeof(PropertiesV8), 64u);
  EXPECT_EQ(offsetof(PropertiesV9, members), 64u);
  EXPECT_EQ(offsetof(PropertiesV9, max_p2p_bytes), 88u);
  EXPECT_EQ(sizeof(PropertiesV9), 104u);
  EXPECT_EQ(sizeof(PropertiesV11), 112u);
  EXPECT_EQ(offsetof(PropertiesV12, max_p2p_bytes), 104u);
  EXPECT_EQ(offsetof(PropertiesV12, rail), 124u);
  EXPECT_EQ(sizeof(PropertiesV12), 128u);
  EXPECT_EQ(sizeof(TableV6), 17 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV7), 19 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV8), 19 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV9), 20 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV10), 20 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV11), 22 * sizeof(void*));
  EXPECT_EQ(sizeof(TableV12), 22 * sizeof(void*));
}

Hello SomeHello() {
  Hello hello;
  hello.secret.fill(7);
  hello.name.process = 12;
  hello.name.pid = 34;
  hello.name.host = "host";
  hello.name.device = "eth0";
  hello.announcements = {0x1000, 9};
  hello.lanes = {"one", "two"};
  return hello;
}

Welcome SomeWelcome() {
  Welcome welcome;
  welcome.name.pid = 56;
  welcome.eager = {0x2000, 8};
  welcome.eager_bytes = 4096;
  welcome.lanes = {"three"};
  welcome.rails = {1};
  return welcome;
}

TEST(WireTest, GreetingsComeBackWhole) {
  const absl::StatusOr<Hello> hello = DecodeHello(Encode(SomeHello()));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->secret, SomeHello().secret);
  EXPECT_EQ(hello->name.ToString(), "process 34 on host (eth0)");
  EXPECT_EQ(hello->announcements.key, 9u);
  EXPECT_EQ(hello->lanes, SomeHello().lanes);
  const absl::StatusOr<Welcome> welcome = DecodeWelcome(Encode(SomeWelcome()));
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_EQ(welcome->eager.address, 0x2000u);
  EXPECT_EQ(welcome->rails, SomeWelcome().rails);
}

TEST(WireTest, EveryPartAndEveryAddedByteIsRefused) {
  const std::string hello = Encode(SomeHello());
  const std::string welcome = Encode(SomeWelcome());
  for (size_t bytes = 0; bytes < hello.size(); ++bytes) {
    EXPECT_FALSE(DecodeHello(hello.substr(0, bytes)).ok()) << bytes;
  }
  for (size_t bytes = 0; bytes < welcome.size(); ++bytes) {
    EXPECT_FALSE(DecodeWelcome(welcome.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(DecodeHello(hello + "x").ok());
  EXPECT_FALSE(DecodeWelcome(welcome + "x").ok());
}

TEST(WireTest, NoByteOfAGreetingCanBeHostile) {
  for (const std::string& good : {Encode(SomeHello()), Encode(SomeWelcome())}) {
    for (size_t at = 0; at < good.size(); ++at) {
      for (const int value : {0, 1, 0x7f, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(value);
        const absl::StatusOr<Hello> hello = DecodeHello(bad);
        if (hello.ok()) {
          EXPECT_LE(hello->lanes.size(), static_cast<size_t>(kMaxLanes));
        }
        const absl::StatusOr<Welcome> welcome = DecodeWelcome(bad);
        if (welcome.ok()) {
          EXPECT_EQ(welcome->lanes.size(), welcome->rails.size());
        }
      }
    }
  }
}

TEST(WireTest, ImmediatesComeBackWhole) {
  Immediate in;
  in.kind = Immediate::Kind::kAnnouncement;
  in.slot = 31;
  in.receive = 7;
  in.pieces = Immediate::kMaxPieces;
  in.generation = Immediate::kGenerationMask;
  const Immediate out = Immediate::Unpack(in.Pack());
  EXPECT_EQ(out.kind, in.kind);
  EXPECT_EQ(out.slot, in.slot);
  EXPECT_EQ(out.receive, in.receive);
  EXPECT_EQ(out.pieces, in.pieces);
  EXPECT_EQ(out.generation, in.generation);
}

}  // namespace
}  // namespace tryst::nccl
