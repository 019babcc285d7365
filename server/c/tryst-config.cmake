# tryst::tryst      the C interface: #include <tryst.h>
# tryst::tryst_cxx  the C++ interface as well, when COMPONENTS has cxx: #include "server/server.h"
get_filename_component(_tryst_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET tryst::tryst)
  add_library(tryst::tryst SHARED IMPORTED)
  set_target_properties(tryst::tryst PROPERTIES
    IMPORTED_LOCATION "${_tryst_prefix}/lib/libtryst.so.0"
    IMPORTED_SONAME libtryst.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_tryst_prefix}/include")
endif()

if("cxx" IN_LIST tryst_FIND_COMPONENTS AND NOT TARGET tryst::tryst_cxx)
  include(CMakeFindDependencyMacro)
  find_dependency(absl)
  add_library(tryst::tryst_cxx INTERFACE IMPORTED)
  set_target_properties(tryst::tryst_cxx PROPERTIES
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_INCLUDE_DIRECTORIES "${_tryst_prefix}/include/tryst"
    INTERFACE_LINK_LIBRARIES
      "tryst::tryst;absl::any_invocable;absl::core_headers;absl::flat_hash_map;absl::inlined_vector;absl::optional;absl::span;absl::status;absl::statusor;absl::strings;absl::time;absl::variant")
endif()

unset(_tryst_prefix)
