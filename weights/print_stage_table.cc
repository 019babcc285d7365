#include <cstdio>

#include "weights/stage_table.h"

int main() { fputs(tryst::StageTable().c_str(), stdout); }
