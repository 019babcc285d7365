// What an owner may answer in place of a sealed version.
#include "server/weights/sealed_version.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "proto/weights.pb.h"
#include "weights/digests.h"

namespace tryst {
namespace {

TEST(SealedVersionTest, ComesBackAndIsRefusedWhereAPartIsWrong) {
  SealedVersion version;
  version.name.number = 5;
  version.label = "step 100";
  version.lists.resize(2);
  version.root = RootDigest(version.name, version.lists);
  const std::string bytes = EncodeSealed(version);
  const absl::StatusOr<SealedVersion> back = DecodeSealed(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->name.number, 5u);
  EXPECT_EQ(back->label, version.label);
  EXPECT_EQ(back->lists.size(), 2u);
  using Message = rpc::SealedWeights;
  const std::vector<std::function<void(Message*)>> changes = {
      [](Message* message) { message->mutable_layouts()->pop_back(); },
      [](Message* message) { message->mutable_lists()->push_back('x'); },
      [](Message* message) { message->clear_root(); },
      [](Message* message) { message->set_number(6); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Message message;
    ASSERT_TRUE(message.ParseFromString(bytes));
    changes[i](&message);
    const absl::Status status = DecodeSealed(message.SerializeAsString()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << i << ": " << status;
  }
}

}  // namespace
}  // namespace tryst
