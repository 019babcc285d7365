#ifndef TRYST_PLUGINS_NCCL_LOAD_CHECK_H_
#define TRYST_PLUGINS_NCCL_LOAD_CHECK_H_

#include <map>
#include <string>
#include <vector>

namespace tryst::nccl {

struct LoadFinding {
  bool good = true;
  std::string what;
  std::string advice;  // What to type; empty when all is well.
};

// The newest table that this version of NCCL asks for (in NCCL's numbers, 22809 is 2.28.9).
int NewestTableOf(int nccl_version);
// The files that NCCL tries, in order, for NCCL_NET_PLUGIN=`names`; empty: NCCL's default.
std::vector<std::string> FilesTriedFor(const std::string& names);

// Repeats what NCCL does, in this process and environment: finds the plugin's file, opens it, looks
// up its tables, and starts it. NCCL reports a failure in one line under NCCL_DEBUG=INFO; here each
// step says what is wrong and what to do. `library` is NCCL's own file, which is asked for its
// version.
std::vector<LoadFinding> CheckLoading(const std::map<std::string, std::string>& environment,
                                      const std::string& library);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LOAD_CHECK_H_
