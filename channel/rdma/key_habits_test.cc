#include "channel/rdma/key_habits.h"

#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class KeyHabitsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kNumber = 3;
  static void Make(const std::string& edge, FetchKey* key) {
    const std::string device = "/job:p/replica:0/task:0/device:CPU:0";
    key->key = *TensorKey::Parse(device + ";0000000000000001;" + device + ";" + edge + ";0:0");
    key->id = kNumber;
  }
  KeyHabitsTest() {
    Make("a", &key_);
    Make("b", &other_);
  }
  FetchKey key_, other_;
  KeyHabits habits_;
};

TEST_F(KeyHabitsTest, TheLastTensorsBytesAreKnown) {
  EXPECT_EQ(habits_.Of(key_)->bytes_last, 0u) << "none was seen";
  habits_.NoteBytes(key_, 700);
  EXPECT_EQ(habits_.Of(key_)->bytes_last, 700u);
  habits_.NoteBytes(key_, 0);
  EXPECT_EQ(habits_.Of(key_)->bytes_last, 1u) << "one was seen";
}

TEST_F(KeyHabitsTest, AStrideThatComesAgainIsRegular) {
  for (const int64_t step : {10, 12, 14, 16}) habits_.NoteStep(key_, step);
  EXPECT_EQ(habits_.Of(key_)->stride, 2u);
  EXPECT_EQ(habits_.Of(key_)->regular, 2u);
  habits_.NoteStep(key_, 17);
  EXPECT_EQ(habits_.Of(key_)->regular, 0u);
  for (int i = 0; i < 3; ++i) habits_.NoteStep(key_, 17);
  EXPECT_EQ(habits_.Of(key_)->regular, 0u) << "the same step is no stride";
}

TEST_F(KeyHabitsTest, StringsAreLikeNothing) {
  habits_.NoteTensor(key_, *Tensor::Allocate(DType::kFloat, {3, 5}));
  EXPECT_EQ(habits_.Of(key_)->like.bytes, 60u);
  EXPECT_EQ(habits_.Of(key_)->like.rank, 2);
  habits_.NoteTensor(key_, *Tensor::FromStrings({"x"}, {1}));
  EXPECT_EQ(habits_.Of(key_)->like.bytes, 0u);
}

TEST_F(KeyHabitsTest, ANumberThatIsAnothersIsForgotten) {
  habits_.NoteBytes(key_, 700);
  EXPECT_EQ(habits_.Of(other_)->bytes_last, 0u);
  EXPECT_EQ(habits_.Of(key_)->bytes_last, 0u);
}

}  // namespace
}  // namespace tryst
