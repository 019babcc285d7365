// Reports of ThreadSanitizer that are not races: one side is the system's Abseil, which was built
// without it (docs/decisions/0001-mutex.md). Keep the list short, because a suppression hides every
// report with that function in a stack.

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions();  // NOLINT: the sanitizer's name.

extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  // Owners of a status share its message through an atomic counter inside libabsl_status, which is
  // not instrumented. ThreadSanitizer does not see that order, and reports the last owner's free as
  // a race.
  return "race:Status::Unref\n";
}
#endif
