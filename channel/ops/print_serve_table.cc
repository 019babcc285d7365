#include <cstdio>

#include "channel/ops/serve_table.h"

int main() { fputs(tryst::ServeTable().c_str(), stdout); }
