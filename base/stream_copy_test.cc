#include "base/stream_copy.h"

#include <string>

#include "gtest/gtest.h"

namespace {

int parts_streamed = 0;

}  // namespace

// The linker has whoever calls StreamPart() call this.
extern "C" void RealStreamPart(void* to, const void* from,
                               size_t bytes) asm("__real__ZN5tryst10StreamPartEPvPKvm");
extern "C" void CountedStreamPart(void* to, const void* from,
                                  size_t bytes) asm("__wrap__ZN5tryst10StreamPartEPvPKvm");
void CountedStreamPart(void* to, const void* from, size_t bytes) {
  ++parts_streamed;
  RealStreamPart(to, from, bytes);
}

namespace tryst {
namespace {

// Whoever asks for no streams does not wait until they are there.
TEST(CopyPartTest, GoesAroundTheCachesWhereThatIsAskedForAndWorthIt) {
  const std::string from(kStreamSpanBytes + 1, 'x');
  for (const bool streams : {false, true}) {
    for (const size_t bytes : {size_t{0}, kStreamSpanBytes - 1, kStreamSpanBytes, from.size()}) {
      parts_streamed = 0;
      std::string to(from.size(), '.');
      CopyPart(&to[0], from.data(), bytes, streams);
      FinishStreams();
      EXPECT_EQ(parts_streamed, streams && bytes >= kStreamSpanBytes ? 1 : 0) << bytes;
      EXPECT_EQ(to, from.substr(0, bytes) + std::string(from.size() - bytes, '.'));
    }
  }
}

}  // namespace
}  // namespace tryst
