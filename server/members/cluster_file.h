#ifndef TRYST_SERVER_MEMBERS_CLUSTER_FILE_H_
#define TRYST_SERVER_MEMBERS_CLUSTER_FILE_H_

#include <map>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"
#include "server/members/membership.h"
#include "server/members/repeating.h"

namespace tryst {

// A cluster's description of some 100,000 workers has about this many bytes.
inline constexpr size_t kMostClusterFileBytes = 16 << 20;

// Reads the cluster's file every `period`, and tells Membership which workers came, went or moved.
// A file that cannot be read or parsed changes nothing.
class ClusterFileWatch {
 public:
  // `present` holds the workers that the file named when it was first read. `self` is never
  // removed.
  ClusterFileWatch(std::string path, std::string self, std::map<std::string, std::string> present,
                   absl::Duration period, Membership* members, Alarms* alarms);
  // Reads it now, on the alarms' thread.
  void ReadSoon() { repeating_.Soon(); }

 private:
  void Look();

  const std::string path_;
  const std::string self_;
  Membership* const members_;
  // Used by Look() only.
  std::string text_;
  std::map<std::string, std::string> present_;

  Repeating repeating_;  // Destroyed first, because its calls use the members above.
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_CLUSTER_FILE_H_
