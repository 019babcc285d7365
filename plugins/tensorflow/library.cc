#include "plugins/tensorflow/library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace tryst_tensorflow {
namespace {

struct Loaded {
  Library library = {};
  bool is_there = false;
  std::string why;
};

// libtryst.so.0 brings in a second gRPC beside TensorFlow's, which would crash the process.
bool IsSelfContained(const std::string& path) {
  return path.find("libtryst.so.0") == std::string::npos;
}

Loaded Load() {
  Loaded loaded;
  const char* named = std::getenv("TRYST_LIBRARY");
  const char* path = named != nullptr && *named != '\0' ? named : "libtryst.so.1";
  if (!IsSelfContained(path)) {
    loaded.why =
        std::string(path) +
        " needs libraries of which TensorFlow has copies of its own: set TRYST_LIBRARY to " +
        "a libtryst.so.1 that has them inside";
    return loaded;
  }
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    loaded.why = std::string(dlerror()) + " (set TRYST_LIBRARY to the path of libtryst)";
    return loaded;
  }
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
