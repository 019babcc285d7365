#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_

#include <cstdint>
#include <string>

#include "server/server.h"

namespace tryst {

// What a task tells the launcher, by lines of its output that begin with '@'. Other lines are for
// people.
struct Progress {
  int64_t examples = 0;  // Since the last line; `bytes` too.
  int64_t bytes = 0;     // Moved, in both directions.
  double loss = -1;      // The last batches'; -1: none.
  double held_out = -1;
};
std::string ProgressLine(const Progress& progress);
bool ParseProgress(const std::string& line, Progress* progress);

// The line by which a task says that it is up, and with which seed others join.
std::string SeedLine(const std::string& seed);
bool ParseSeed(const std::string& line, std::string* seed);

// On which path a task fetches from a peer, once it has.
struct PathReport {
  std::string peer;  // As "ps 0".
  std::string path;  // As "rdma/soft".
  std::string why;   // Why this one: what speaks for it, or what was wrong with better ones.
};
PathReport ReportPath(Server* server, const std::string& peer);
std::string PathLine(const PathReport& report);
bool ParsePath(const std::string& line, PathReport* report);

// "/job:ps/replica:0/task:1" as "ps 1".
std::string ShortName(const std::string& worker);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
