#ifndef TRYST_SERVER_MEMBERS_CLUSTER_SPEC_H_
#define TRYST_SERVER_MEMBERS_CLUSTER_SPEC_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// The workers of a cluster with their addresses, and which of them this process is. It holds what
// TensorFlow's ServerDef holds.
struct ClusterSpec {
  std::map<std::string, std::map<int, std::string>> jobs;  // Job -> task -> "host:port".
  std::string job;                                         // Empty: the source did not name it.
  int task = 0;
  std::string protocol;  // Empty: the source did not name it.

  std::map<std::string, std::string> Workers() const;  // Worker name -> address.
};

std::string WorkerName(absl::string_view job, int task);  // "/job:ps/replica:0/task:1"

using Environment = std::map<std::string, std::string>;

// What the setting `resolver` says: where a worker learns who the others are.
struct Resolver {
  // "slurm:5000", "file:/etc/tryst/cluster.json", "kubernetes:SERVICE:2222" and so on.
  // kInvalidArgument: there is no such resolver, or it needs more or less behind its name.
  static absl::StatusOr<Resolver> Parse(absl::string_view text);

  std::string name;
  std::string where;  // A file's path, hosts, a service, or etcd's servers; may be empty.
  int port = 2222;    // With slurm, mpi and kubernetes: of every worker.
};

// Each fails with kInvalidArgument, which says what is wrong and where.

// "ps=host:port,host:port;worker=host:port"
absl::StatusOr<ClusterSpec> ClusterFromText(absl::string_view text);
// A ServerDef or a ClusterDef as JSON.
absl::StatusOr<ClusterSpec> ClusterFromJson(absl::string_view json);
// TF_CONFIG: {"cluster": {"ps": ["host:port"]}, "task": {"type": "ps", "index": 0}}
absl::StatusOr<ClusterSpec> ClusterFromTfConfig(const Environment& environment);
// The tasks of a parallel program in order of rank, split into `jobs` ("ps=1,worker=*"). `rank` is
// this process's.
absl::StatusOr<ClusterSpec> ClusterOfRanks(const std::vector<std::string>& addresses, size_t rank,
                                           absl::string_view jobs);
// Reads SLURM_*. Splits the tasks of the Slurm step, in order of rank, into `jobs`
// ("ps=1,worker=*"). A task's port is `base_port` plus its index on its node.
absl::StatusOr<ClusterSpec> ClusterFromSlurm(const Environment& environment, absl::string_view jobs,
                                             int base_port);
// Reads OMPI_* and PMIX_* of mpirun, or PMI_* and MPI_* of mpiexec, and splits the ranks as for
// Slurm. These variables do not name the hosts: `hosts` ("node[1-2]") does, each with the same
// number of consecutive ranks. Empty `hosts`: this host alone.
absl::StatusOr<ClusterSpec> ClusterFromMpi(const Environment& environment, absl::string_view jobs,
                                           absl::string_view hosts, int base_port);
// Reads the stateful sets behind a headless service: task 1 of ps is at dns:///ps-1.SERVICE:PORT.
// gRPC resolves that name, and resolves it again whenever a connection breaks. HOSTNAME ("ps-1")
// says which task this process is.
absl::StatusOr<ClusterSpec> ClusterFromKubernetes(const Environment& environment,
                                                  absl::string_view jobs, absl::string_view service,
                                                  int port);

// Slurm's "node[01-03,7],login" -> node01 node02 node03 node7 login.
absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text);
// Slurm's "2(x3),1" -> 2 2 2 1.
absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_CLUSTER_SPEC_H_
