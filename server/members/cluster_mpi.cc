#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/members/cluster_spec.h"

namespace tryst {
namespace {

constexpr int kMostRanks = 65536;

// The number in the first of these variables that is set. If none is: `fallback`, or
// kInvalidArgument where `fallback` is below 0.
absl::StatusOr<int> Number(const Environment& environment, std::initializer_list<const char*> names,
                           int fallback) {
  for (const char* name : names) {
    const auto it = environment.find(name);
    if (it == environment.end() || it->second.empty()) continue;
    int number = 0;
    if (absl::SimpleAtoi(it->second, &number) && number >= 0 && number <= kMostRanks) return number;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is '", it->second, "', and should be a number"));
  }
  if (fallback >= 0) return fallback;
  return absl::InvalidArgumentError(
      absl::StrCat("the environment has no ", *names.begin(), ": start the program with mpirun"));
}

}  // namespace

absl::StatusOr<ClusterSpec> ClusterFromMpi(const Environment& environment, absl::string_view jobs,
                                           absl::string_view hosts_text, int base_port) {
  const auto rank = Number(environment, {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}, -1);
  if (!rank.ok()) return rank.status();
  const auto size = Number(environment, {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, -1);
  if (!size.ok()) return size.status();
  // Some launchers do not say how many ranks a host has. Then all ranks must be on one host.
  const auto on_host =
      Number(environment, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, *size);
  if (!on_host.ok()) return on_host.status();
  const auto index = Number(environment, {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, *rank);
  if (!index.ok()) return index.status();

  std::vector<std::string> hosts = {"127.0.0.1"};
  if (!hosts_text.empty()) {
    auto expanded = ExpandHostlist(hosts_text);
    if (!expanded.ok()) return expanded.status();
    hosts = *std::move(expanded);
  }
  if (*on_host < 1 || static_cast<size_t>(*size) > hosts.size() * static_cast<size_t>(*on_host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpirun started ", *size, " ranks, ", *on_host,
                     " of them on this host, and resolver=mpi:HOSTS names ",
                     hosts_text.empty() ? 0 : hosts.size(),
                     " hosts: name every host, in the order of their ranks"));
  }
  if (*rank % *on_host != *index) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *rank, " is number ", *index, " of the ", *on_host,
                     " on its host: give every host the same number of ranks, numbered one after "
                     "the other (mpirun --map-by ppr:",
                     *on_host, ":node)"));
  }
  std::vector<std::string> addresses;
  for (int i = 0; i < *size; ++i) {
    addresses.push_back(
        absl::StrCat(hosts[static_cast<size_t>(i / *on_host)], ":", base_port + i % *on_host));
  }
  return ClusterOfRanks(addresses, static_cast<size_t>(*rank), jobs);
}

}  // namespace tryst
