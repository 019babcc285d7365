#include "base/sealing.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

std::string Hex(absl::Span<const uint8_t> bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Test case 1 of RFC 5869.
TEST(SealingTest, DerivesTheKeysOfTheStandard) {
  uint8_t key[42];
  DeriveKey(std::string(22, '\x0b'), absl::HexStringToBytes("000102030405060708090a0b0c"),
            absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"), absl::MakeSpan(key));
  EXPECT_EQ(Hex(key),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  uint8_t again[42];
  ExpandKey(
      absl::HexStringToBytes("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"),
      absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"), absl::MakeSpan(again));
  EXPECT_EQ(Hex(again), Hex(key));
}

struct Sealed {
  std::string text;
  uint8_t tag[Sealing::kTagBytes];
};

Sealed SealText(const std::string& secret, uint64_t number, const std::string& beside,
                const std::string& text) {
  Sealed sealed{std::string(text.size(), '\0'), {}};
  Sealing sealing(secret, "salt", "test");
  sealing.BeginSeal(number, beside);
  sealing.Add(text.data(), text.size() / 3, sealed.text.data());
  sealing.Add(text.data() + text.size() / 3, text.size() - text.size() / 3,
              sealed.text.data() + text.size() / 3);
  sealing.EndSeal(sealed.tag);
  return sealed;
}

bool Opens(const std::string& secret, uint64_t number, const std::string& beside, Sealed sealed,
           std::string* text) {
  Sealing sealing(secret, "salt", "test");
  sealing.BeginOpen(number, beside);
  sealing.Add(sealed.text.data(), sealed.text.size(), sealed.text.data());
  *text = sealed.text;
  return sealing.EndOpen(sealed.tag);
}

TEST(SealingTest, OpensWhatWasSealedAndNothingElse) {
  const std::string text = "sixteen bytes of a tensor, and some more";
  const Sealed sealed = SealText("secret", 7, "header", text);
  EXPECT_EQ(sealed.text.find("tensor"), std::string::npos);
  std::string got;
  ASSERT_TRUE(Opens("secret", 7, "header", sealed, &got));
  EXPECT_EQ(got, text);
  EXPECT_FALSE(Opens("another", 7, "header", sealed, &got));
  EXPECT_FALSE(Opens("secret", 8, "header", sealed, &got));
  EXPECT_FALSE(Opens("secret", 7, "Header", sealed, &got));
  for (size_t i = 0; i < text.size(); ++i) {
    Sealed edited = sealed;
    edited.text[i] = static_cast<char>(edited.text[i] ^ 1);
    EXPECT_FALSE(Opens("secret", 7, "header", edited, &got)) << i;
  }
  Sealed shorter = sealed;
  shorter.text.pop_back();
  EXPECT_FALSE(Opens("secret", 7, "header", shorter, &got));
}

}  // namespace
}  // namespace tryst
