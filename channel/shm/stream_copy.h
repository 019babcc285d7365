#ifndef TRYST_CHANNEL_SHM_STREAM_COPY_H_
#define TRYST_CHANNEL_SHM_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// memcpy with stores that bypass the caches, if the processor has them: the destination is not read
// first, and nothing else is evicted.
void StreamCopy(void* to, const void* from, size_t bytes);

// Copies on the calling thread, helped by threads on idle cores. The helpers start with the first
// copy that is split. Each thread claims one part after the other, so a helper that gets no core
// costs nothing. One caller at a time.
class CopyCrew {
 public:
  // From this size on a copy bypasses the caches; from the second size on it is split.
  static constexpr size_t kStreamBytes = 256 << 10;
  static constexpr size_t kSplitBytes = 512 << 10;
  static constexpr size_t kPieceBytes = 64 << 10;

  explicit CopyCrew(int helpers) : most_helpers_(helpers) {}
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // `streaming`: it is a part of something larger than kStreamBytes.
  void Copy(void* to, const void* from, size_t bytes, bool streaming);
  size_t helpers() const { return helpers_.size(); }  // Only on the caller's thread.

 private:
  struct Job {
    uint8_t* to = nullptr;
    const uint8_t* from = nullptr;
    size_t bytes = 0;
    bool streaming = false;
  };
  void Help();
  static void CopyPiece(const Job& job, size_t piece);

  const int most_helpers_;
  Mutex mu_;
  CondVar work_;
  Job job_ ABSL_GUARDED_BY(mu_);
  size_t next_piece_ ABSL_GUARDED_BY(mu_) = 0;
  size_t pieces_ ABSL_GUARDED_BY(mu_) = 0;
  size_t pieces_done_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  CondVar done_;
  std::vector<std::thread> helpers_;  // Only the caller's thread uses it.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_STREAM_COPY_H_
