#include "verbs/ibv/rdma_settings.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RdmaSettingsTest : public ::testing::Test {
 protected:
  absl::StatusOr<RdmaSettings> Parse(const std::map<std::string, std::string>& environment) {
    warnings_.clear();
    return ParseRdmaSettings(environment, &warnings_);
  }
  std::string Failure(const std::map<std::string, std::string>& environment) {
    const absl::StatusOr<RdmaSettings> settings = Parse(environment);
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(settings.status().message());
  }

  std::vector<std::string> warnings_;
};

TEST_F(RdmaSettingsTest, NothingSetDecidesNothing) {
  const absl::StatusOr<RdmaSettings> settings = Parse({{"PATH", "/bin"}});
  ASSERT_TRUE(settings.ok());
  EXPECT_FALSE(settings->device || settings->port || settings->gid_index || settings->mtu_bytes);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RdmaSettingsTest, BothSpellingsMeanTheSame) {
  const absl::StatusOr<RdmaSettings> documented = Parse({{"RDMA_DEVICE", "mlx5_1"},
                                                         {"RDMA_DEVICE_PORT", "2"},
                                                         {"RDMA_GID_INDEX", "3"},
                                                         {"RDMA_QP_PKEY_INDEX", "4"},
                                                         {"RDMA_QP_QUEUE_DEPTH", "512"},
                                                         {"RDMA_QP_TIMEOUT", "18"},
                                                         {"RDMA_QP_RETRY_COUNT", "5"},
                                                         {"RDMA_QP_SL", "6"},
                                                         {"RDMA_QP_MTU", "2048"},
                                                         {"RDMA_TRAFFIC_CLASS", "106"}});
  EXPECT_THAT(warnings_, IsEmpty());
  const absl::StatusOr<RdmaSettings> in_code = Parse({{"RDMA_DEVICE", "mlx5_1"},
                                                      {"RDMA_DEVICE_PORT", "2"},
                                                      {"RDMA_GID_INDEX", "3"},
                                                      {"RDMA_PKEY", "4"},
                                                      {"RDMA_QUEUE_DEPTH", "512"},
                                                      {"RDMA_TIMEOUT", "18"},
                                                      {"RDMA_RETRY_CNT", "5"},
                                                      {"RDMA_SL", "6"},
                                                      {"RDMA_MTU", "2048"},
                                                      {"RDMA_TRAFFIC_CLASS", "106"}});
  EXPECT_THAT(warnings_, IsEmpty());
  for (const auto* settings : {&documented, &in_code}) {
    ASSERT_TRUE(settings->ok()) << settings->status();
    EXPECT_EQ((*settings)->device, std::string("mlx5_1"));
    EXPECT_EQ((*settings)->port, 2);
    EXPECT_EQ((*settings)->gid_index, 3u);
    EXPECT_EQ((*settings)->pkey_index, 4);
    EXPECT_EQ((*settings)->queue_depth, 512u);
    EXPECT_EQ((*settings)->ack_timeout, 18);
    EXPECT_EQ((*settings)->retry_count, 5);
    EXPECT_EQ((*settings)->service_level, 6);
    EXPECT_EQ((*settings)->mtu_bytes, 2048u);
    EXPECT_EQ((*settings)->traffic_class, 106);
  }
}

TEST_F(RdmaSettingsTest, GarbageNamesTheVariable) {
  EXPECT_EQ(Failure({{"RDMA_TIMEOUT", "soon"}}),
            "RDMA_TIMEOUT=\"soon\": the value is not a number");
  EXPECT_EQ(Failure({{"RDMA_QP_TIMEOUT", ""}}), "RDMA_QP_TIMEOUT=\"\": the value is not a number");
  EXPECT_EQ(Failure({{"RDMA_QP_TIMEOUT", "32"}}),
            "RDMA_QP_TIMEOUT=\"32\": the value is not from 1 to 31");
  EXPECT_EQ(Failure({{"RDMA_GID_INDEX", "-1"}}),
            "RDMA_GID_INDEX=\"-1\": the value is not a number");
  EXPECT_EQ(Failure({{"RDMA_GID_INDEX", "99999999999"}}),
            "RDMA_GID_INDEX=\"99999999999\": the value is not a number");
  EXPECT_EQ(Failure({{"RDMA_MTU", "1500"}}),
            "RDMA_MTU=\"1500\": the value is not 256, 512, 1024, 2048 or 4096");
  EXPECT_EQ(Failure({{"RDMA_DEVICE", ""}}), "RDMA_DEVICE=\"\": the value is empty");
}

TEST_F(RdmaSettingsTest, SpellingsThatContradictAreRefusedAndEqualOnesAreNot) {
  EXPECT_EQ(Failure({{"RDMA_QP_SL", "1"}, {"RDMA_SL", "2"}}),
            "RDMA_SL=\"2\": the value contradicts RDMA_QP_SL=\"1\"");
  EXPECT_TRUE(Parse({{"RDMA_QP_SL", "1"}, {"RDMA_SL", "1"}}).ok());
}

TEST_F(RdmaSettingsTest, AnUnknownVariableIsAWarning) {
  ASSERT_TRUE(Parse({{"RDMA_QP_RETRIES", "3"}}).ok());
  EXPECT_THAT(warnings_, ElementsAre("RDMA_QP_RETRIES means nothing here and is ignored"));
}

TEST_F(RdmaSettingsTest, SevenRetriesBecomeSixWithAWarning) {
  const absl::StatusOr<RdmaSettings> settings = Parse({{"RDMA_RETRY_CNT", "7"}});
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->retry_count, 6);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("RDMA_RETRY_CNT=7 taken as 6")));
}

}  // namespace
}  // namespace tryst
