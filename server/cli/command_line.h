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
#include "server/config.h"

namespace tryst {

// What the process ends with; docs/CLI.md has the table.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNothingFound = 3;

// What the words behind a command's name are.
enum class Words {
  kWorkerFirst,  // Others are as they are.
  kWorkers,
  kWorkersAndText,  // What is no worker is a text.
  kEdgeFiles,       // EDGE=FILE
  kOther,
};

// One command of tryst, as help and completion show it.
struct CommandRow {
  const char* name;
  const char* arguments;
  const char* summary;  // One line.
  const char* help;     // More, each line ended.
  size_t least_words;   // Behind the name.
  size_t most_words;
  Words words;
};
const std::vector<CommandRow>& CommandRows();

// A command line, read.
struct CommandLine {
  const CommandRow* row = nullptr;  // Null: --help of the whole program.
  bool help = false;
  std::vector<std::string> words;  // Behind the name.
  ServerConfig config;
  absl::optional<int64_t> step;
  absl::Duration timeout;
  absl::Duration every = absl::Seconds(1);  // top.
  int64_t count = 0;                        // top: 0: until it is interrupted.
  std::string to;
  std::string from;
  std::string out;
  bool json = false;
};

// "/job:ps/replica:0/task:1": one worker's name.
bool IsWorkerName(absl::string_view text);

// kInvalidArgument says what is wrong and what is right. "worker@host:port" in a word, --to
// or --from becomes the worker, and its address goes to config.join.
absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> args);

std::string ProgramHelp();
std::string CommandHelp(const CommandRow& row);
// For `source <(tryst completion SHELL)`. kInvalidArgument: another shell than bash and zsh.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

// docs/CLI.md's table.
std::string CommandTable();

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_COMMAND_LINE_H_
