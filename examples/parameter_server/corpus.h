#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tryst {

// A text as numbered words, the most frequent first; 0 stands for every rare word. Every process
// that reads the same files gets the same numbers.
//
// The default text is on every Debian machine and is free: the licences. They quote each other, so
// the held-out part is easier to guess than other text would be.
struct Corpus {
  int vocabulary = 0;
  // Blocks of successive words; every tenth block is held out.
  std::vector<std::vector<int32_t>> train;
  std::vector<std::vector<int32_t>> held_out;
};

std::vector<std::string> DefaultTexts();
// kNotFound: a file cannot be read. kInvalidArgument: there is too little text.
absl::StatusOr<Corpus> ReadCorpus(const std::vector<std::string>& paths);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_
