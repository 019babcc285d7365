#include <cstdio>

#include "channel/ops/fetch_table.h"

int main() { fputs(tryst::FetchTable().c_str(), stdout); }
