#ifndef TRYST_SERVER_CLUSTER_SPEC_H_
#define TRYST_SERVER_CLUSTER_SPEC_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// The workers of a cluster with their addresses, and which of them we are. The same content as
// TensorFlow's ServerDef.
struct ClusterSpec {
  std::map<std::string, std::map<int, std::string>> jobs;  // Job -> task -> "host:port".
  std::string job;                                         // Empty: not said.
  int task = 0;
  std::string protocol;  // Empty: not said.

  std::map<std::string, std::string> Workers() const;  // Worker name -> address.
};

std::string WorkerName(absl::string_view job, int task);  // "/job:ps/replica:0/task:1"

using Environment = std::map<std::string, std::string>;

// Each is kInvalidArgument with what is wrong and where.

// "ps=host:port,host:port;worker=host:port"
absl::StatusOr<ClusterSpec> ClusterFromText(absl::string_view text);
// A ServerDef or a ClusterDef as JSON.
absl::StatusOr<ClusterSpec> ClusterFromJson(absl::string_view json);
// TF_CONFIG: {"cluster": {"ps": ["host:port"]}, "task": {"type": "ps", "index": 0}}
absl::StatusOr<ClusterSpec> ClusterFromTfConfig(const Environment& environment);
// The tasks of a parallel program in order of rank, split into `jobs` ("ps=1,worker=*");
// `rank` is ours.
absl::StatusOr<ClusterSpec> ClusterOfRanks(const std::vector<std::string>& addresses, size_t rank,
                                           absl::string_view jobs);
// SLURM_*: tasks of the step in order of rank, split into `jobs` ("ps=1,worker=*"); the
// port is `base_port` plus the task's index on its node.
absl::StatusOr<ClusterSpec> ClusterFromSlurm(const Environment& environment, absl::string_view jobs,
                                             int base_port);
// OMPI_* and PMIX_* of mpirun, or PMI_* and MPI_* of mpiexec: as for Slurm. They do not say
// which hosts there are: `hosts` ("node[1-2]"), each with as many ranks one behind the other;
// empty: this host alone.
absl::StatusOr<ClusterSpec> ClusterFromMpi(const Environment& environment, absl::string_view jobs,
                                           absl::string_view hosts, int base_port);
// Stateful sets of a headless service: task 1 of ps is at dns:///ps-1.SERVICE:PORT, which
// gRPC resolves, again whenever a connection breaks. HOSTNAME ("ps-1") says who we are.
absl::StatusOr<ClusterSpec> ClusterFromKubernetes(const Environment& environment,
                                                  absl::string_view jobs, absl::string_view service,
                                                  int port);

// Slurm's "node[01-03,7],login" -> node01 node02 node03 node7 login.
absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text);
// Slurm's "2(x3),1" -> 2 2 2 1.
absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_SERVER_CLUSTER_SPEC_H_
