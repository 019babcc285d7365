// The parts that need no provider. The NIC itself is tested in
// tests/contract/nic_contract_ofi_test.cc.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbs/ofi/ofi_address.h"
#include "verbs/ofi/ofi_calls.h"
#include "verbs/ofi/ofi_frame.h"
#include "verbs/ofi/ofi_naps.h"
#include "verbs/ofi/ofi_nic.h"
#include "verbs/ofi/ofi_provider.h"
#include "verbs/ofi/ofi_receives.h"
#include "verbs/ofi/ofi_region_table.h"

namespace tryst {
namespace {

TEST(OfiCallsTest, LibraryThatIsNotThereSaysWhatToInstall) {
  const auto calls = LoadOfiCalls("libfabric-of-nobody.so.1");
  EXPECT_EQ(calls.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(calls.status().message().find("libfabric1"), std::string::npos) << calls.status();
}

TEST(OfiCallsTest, LibraryWithoutTheCallsIsNotTaken) {
  EXPECT_EQ(LoadOfiCalls("libc.so.6").status().code(), absl::StatusCode::kNotFound);
}

TEST(OfiProviderTest, IsFoundByAnyOfItsNames) {
  for (const char* name : {"ofi:tcp", "tcp", "ofi:tcp;ofi_rxm", "tcp;ofi_rxm"}) {
    const auto provider = FindOfiProvider(name);
    ASSERT_TRUE(provider.ok()) << provider.status();
    EXPECT_EQ(provider->full_name, "tcp;ofi_rxm");
  }
  const auto unknown = FindOfiProvider("ofi:pigeon");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("ofi:efa"), std::string::npos) << unknown.status();
  EXPECT_TRUE(IsOfiName("ofi:"));
  EXPECT_FALSE(IsOfiName("soft"));
}

TEST(OfiNicTest, ProviderWithoutADeviceSaysSo) {
  OfiNicOptions options;
  options.provider = "ofi:efa";
  const auto nic = OpenOfiNic(options);
  if (nic.ok()) GTEST_SKIP() << "this machine has one";
  EXPECT_EQ(nic.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(nic.status().message().find("efa is not usable here"), std::string::npos)
      << nic.status();
}

// A worker that naps and polls, at a provider whose poll takes some time, and more for what came.
class Napper {
 public:
  explicit Napper(int64_t empty_poll_ns) : empty_poll_ns_(empty_poll_ns) {}
  // Naps once while `bytes_per_us` come. Returns how many bytes lay there when it woke.
  double Nap(double bytes_per_us) {
    constexpr double kPollNsPerByte = 1.9;  // As udp;ofi_rxd was seen to take.
    const int64_t ends_ns = naps.Begin(now_ns);
    const double bytes = static_cast<double>(ends_ns - now_ns) / 1000 * bytes_per_us;
    now_ns = ends_ns + empty_poll_ns_ + static_cast<int64_t>(bytes * kPollNsPerByte);
    naps.OnPolled(ends_ns, now_ns);
    return bytes;
  }
  // Returns how often it naps in that time, in which nothing comes.
  int Rest(int64_t ns) {
    int count = 0;
    for (const int64_t until_ns = now_ns + ns; now_ns < until_ns; ++count) Nap(0);
    return count;
  }

  OfiNaps naps;
  int64_t now_ns = 1'000'000'000;

 private:
  const int64_t empty_poll_ns_;
};

TEST(OfiNapsTest, GetLongerWhileNothingCompletes) {
  Napper napper(1000);
  EXPECT_EQ(napper.naps.Begin(napper.now_ns), napper.now_ns + OfiNaps::kShortestNs);
  EXPECT_LT(napper.Rest(1'000'000'000), 1500);
  EXPECT_EQ(napper.naps.Begin(napper.now_ns), napper.now_ns + OfiNaps::kLongestNs);
  napper.naps.OnCompletion();
  EXPECT_EQ(napper.naps.Begin(napper.now_ns), napper.now_ns + OfiNaps::kShortestNs);
}

// What comes must fit into a socket's 208 KiB, or it gets lost and is sent again much later.
TEST(OfiNapsTest, StayShortWhileALargeWriteComes) {
  for (const int64_t empty_poll_ns : {1000, 10'000, 30'000}) {
    Napper napper(empty_poll_ns);
    napper.Rest(1'000'000'000);
    napper.naps.OnCompletion();  // The request for it has left.
    double most = 0;
    for (double came = 0; came < (1 << 30);) {
      const double bytes = napper.Nap(250);
      came += bytes;
      most = std::max(most, bytes);
    }
    EXPECT_LT(most, 160 << 10) << empty_poll_ns;
  }
}

TEST(OfiNapsTest, GetLongOnASlowMachineToo) {
  Napper napper(50'000);
  EXPECT_LT(napper.Rest(2'000'000'000), 3000);
}

TEST(OfiFrameTest, HasTheseBytes) {
  OfiFrame frame;
  frame.kind = OfiFrameKind::kSend;
  frame.flags = kOfiFirst | kOfiLast;
  frame.payload_bytes = 0x102;
  frame.immediate = 0x03040506;
  frame.token = 0x0708090a0b0c0d0e;
  frame.total_bytes = 0x0f;
  std::vector<uint8_t> bytes(kOfiFrameHeaderBytes + 0x102);
  EncodeOfiFrame(frame, bytes.data());
  const uint8_t golden[kOfiFrameHeaderBytes] = {
      'O', 'F',  'F',  1,    2,    3,    0,    0,    0x02, 0x01, 0, 0, 0x06, 0x05, 0x04, 0x03,
      0xe, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x07, 0x0f, 0,    0, 0, 0,    0,    0,    0};
  EXPECT_EQ(memcmp(bytes.data(), golden, sizeof(golden)), 0);
  OfiFrame back;
  ASSERT_TRUE(DecodeOfiFrame(bytes.data(), bytes.size(), &back));
  EXPECT_EQ(back.kind, frame.kind);
  EXPECT_EQ(back.immediate, frame.immediate);
  EXPECT_EQ(back.token, frame.token);
  EXPECT_EQ(back.total_bytes, frame.total_bytes);
}

TEST(OfiFrameTest, DamagedOnesAreRefused) {
  std::vector<uint8_t> bytes(kOfiFrameHeaderBytes + 8);
  OfiFrame frame;
  frame.payload_bytes = 8;
  EncodeOfiFrame(frame, bytes.data());
  OfiFrame out;
  ASSERT_TRUE(DecodeOfiFrame(bytes.data(), bytes.size(), &out));
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeOfiFrame(bytes.data(), cut, &out)) << cut;
  }
  for (const auto& [at, value] : {std::pair<size_t, uint8_t>{0, 0}, {4, 0}, {4, 5}, {8, 9}}) {
    std::vector<uint8_t> bad = bytes;
    bad[at] = value;
    EXPECT_FALSE(DecodeOfiFrame(bad.data(), bad.size(), &out)) << at;
  }
}

TEST(OfiAddressTest, ComesBackWhole) {
  OfiAddress address;
  address.provider = "shm";
  address.token = 77;
  address.name = std::string("a\0b", 3);
  const std::string text = EncodeOfiAddress(address);
  const auto back = DecodeOfiAddress(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->provider, "shm");
  EXPECT_EQ(back->token, 77u);
  EXPECT_EQ(back->name, address.name);
  for (size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_FALSE(DecodeOfiAddress(text.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(DecodeOfiAddress(text + "x").ok());
}

// libfabric reads as far as the first bytes say, whatever came.
TEST(OfiAddressTest, OfAnotherLengthIsRefused) {
  OfiNicOptions options;
  options.provider = "ofi:tcp";
  options.host = "127.0.0.1";
  auto nic = OpenOfiNic(options);
  if (!nic.ok()) GTEST_SKIP() << nic.status();
  auto queue = (*nic)->CreateCompletionQueue(64);
  ASSERT_TRUE(queue.ok()) << queue.status();
  QueuePairOptions wanted;
  wanted.completions = queue->get();
  wanted.send_depth = wanted.receive_depth = 4;
  auto pair = (*nic)->CreateQueuePair(wanted);
  ASSERT_TRUE(pair.ok()) << pair.status();
  auto address = DecodeOfiAddress((*pair)->LocalAddress());
  ASSERT_TRUE(address.ok()) << address.status();
  const std::string name = address->name;
  for (const std::string& wrong : {name.substr(0, 4), name + "more", name.substr(0, 2)}) {
    address->name = wrong;
    EXPECT_EQ((*pair)->Connect(EncodeOfiAddress(*address)).code(),
              absl::StatusCode::kInvalidArgument)
        << wrong.size() << " bytes";
  }
}

TEST(OfiRegionTableTest, KeyOfARegionThatWentOpensNothing) {
  OfiRegionTable table;
  void* descriptor = nullptr;
  int thing = 0;
  const auto key = table.Add(1000, 100, kLocalOnly, &thing);
  ASSERT_TRUE(key.ok());
  EXPECT_TRUE(table.Find({1000, 100, *key}, false, &descriptor));
  EXPECT_EQ(descriptor, &thing);
  EXPECT_FALSE(table.Find({1000, 100, *key}, true, &descriptor)) << "not to be written";
  EXPECT_FALSE(table.Find({999, 1, *key}, false, &descriptor));
  EXPECT_FALSE(table.Find({1001, 100, *key}, false, &descriptor));
  EXPECT_FALSE(table.Find({1001, ~uint64_t{0}, *key}, false, &descriptor));
  table.Remove(*key);
  EXPECT_FALSE(table.Find({1000, 100, *key}, false, &descriptor));
  const auto next = table.Add(1000, 100, kLocalWrite, &thing);
  ASSERT_TRUE(next.ok());
  EXPECT_NE(*next, *key) << "the row is used again, the key is not";
  EXPECT_FALSE(table.Find({1000, 100, *key}, false, &descriptor));
  EXPECT_TRUE(table.Find({1000, 100, *next}, true, &descriptor));
  EXPECT_FALSE(table.Find({1000, 100, 0}, false, &descriptor));
}

class OfiReceivesTest : public ::testing::Test {
 protected:
  OfiReceivesTest() : memory_(100), receives_(&table_, 4, 2) {
    key_ = *table_.Add(reinterpret_cast<uint64_t>(memory_.data()), memory_.size(), kLocalWrite,
                       nullptr);
  }
  void Post(uint64_t id, uint64_t first_bytes, uint64_t second_bytes) {
    const uint64_t at = reinterpret_cast<uint64_t>(memory_.data());
    const Entry entries[] = {{at, first_bytes, key_}, {at + 50, second_bytes, key_}};
    ReceiveWork work;
    work.id = id;
    work.entries = entries;
    receives_.Post(work);
  }
  bool Fill(uint8_t flags, uint64_t total, const std::string& payload, Completion* out) {
    OfiFrame frame;
    frame.flags = flags;
    frame.payload_bytes = static_cast<uint32_t>(payload.size());
    frame.total_bytes = total;
    return receives_.Fill(frame, reinterpret_cast<const uint8_t*>(payload.data()), out);
  }

  OfiRegionTable table_;
  std::vector<uint8_t> memory_;
  uint32_t key_ = 0;
  OfiReceives receives_;
};

TEST_F(OfiReceivesTest, PiecesFillTheEntriesOneBehindTheOther) {
  Post(7, 3, 5);
  Completion done;
  EXPECT_FALSE(Fill(kOfiFirst, 7, "ab", &done));
  EXPECT_FALSE(Fill(0, 7, "cde", &done));
  EXPECT_TRUE(Fill(kOfiLast, 7, "fg", &done));
  EXPECT_EQ(done.status, CompletionStatus::kOk);
  EXPECT_EQ(done.id, 7u);
  EXPECT_EQ(done.bytes, 7u);
  EXPECT_EQ(memcmp(&memory_[0], "abc", 4), 0);
  EXPECT_EQ(memcmp(&memory_[50], "defg", 5), 0);
  EXPECT_TRUE(receives_.empty());
}

TEST_F(OfiReceivesTest, SendThatIsTooLongTouchesNothing) {
  Post(7, 3, 5);
  Completion done;
  EXPECT_TRUE(Fill(kOfiFirst, 9, "abc", &done));
  EXPECT_EQ(done.status, CompletionStatus::kLocalLength);
  EXPECT_EQ(memory_[0], 0);
}

TEST_F(OfiReceivesTest, MoreThanWasAnnouncedIsRefused) {
  Post(7, 50, 50);
  Completion done;
  EXPECT_FALSE(Fill(kOfiFirst, 4, "abc", &done));
  EXPECT_TRUE(Fill(kOfiLast, 4, "de", &done));
  EXPECT_EQ(done.status, CompletionStatus::kLocalLength);
  EXPECT_EQ(memory_[3], 0);
}

TEST_F(OfiReceivesTest, MemoryThatIsNotRegisteredIsNotWritten) {
  Post(7, 3, 5);
  table_.Remove(key_);
  Completion done;
  EXPECT_TRUE(Fill(kOfiFirst | kOfiLast, 2, "ab", &done));
  EXPECT_EQ(done.status, CompletionStatus::kLocalProtection);
  EXPECT_EQ(memory_[0], 0);
}

}  // namespace
}  // namespace tryst
