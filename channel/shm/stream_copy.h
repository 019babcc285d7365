#ifndef TRYST_CHANNEL_SHM_STREAM_COPY_H_
#define TRYST_CHANNEL_SHM_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// memcpy with stores that go around the caches, where the processor has them: what is
// written is not read first, and nothing else is driven out.
void StreamCopy(void* to, const void* from, size_t bytes);

// Copies on the calling thread and on as many helpers as there are idle cores for, which start with
// the first copy that is split. Work is claimed piece by piece: a helper that gets no core costs
// nothing. One caller at a time.
class CopyCrew {
 public:
  // From how many bytes on a copy goes around the caches, and from how many it is split.
  static constexpr size_t kStreamBytes = 256 << 10;
  static constexpr size_t kSplitBytes = 512 << 10;
  static constexpr size_t kPieceBytes = 64 << 10;

  explicit CopyCrew(int helpers) : most_helpers_(helpers) {}
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // `streaming`: it is a part of something larger than kStreamBytes.
  void Copy(void* to, const void* from, size_t bytes, bool streaming);
  size_t helpers() const { return helpers_.size(); }  // The caller's thread.

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
  std::vector<std::thread> helpers_;  // The caller's.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_STREAM_COPY_H_
