#ifndef TRYST_SERVER_FREE_WITH_H_
#define TRYST_SERVER_FREE_WITH_H_

namespace tryst {

// The deleter of a std::unique_ptr to what a C library's `Free` frees.
template <auto Free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace tryst

#endif  // TRYST_SERVER_FREE_WITH_H_
