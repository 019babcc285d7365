#ifndef TRYST_PLUGINS_NCCL_LOAD_CHECK_H_
#define TRYST_PLUGINS_NCCL_LOAD_CHECK_H_

#include <map>
#include <string>
#include <vector>

namespace tryst::nccl {

struct LoadFinding {
  bool good = true;
  std::string what;
  std::string advice;  // What to type; empty where all is well.
};

// The newest table that NCCL of `version` (its own number: 22809 is 2.28.9) asks for.
int NewestTableOf(int nccl_version);
// The files that NCCL tries for NCCL_NET_PLUGIN=`names`, in its order; empty: its default.
std::vector<std::string> FilesTriedFor(const std::string& names);

// Goes the way that NCCL goes, in this process and environment: finds the file, opens it,
// looks for its tables, starts it. What NCCL says of a failure is one line under
// NCCL_DEBUG=INFO; here each step says what is wrong and what to do. `library`: NCCL's own,
// to ask for its version.
std::vector<LoadFinding> CheckLoading(const std::map<std::string, std::string>& environment,
                                      const std::string& library);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LOAD_CHECK_H_
