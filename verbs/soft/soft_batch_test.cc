#include "verbs/soft/soft_batch.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbs/soft/soft_lane.h"

namespace tryst {
namespace {

using Works = std::vector<uint64_t>;

// A batch, the socket that it is written to, and what has come out at the other end.
class SoftBatchTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBytes = 1000;

  SoftBatchTest() : payload_(kBytes, 'p') {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    stream_ = SoftStream(Fd(fds[0]));
    other_ = Fd(fds[1]);
    const int least = 1;
    EXPECT_EQ(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
  }
  // Adds a frame whose bytes are in two pieces.
  void Add(uint64_t work, uint32_t bytes = kBytes) {
    FrameHeader header;
    header.type = FrameType::kWrite;
    header.sequence = static_cast<uint32_t>(work);
    header.total = header.bytes = bytes;
    const iovec pieces[2] = {{&payload_[0], bytes / 2}, {&payload_[bytes / 2], bytes - bytes / 2}};
    batch_.Add(header, pieces, 2, work);
  }
  // Writes until the socket has no room.
  SoftBatch::Progress Write() {
    for (;;) {
      size_t written = 0;
      const SoftBatch::Progress progress = batch_.WriteTo(&stream_, &written);
      sent_ += written;
      if (progress != SoftBatch::Progress::kSome || written == 0) return progress;
    }
  }
  Works Written() {
    Works works;
    for (;;) {
      const uint64_t work = batch_.TakeWritten();
      if (work == SoftBatch::kNoWork) return works;
      works.push_back(work);
    }
  }
  void Read() {
    char bytes[4096];
    ssize_t got;
    while ((got = recv(other_.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
      came_.append(bytes, static_cast<size_t>(got));
    }
  }
  // Whether what came is these frames, whole and in order.
  void ExpectCame(const Works& works) {
    ASSERT_EQ(came_.size(), works.size() * (kFrameHeaderBytes + kBytes));
    for (size_t i = 0; i < works.size(); ++i) {
      const std::string frame = came_.substr(i * (kFrameHeaderBytes + kBytes));
      FrameHeader header;
      ASSERT_TRUE(DecodeFrameHeader(reinterpret_cast<const uint8_t*>(frame.data()), &header));
      EXPECT_EQ(header.sequence, works[i]);
      EXPECT_EQ(frame.substr(kFrameHeaderBytes, kBytes), payload_);
    }
  }

  SoftBatch batch_;
  SoftStream stream_;
  Fd other_;
  std::string payload_;
  std::string came_;
  size_t sent_ = 0;
};

TEST_F(SoftBatchTest, WorksAreDoneWhenTheirFramesHaveLeft) {
  EXPECT_TRUE(batch_.empty());
  Works all;
  for (uint64_t work = 1; work <= 20; ++work) {
    Add(work);
    all.push_back(work);
  }
  EXPECT_FALSE(batch_.empty());
  EXPECT_EQ(batch_.bytes(), 20 * (kFrameHeaderBytes + kBytes));
  EXPECT_EQ(Written(), Works());
  Works done;
  int times = 0;
  for (SoftBatch::Progress progress; done.size() < all.size(); ++times) {
    ASSERT_LT(times, 1000);
    progress = Write();
    ASSERT_NE(progress, SoftBatch::Progress::kLost);
    for (const uint64_t work : Written()) done.push_back(work);
    EXPECT_EQ(done.size(), sent_ / (kFrameHeaderBytes + kBytes)) << "a frame that has not left";
    EXPECT_EQ(progress == SoftBatch::Progress::kAll, done.size() == all.size());
    Read();
  }
  EXPECT_GT(times, 1) << "the socket has room for all of them at once";
  EXPECT_EQ(done, all);
  EXPECT_TRUE(batch_.empty());
  ExpectCame(all);
  batch_.Clear();
  EXPECT_TRUE(batch_.empty());
  EXPECT_EQ(batch_.bytes(), 0u);
  came_.clear();
  Add(21);
  EXPECT_EQ(Write(), SoftBatch::Progress::kAll);
  EXPECT_EQ(Written(), Works{21});
  Read();
  ExpectCame({21});
}

// The socket took part of a frame, and only the rest of that frame may follow.
TEST_F(SoftBatchTest, TheRestOfAFrameIsWhatTheSocketDidNotTake) {
  EXPECT_TRUE(batch_.RestOfFrame().empty());
  for (uint64_t work = 1; work <= 20; ++work) Add(work);
  EXPECT_TRUE(batch_.RestOfFrame().empty()) << "none has begun";
  ASSERT_EQ(Write(), SoftBatch::Progress::kSome);
  const size_t frame = kFrameHeaderBytes + kBytes;
  const std::vector<uint8_t> rest = batch_.RestOfFrame();
  EXPECT_EQ((sent_ + rest.size()) % frame, 0u);
  EXPECT_LT(rest.size(), frame);
  Read();
  came_.append(rest.begin(), rest.end());
  Works works;
  for (uint64_t work = 1; work <= (sent_ + rest.size()) / frame; ++work) works.push_back(work);
  ExpectCame(works);
}

TEST_F(SoftBatchTest, HoldsSoManyFramesAndParts) {
  for (int i = 0; i < SoftBatch::kMaxFrames; ++i) {
    EXPECT_TRUE(batch_.HasRoom(2)) << i;
    Add(1);
  }
  EXPECT_FALSE(batch_.HasRoom(0));
  batch_.Clear();
  EXPECT_TRUE(batch_.HasRoom(SoftBatch::kMaxPieces - 1));
  EXPECT_FALSE(batch_.HasRoom(SoftBatch::kMaxPieces));
  Add(1);
  EXPECT_TRUE(batch_.HasRoom(SoftBatch::kMaxPieces - 4));
  EXPECT_FALSE(batch_.HasRoom(SoftBatch::kMaxPieces - 3));
}

// Only bytes that TLS held back are to be sent.
TEST_F(SoftBatchTest, ABatchWithoutBytesIsWritten) {
  errno = EINVAL;
  EXPECT_EQ(Write(), SoftBatch::Progress::kAll);
}

TEST_F(SoftBatchTest, ASocketWithoutItsOtherEndIsLost) {
  Add(1);
  other_.Close();
  EXPECT_EQ(Write(), SoftBatch::Progress::kLost);
  EXPECT_EQ(Written(), Works());
}

TEST(GatherTest, FindsBytesInParts) {
  const Entry entries[] = {{1000, 10, 0}, {2000, 0, 0}, {3000, 20, 0}, {4000, 5, 0}};
  iovec out[4];
  const auto gather = [&](uint64_t offset, uint64_t bytes, int max) {
    std::vector<std::pair<uint64_t, uint64_t>> found;
    const int count = Gather(entries, 4, offset, bytes, out, max);
    for (int i = 0; i < count; ++i) {
      found.emplace_back(reinterpret_cast<uint64_t>(out[i].iov_base), out[i].iov_len);
    }
    return found;
  };
  using Found = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(gather(0, 35, 4), (Found{{1000, 10}, {3000, 20}, {4000, 5}}));
  EXPECT_EQ(gather(9, 2, 4), (Found{{1009, 1}, {3000, 1}}));
  EXPECT_EQ(gather(10, 1, 4), (Found{{3000, 1}}));
  EXPECT_EQ(gather(12, 18, 4), (Found{{3002, 18}}));
  EXPECT_EQ(gather(0, 35, 2), (Found{{1000, 10}, {3000, 20}}));
  EXPECT_EQ(gather(30, 0, 4), Found());
  EXPECT_EQ(gather(35, 3, 4), Found());
}

}  // namespace
}  // namespace tryst
