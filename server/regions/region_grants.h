#ifndef TRYST_SERVER_REGIONS_REGION_GRANTS_H_
#define TRYST_SERVER_REGIONS_REGION_GRANTS_H_

#include "server/regions/grant_book.h"
#include "server/regions/grant_table.h"

namespace tryst {

// What a worker lets others copy by themselves, and what it may copy of theirs.
struct RegionGrants {
  GrantBook given;
  GrantTable taken;
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_REGION_GRANTS_H_
