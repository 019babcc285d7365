#ifndef TRYST_BASE_RELEASE_MEMORY_H_
#define TRYST_BASE_RELEASE_MEMORY_H_

namespace tryst {

// Empties a container, and gives its memory back. `container = {}` does not: it assigns an empty
// list, for which a vector keeps its room.
template <typename Container>
void ReleaseMemory(Container* container) {
  Container().swap(*container);
}

}  // namespace tryst

#endif  // TRYST_BASE_RELEASE_MEMORY_H_
