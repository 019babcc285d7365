// What ThreadSanitizer reports after enough operations although it is no race, because one
// side of it is the system's Abseil, which was built without it (docs/decisions/0001-mutex.md).
// As little as can be: a suppression hides every report with that function in a stack.

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions();  // NOLINT: the sanitizer's name.

extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  // The last owner of a status with a message frees it; another one has given it up inside
  // libabsl_status, by an atomic counter that the sanitizer does not see there.
  return "race:Status::Unref\n";
}
#endif
