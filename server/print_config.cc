// Prints the tables of docs/CONFIG.md.
#include <cstdio>

#include "server/config.h"

int main() { std::fputs(tryst::ConfigTable().c_str(), stdout); }
