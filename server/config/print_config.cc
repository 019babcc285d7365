// Prints the tables of docs/CONFIG.md.
#include <cstdio>

#include "server/config/config.h"

int main() { std::fputs(tryst::ConfigTable().c_str(), stdout); }
