#include "server/members/trace_wire.h"

#include <gtest/gtest.h>

#include "proto/transport.pb.h"

namespace tryst {
namespace {

TEST(TraceWire, CountsComeAsTheyWent) {
  TraceDump dump;
  dump.counts.ended = 1;
  dump.counts.kept = 2;
  dump.counts.overwritten = 3;
  dump.counts.passed_over = 4;
  rpc::TraceResponse response;
  DumpToProto(dump, &response);
  const auto read = DumpFromProto(response);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->counts.ended, 1u);
  EXPECT_EQ(read->counts.kept, 2u);
  EXPECT_EQ(read->counts.overwritten, 3u);
  EXPECT_EQ(read->counts.passed_over, 4u);
}

}  // namespace
}  // namespace tryst
