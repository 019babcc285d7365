#ifndef TRYST_SERVER_CLI_BENCH_H_
#define TRYST_SERVER_CLI_BENCH_H_

#include "server/cli/command_line.h"
#include "server/server.h"

namespace tryst {

// tryst bench: has the worker line.words[0] send samples to `self`, which has started, prints how
// they came, and stops `self`. Returns the exit status.
int RunBench(const CommandLine& line, Server* self);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_BENCH_H_
