#ifndef TRYST_SERVER_SECURITY_FREE_WITH_H_
#define TRYST_SERVER_SECURITY_FREE_WITH_H_

namespace tryst {

// A deleter for std::unique_ptr that calls `Free`, a C library's function.
template <auto Free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_FREE_WITH_H_
