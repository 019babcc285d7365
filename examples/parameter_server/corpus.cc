#include "examples/parameter_server/corpus.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr int kRareBelow = 3;
constexpr size_t kBlockWords = 200;
constexpr size_t kHoldOutEach = 10;

// Splits the text into words: letters in lower case. A full stop is a word, too.
void Split(const std::string& text, std::vector<std::string>* words) {
  std::string word;
  for (char c : text) {
    if (absl::ascii_isalpha(static_cast<unsigned char>(c))) {
      word.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (!word.empty()) words->push_back(std::exchange(word, ""));
    if (c == '.') words->push_back(".");
  }
  if (!word.empty()) words->push_back(word);
}

absl::flat_hash_map<std::string, int32_t> Number(const std::vector<std::string>& words) {
  absl::flat_hash_map<std::string, int> count;
  for (const std::string& word : words) ++count[word];
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [word, times] : count) {
    if (times >= kRareBelow) order.emplace_back(-times, word);
  }
  std::sort(order.begin(), order.end());
  absl::flat_hash_map<std::string, int32_t> numbers;
  for (const auto& entry : order) {
    numbers.emplace(entry.second, static_cast<int32_t>(numbers.size()) + 1);
  }
  return numbers;
}

}  // namespace

std::vector<std::string> DefaultTexts() {
  std::vector<std::string> paths;
  for (const char* name : {"Apache-2.0", "Artistic", "BSD", "CC0-1.0", "GFDL-1.3", "GPL-1", "GPL-3",
                           "LGPL-2.1", "MPL-1.1", "MPL-2.0"}) {
    paths.push_back(absl::StrCat("/usr/share/common-licenses/", name));
  }
  return paths;
}

absl::StatusOr<Corpus> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<std::string> words;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in.is_open() || text.empty()) {
      return absl::NotFoundError(
          absl::StrCat("cannot read ", path, "; name other texts by --text"));
    }
    Split(text, &words);
  }
  if (words.size() < 2 * kHoldOutEach * kBlockWords) {
    return absl::InvalidArgumentError(absl::StrCat("only ", words.size(), " words of text"));
  }
  const absl::flat_hash_map<std::string, int32_t> numbers = Number(words);
  Corpus corpus;
  corpus.vocabulary = static_cast<int>(numbers.size()) + 1;
  for (size_t begin = 0; begin < words.size(); begin += kBlockWords) {
    std::vector<int32_t> block;
    for (size_t i = begin; i < std::min(begin + kBlockWords, words.size()); ++i) {
      const auto it = numbers.find(words[i]);
      block.push_back(it == numbers.end() ? 0 : it->second);
    }
    const bool held_out = begin / kBlockWords % kHoldOutEach == kHoldOutEach - 1;
    (held_out ? corpus.held_out : corpus.train).push_back(std::move(block));
  }
  return corpus;
}

}  // namespace tryst
