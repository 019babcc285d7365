#include <cstdio>

#include "verbs/completion_policy.h"

int main() { fputs(tryst::CompletionPolicyTable().c_str(), stdout); }
