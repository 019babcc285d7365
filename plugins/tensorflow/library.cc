#include "plugins/tensorflow/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace tryst_tensorflow {
namespace {

struct Loaded {
  Library library = {};
  bool is_there = false;
  std::string why;
};

// Under RTLD_DEEPBIND the library sees libc's own `environ`, which is null where the
// executable has a copy of it, as Python has.
void GiveEnvironment(void* handle) {
  auto* theirs = static_cast<char***>(dlsym(handle, "environ"));
  if (theirs != nullptr && *theirs == nullptr) *theirs = environ;
}

Loaded Load() {
  Loaded loaded;
  const char* named = std::getenv("TRYST_LIBRARY");
  const char* path = named != nullptr && *named != '\0' ? named : "libtryst.so";
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle == nullptr) {
    loaded.why = std::string(dlerror()) + " (TRYST_LIBRARY says where libtryst is)";
    return loaded;
  }
  GiveEnvironment(handle);
#define TRYST_TENSORFLOW_CALL(name)                                                  \
  loaded.library.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name));   \
  if (loaded.library.name == nullptr) {                                              \
    loaded.why = std::string(path) + " has no " #name ": it is not the C interface"; \
    return loaded;                                                                   \
  }
  TRYST_TENSORFLOW_CALLS(TRYST_TENSORFLOW_CALL)
#undef TRYST_TENSORFLOW_CALL
  loaded.is_there = true;
  return loaded;
}

}  // namespace

const Library* LoadLibrary(std::string* why) {
  static const Loaded* const loaded = new Loaded(Load());
  if (loaded->is_there) return &loaded->library;
  *why = loaded->why;
  return nullptr;
}

}  // namespace tryst_tensorflow
