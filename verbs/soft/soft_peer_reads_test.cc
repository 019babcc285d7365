#include "verbs/soft/soft_peer_reads.h"

#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class SoftPeerReadsTest : public ::testing::Test {
 protected:
  SoftPeerReadsTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    lane_.stream = SoftStream(Fd(fds[0]));
    other_ = Fd(fds[1]);
    lane_.out = std::make_unique<SoftBatch>();
  }
  void Add(uint32_t sequence, uint64_t bytes) {
    FrameHeader frame;
    frame.type = FrameType::kRead;
    frame.sequence = sequence;
    frame.remote_key = 100 + sequence;
    frame.address = reinterpret_cast<uint64_t>(memory_.data());
    frame.total = bytes;
    reads_.Add(frame);
  }
  // The header of the next frame of an answer, whose payload has to be the memory's.
  FrameHeader Answer() {
    FrameHeader header;
    header.type = FrameType::kReadResponse;
    lane_.out_remote_key = 0;
    reads_.AddAnswer(header, &lane_);
    std::string came;
    while (!lane_.out->empty()) {
      size_t written = 0;
      EXPECT_NE(lane_.out->WriteTo(&lane_.stream, &written), SoftBatch::Progress::kLost);
      char bytes[1 << 16];
      ssize_t got;
      while ((got = recv(other_.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
        came.append(bytes, static_cast<size_t>(got));
      }
    }
    lane_.out->Clear();
    EXPECT_GE(came.size(), kFrameHeaderBytes);
    FrameHeader sent;
    EXPECT_TRUE(DecodeFrameHeader(reinterpret_cast<const uint8_t*>(came.data()), &sent));
    EXPECT_EQ(came.size(), kFrameHeaderBytes + sent.bytes);
    EXPECT_TRUE(came.substr(kFrameHeaderBytes) == memory_.substr(sent.address, sent.bytes));
    return sent;
  }

  std::string memory_ = [] {
    std::string bytes(2 * kMaxFrameBytes + 10, 0);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    return bytes;
  }();
  SoftPeerReads reads_{2};
  SoftLane lane_;
  Fd other_;
};

TEST_F(SoftPeerReadsTest, EachIsAnsweredInItsTurnInFramesOfTheLargestSize) {
  EXPECT_TRUE(reads_.empty());
  for (uint32_t round = 0; round < 3; ++round) {  // Its places are used again.
    Add(10 + round, memory_.size());
    EXPECT_FALSE(reads_.empty());
    EXPECT_FALSE(reads_.full());
    Add(20 + round, 5);
    EXPECT_TRUE(reads_.full());
    EXPECT_FALSE(reads_.OldestIsCut(1)) << "it has not begun";
    for (uint64_t offset = 0; offset < memory_.size(); offset += kMaxFrameBytes) {
      const FrameHeader frame = Answer();
      EXPECT_EQ(frame.sequence, 10 + round);
      EXPECT_EQ(frame.total, memory_.size());
      EXPECT_EQ(frame.address, offset);
      EXPECT_EQ(frame.bytes, std::min<uint64_t>(kMaxFrameBytes, memory_.size() - offset));
      EXPECT_EQ(lane_.out_remote_key, 110 + round);
      EXPECT_EQ(lane_.out_address, reinterpret_cast<uint64_t>(memory_.data()) + offset);
      EXPECT_EQ(lane_.out_bytes, frame.bytes);
      EXPECT_EQ(reads_.OldestIsCut(memory_.size()), offset + kMaxFrameBytes < memory_.size());
      EXPECT_FALSE(reads_.OldestIsCut(memory_.size() + 1));
    }
    EXPECT_FALSE(reads_.full());
    EXPECT_EQ(Answer().sequence, 20 + round);
    EXPECT_TRUE(reads_.empty());
  }
}

// It opens no memory.
TEST_F(SoftPeerReadsTest, AReadOfNothingIsAnsweredWithNothing) {
  Add(1, 0);
  const FrameHeader frame = Answer();
  EXPECT_EQ(frame.sequence, 1u);
  EXPECT_EQ(frame.total, 0u);
  EXPECT_EQ(frame.bytes, 0u);
  EXPECT_EQ(lane_.out_remote_key, 0u);
  EXPECT_TRUE(reads_.empty());
  EXPECT_FALSE(reads_.OldestIsCut(0));
}

}  // namespace
}  // namespace tryst
