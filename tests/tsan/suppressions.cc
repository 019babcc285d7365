// What ThreadSanitizer reports after enough operations although it is no race, because one
// side of it is the system's Abseil, which was built without it (docs/decisions/0001-mutex.md).
// As little as can be: a suppression hides every report with that function in a stack.

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions();  // NOLINT: the sanitizer's name.

extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  // Owners of a status share its message by an atomic counter inside libabsl_status, which is not
  // instrumented. The sanitizer does not see that order, and reports the last owner's free as a
  // race.
  return "race:Status::Unref\n";
}
#endif
