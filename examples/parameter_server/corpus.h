#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tryst {

// A text as numbered words, the most frequent first; 0 is every word that is rare. The
// same in every process that reads the same files.
//
// The default text is there on every Debian machine and is free: licences. They quote
// each other, so what is held out is easier than text of another hand would be.
struct Corpus {
  int vocabulary = 0;
  // Blocks of successive words; every tenth block is held out.
  std::vector<std::vector<int32_t>> train;
  std::vector<std::vector<int32_t>> held_out;
};

std::vector<std::string> DefaultTexts();
// kNotFound: a file that cannot be read. kInvalidArgument: too little text.
absl::StatusOr<Corpus> ReadCorpus(const std::vector<std::string>& paths);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_CORPUS_H_
