#include "examples/parameter_server/model.h"

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/parameter_server/shard.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

Layout Small(int servers) {
  Layout layout;
  layout.vocabulary = 7;
  layout.embedding = 4;
  layout.hidden = 5;
  layout.servers = servers;
  return layout;
}

// Assembles all parameters from the servers' shards, as a worker does.
Parameters Assemble(const Layout& layout, const Batch& batch) {
  Parameters all(layout);
  all.rows.resize(static_cast<Eigen::Index>(batch.words.size()), layout.embedding);
  for (int s = 0; s < layout.servers; ++s) {
    Shard shard(layout, s, 0.1f);
    ReadDense(layout, s, shard.Dense().data_as<float>(), &all);
    for (size_t i = 0; i < batch.words.size(); ++i) {
      if (batch.words[i] % layout.servers != s) continue;
      const Tensor row = shard.Rows({batch.words[i] / layout.servers});
      std::memcpy(all.rows.row(static_cast<Eigen::Index>(i)).data(), row.data(), row.bytes());
    }
  }
  return all;
}

class ModelTest : public testing::Test {
 protected:
  const std::vector<int32_t> words_ = {1, 2, 3, 4, 2, 6, 2};
};

TEST_F(ModelTest, GradientsAreTheSlopes) {
  const Layout layout = Small(1);
  const std::vector<std::vector<int32_t>> blocks = {words_};
  const Batch batch = MakeBatch(ExamplesOf(blocks, layout.context), layout.context);
  Parameters at = Assemble(layout, batch);
  Parameters gradients(layout);
  Loss(layout, batch, at, &gradients);
  for (auto [values, slopes] :
       {std::make_pair(&at.rows, &gradients.rows), std::make_pair(&at.hidden, &gradients.hidden),
        std::make_pair(&at.output, &gradients.output)}) {
    for (Eigen::Index i = 0; i < values->size(); ++i) {
      const float kept = values->data()[i];
      values->data()[i] = kept + 1e-2f;
      const float above = Loss(layout, batch, at, nullptr);
      values->data()[i] = kept - 1e-2f;
      const float below = Loss(layout, batch, at, nullptr);
      values->data()[i] = kept;
      ASSERT_NEAR(slopes->data()[i], (above - below) / 2e-2f, 2e-3) << i;
    }
  }
}

TEST_F(ModelTest, TheStartIsTheSameHoweverManyServersHoldIt) {
  const std::vector<std::vector<int32_t>> blocks = {words_};
  const Batch batch = MakeBatch(ExamplesOf(blocks, 3), 3);
  const Parameters whole = Assemble(Small(1), batch);
  for (int servers : {2, 3}) {
    const Parameters split = Assemble(Small(servers), batch);
    EXPECT_EQ(whole.rows, split.rows);
    EXPECT_EQ(whole.hidden, split.hidden);
    EXPECT_EQ(whole.output, split.output);
  }
}

TEST(ShardTest, WhatWasGivenOutDoesNotChange) {
  Shard shard(Small(2), 1, 0.1f);
  const Tensor before = shard.Dense();
  EXPECT_TRUE(before.SharesBytesWith(shard.Dense()));
  const float first = *before.data_as<float>();
  shard.ApplyDense(std::vector<float>(static_cast<size_t>(shard.dense_elements()), 1).data());
  EXPECT_EQ(*before.data_as<float>(), first);
  EXPECT_LT(*shard.Dense().data_as<float>(), first);
}

TEST(ShardTest, ASnapshotBringsEverythingBackAndNothingElseIsTaken) {
  const std::string path = testing::TempDir() + "/snapshot";
  const Layout layout = Small(2);
  const std::vector<float> ones(64, 1);
  Shard shard(layout, 0, 0.1f);
  EXPECT_TRUE(absl::IsNotFound(shard.Restore(path + ".none")));
  shard.ApplyRows({2}, ones.data());
  shard.CountUpdate();
  ASSERT_TRUE(shard.Save(path).ok());

  Shard back(layout, 0, 0.1f);
  ASSERT_TRUE(back.Restore(path).ok());
  EXPECT_EQ(back.updates(), 1);
  // Adagrad's sums were restored, too: the same gradient changes both in the same way.
  shard.ApplyRows({2}, ones.data());
  back.ApplyRows({2}, ones.data());
  EXPECT_EQ(std::memcmp(shard.Rows({2}).data(), back.Rows({2}).data(), 16), 0);

  Shard other(layout, 1, 0.1f);
  EXPECT_TRUE(absl::IsDataLoss(other.Restore(path)));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << "TRYSTPS1";
  EXPECT_TRUE(absl::IsDataLoss(back.Restore(path)));
  EXPECT_EQ(back.updates(), 1);
}

}  // namespace
}  // namespace tryst
