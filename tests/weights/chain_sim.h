#ifndef TRYST_TESTS_WEIGHTS_CHAIN_SIM_H_
#define TRYST_TESTS_WEIGHTS_CHAIN_SIM_H_

#include <cstdint>
#include <string>
#include <vector>

// Owners that send parts of versions and members that send them on, by PartChain, PartShelf,
// PartRoute and BoxCover as they ship, on virtual time and wires of a given width. One thread.
namespace tryst {

struct ChainOptions {
  uint64_t seed = 1;
  int owners = 2;
  int members = 8;
  int slices = 1;    // The model has so many; a member wants one of them.
  int replicas = 1;  // Owners of each part.
  int parts = 16;    // Each owner has so many.
  int versions = 3;
  int64_t part_ns = 1'000'000;  // On a wire.
  bool all_hold = true;         // Else one member of three has nothing for others.
  bool random_faults = false;   // Members die and lie; with replicas an owner dies.
  bool pauses = true;           // And members stand still.
  // Once the last version is sealed an owner dies for good, and members come and go after that.
  bool owner_dies = false;
  // That owner is the first one, which also keeps the log: from then on nobody leads, and a log
  // that is new may begin, in which nothing is active.
  bool first_dies = false;
  // Members want parts of the boxes, cut in many ways, so that some are had whole by nobody.
  bool cuts = false;
  // These members die in the middle of the first version.
  std::vector<int> dying;
  bool come_back = true;
  bool verbose = false;
};

struct ChainReport {
  std::vector<std::string> violations;  // "OneBirth: ...".
  uint64_t events = 0;
  uint64_t sent_by_owners = 0, sent_on = 0;  // Parts.
  uint64_t referrals = 0, returns = 0;       // Whom owners sent on, and who came back.
  uint64_t rescued = 0;       // Parts that came of members when their owners were gone,
  uint64_t unled = 0;         // of whom members had heard, since nobody led,
  uint64_t by_parts = 0;      // of boxes that nobody had whole.
  uint64_t kept = 0;          // Parts of what is active that members have when a new log begins.
  uint64_t out_of_reach = 0;  // Members that lack what nobody has any more.
  uint64_t lies = 0, kills = 0, retired_asks = 0, timeouts = 0, dropped = 0;
  uint64_t most_by_owners = 0;  // How often they sent one part of one version.
  uint64_t most_by_member = 0;  // How often it sent one.
  int64_t sync_ns = 0;          // From the seal of the first version until all have it.
  int64_t bound_ns = 0;         // The time that the busiest wire cannot do without.
  uint64_t trace_hash = 0;      // Equal for equal options.
};

ChainReport RunChain(const ChainOptions& options);

// What the seed draws, with random faults.
ChainOptions ChainOfSeed(uint64_t seed);

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_CHAIN_SIM_H_
