#ifndef TRYST_SERVER_CLI_BENCH_H_
#define TRYST_SERVER_CLI_BENCH_H_

#include "server/cli/command_line.h"
#include "server/server.h"

namespace tryst {

// tryst bench: has line.words[0] send samples to `self`, which has started, and tells how
// they came. Stops `self`. What the process ends with.
int RunBench(const CommandLine& line, Server* self);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_BENCH_H_
