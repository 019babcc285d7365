#include <cstdio>

#include "server/cli/command_line.h"

int main() { std::fputs(tryst::CommandTable().c_str(), stdout); }
