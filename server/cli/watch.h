#ifndef TRYST_SERVER_CLI_WATCH_H_
#define TRYST_SERVER_CLI_WATCH_H_

#include "server/cli/command_line.h"

namespace tryst {

// The commands that show workers' state. Each prints, and returns the exit status.
int RunExplain(const CommandLine& line);
int RunWaiting(const CommandLine& line);
int RunWeights(const CommandLine& line);
int RunTrace(const CommandLine& line);
int RunTop(const CommandLine& line);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_WATCH_H_
