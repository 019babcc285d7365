#ifndef TRYST_TESTS_ATTACK_PROCESS_USE_H_
#define TRYST_TESTS_ATTACK_PROCESS_USE_H_

#include <cstdint>
#include <string>

namespace tryst {

// `pid` is "self", or a process's number.
uint64_t ResidentBytes(const std::string& pid = "self");
int OpenDescriptors(const std::string& pid = "self");
// From then on the kernel closes the windows of everybody's connections.
bool TcpMemoryIsScarce();

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_PROCESS_USE_H_
