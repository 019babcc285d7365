#ifndef TRYST_SERVER_CLI_VERIFY_H_
#define TRYST_SERVER_CLI_VERIFY_H_

#include "server/cli/command_line.h"

namespace tryst {

// `tryst verify TRACE ...`: prints what the traces show that must not be, and returns the exit
// status. It asks nobody.
int RunVerify(const CommandLine& line);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_VERIFY_H_
