#include "server/few_arenas.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tryst {

void UseFewArenas() {
#ifdef __GLIBC__
  if (getenv("MALLOC_ARENA_MAX") == nullptr) mallopt(M_ARENA_MAX, 2);
#endif
}

}  // namespace tryst
