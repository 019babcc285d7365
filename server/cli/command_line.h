#ifndef TRYST_SERVER_CLI_COMMAND_LINE_H_
#define TRYST_SERVER_CLI_COMMAND_LINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "server/config/config.h"

namespace tryst {

// The exit statuses; docs/CLI.md has the table.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNothingFound = 3;

// What the words after a command's name mean.
enum class Words {
  kWorkerFirst,  // The first names a worker; the others are as they are.
  kWorkers,
  kWorkersAndText,  // Words that name no worker are text.
  kEdgeFiles,       // EDGE=FILE
  kOther,
};

// One command of tryst, for help and completion.
struct CommandRow {
  const char* name;
  const char* arguments;
  const char* summary;  // One line.
  const char* help;     // Further lines of help; each ends with a newline.
  size_t least_words;   // The least number of words after the name.
  size_t most_words;
  Words words;
};
const std::vector<CommandRow>& CommandRows();

// A parsed command line.
struct CommandLine {
  const CommandRow* row = nullptr;  // Null: --help for the whole program.
  bool help = false;
  std::vector<std::string> words;  // The words after the command's name.
  ServerConfig config;
  absl::optional<int64_t> step;
  absl::Duration timeout;
  absl::Duration every = absl::Seconds(1);  // For top.
  int64_t count = 0;                        // For top; 0: until it is interrupted.
  std::string to;
  std::string from;
  std::string out;
  bool json = false;
};

// Whether the text is a worker's name, like "/job:ps/replica:0/task:1".
bool IsWorkerName(absl::string_view text);

// kInvalidArgument says what is wrong and what would be right. Where a word, --to or --from is
// "worker@host:port", the worker stays and its address goes to config.join.
absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> args);

std::string ProgramHelp();
std::string CommandHelp(const CommandRow& row);
// A script for `source <(tryst completion SHELL)`. kInvalidArgument: the shell is neither bash nor
// zsh.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

// The table of commands in docs/CLI.md.
std::string CommandTable();

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_COMMAND_LINE_H_
