#ifndef TRYST_GPU_STRIDED_RUNS_H_
#define TRYST_GPU_STRIDED_RUNS_H_

// What the host and the kernel in strided_kernels.cuh share.
namespace tryst {

// What becomes of a run's bytes on their way.
enum StridedKind : unsigned {
  kCopies,
  kFloatToBfloat16,
  kHalfToBfloat16,
  kDoubleToFloat,
};

// Runs of equal size, in nested loops. A run is units without a gap, at both ends; a unit is copied
// by one thread.
struct StridedRuns {
  static constexpr unsigned kMostLoops = 8;
  static constexpr unsigned long long kMostUnits = 1ull << 30;  // All runs together have so many.
  unsigned long long to;  // The first run's, aligned as its elements are.
  unsigned long long from;
  unsigned long long runs;   // The product of the counts.
  unsigned long long units;  // Each run's.
  unsigned kind;             // StridedKind.
  // The bytes of a unit. kCopies: equal, and 1, 2, 4, 8 or 16, of which all steps are multiples.
  unsigned from_unit;
  unsigned to_unit;
  unsigned loops;                         // The outermost first.
  unsigned long long counts[kMostLoops];  // Above 0.
  long long from_steps[kMostLoops];       // Bytes; below 0 for a reversed view.
  long long to_steps[kMostLoops];
};

}  // namespace tryst

#endif  // TRYST_GPU_STRIDED_RUNS_H_
