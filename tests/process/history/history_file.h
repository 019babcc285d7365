#ifndef TRYST_TESTS_PROCESS_HISTORY_HISTORY_FILE_H_
#define TRYST_TESTS_PROCESS_HISTORY_HISTORY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/process/promises/history.h"

namespace tryst {

// What one process saw: one line for each Send and each receive, in a file that is complete up to
// the moment in which the process is killed. The lines of all files together are a history.
//
//   s KEY NUMBER BEFORE AFTER        a Send; written before anybody can receive it
//   r KEY NUMBER WHOLE BEFORE AFTER MAY_FAIL_WITH FAILS_FROM ENDS_BY CALLS CODE ENDED
//                                    a receive, when it has ended
//   o KEY BEFORE                     a receive that was open when the process ended
//   l KEY BEFORE                     bytes came into its memory after it had ended
//
// BEFORE and AFTER are stamps (tests/process/promises/history.h), times are nanoseconds of the
// process's clock, -1 is never. Calls may come from any thread.
class HistoryFile {
 public:
  // With an empty path it writes nothing.
  explicit HistoryFile(const std::string& path);
  ~HistoryFile();
  HistoryFile(const HistoryFile&) = delete;
  HistoryFile& operator=(const HistoryFile&) = delete;

  // `key` must have no blanks; `receive.key` and `sent.key` are not used.
  void Sent(const std::string& key, const SentTensor& sent);
  void Received(const std::string& key, const MadeReceive& receive);
  void Open(const std::string& key, uint64_t before);
  void LandedLate(const std::string& key, uint64_t before);

 private:
  void Write(const std::string& line);

  int fd_ = -1;
};

struct History {
  std::vector<std::string> keys;  // By number.
  std::vector<SentTensor> sent;
  std::vector<MadeReceive> made;
};

// Adds the lines of `text` whose key belongs to part `part` of `parts`. An error names the line.
absl::Status AddHistory(const std::string& text, size_t part, size_t parts, History* history);

// Judges a history in which processes may have been killed. The last tensors sent need not be
// received; where a receive of a key failed, its tensor may be lost. Everything else must hold:
// each tensor comes once, in order, whole, before its deadline, and never into memory that was
// given back.
Judgement JudgeLives(History history);

// Judges all files of a folder: it splits the keys into `parts` and judges one part after the
// other, to save memory. What lives have traced (kept_traces.h) is held against the tables of
// states, too.
struct FolderJudgement {
  size_t sent = 0;
  size_t made = 0;
  size_t traced = 0;        // Operations of which the lives' traces tell.
  size_t traced_pairs = 0;  // Both ends tell of these.
  std::string breaches;     // Empty: no promise was broken.
};
absl::StatusOr<FolderJudgement> JudgeFolder(const std::string& folder, size_t parts);

// NewHistoryFolder() makes a folder for histories below TEST_UNDECLARED_OUTPUTS_DIR or TMPDIR.
std::string NewHistoryFolder();
void RemoveHistoryFolder(const std::string& folder);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_HISTORY_HISTORY_FILE_H_
