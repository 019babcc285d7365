#include "channel/shm/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tryst {
namespace {

#if defined(__x86_64__)
// `to` is at a cache line; `bytes` is a multiple of two lines.
__attribute__((target("avx2"))) void StreamLines(uint8_t* to, const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
  _mm_sfence();  // Before anything tells that the bytes are there.
}

bool HasStreamingStores() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  if (HasStreamingStores()) {
    uint8_t* out = static_cast<uint8_t*>(to);
    const uint8_t* in = static_cast<const uint8_t*>(from);
    const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(out) & 63);
    memcpy(out, in, head);
    const size_t lines = (bytes - head) & ~size_t{127};
    if (lines > 0) StreamLines(out + head, in + head, lines);
    memcpy(out + head + lines, in + head + lines, bytes - head - lines);
    return;
  }
#endif
  if (bytes > 0) memcpy(to, from, bytes);
}

CopyCrew::~CopyCrew() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
    work_.NotifyAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void CopyCrew::CopyPiece(const Job& job, size_t piece) {
  const size_t begin = piece * kPieceBytes;
  const size_t bytes = std::min(kPieceBytes, job.bytes - begin);
  if (job.streaming) {
    StreamCopy(job.to + begin, job.from + begin, bytes);
  } else {
    memcpy(job.to + begin, job.from + begin, bytes);
  }
}

void CopyCrew::Copy(void* to, const void* from, size_t bytes, bool streaming) {
  if (bytes == 0) return;
  if (most_helpers_ == 0 || bytes < kSplitBytes) {
    if (streaming) return StreamCopy(to, from, bytes);
    memcpy(to, from, bytes);
    return;
  }
  while (helpers_.size() < static_cast<size_t>(most_helpers_)) {
    helpers_.emplace_back([this] { Help(); });
  }
  const Job job{static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes, streaming};
  MutexLock lock(&mu_);
  job_ = job;
  next_piece_ = 0;
  pieces_done_ = 0;
  pieces_ = (bytes + kPieceBytes - 1) / kPieceBytes;
  work_.NotifyAll();
  while (next_piece_ < pieces_) {
    const size_t piece = next_piece_++;
    mu_.Unlock();
    CopyPiece(job, piece);
    mu_.Lock();
    ++pieces_done_;
  }
  while (pieces_done_ < pieces_) done_.Wait(&mu_);
}

void CopyCrew::Help() {
  MutexLock lock(&mu_);
  while (!ending_) {
    if (next_piece_ >= pieces_) {
      work_.Wait(&mu_);
      continue;
    }
    const Job job = job_;
    const size_t piece = next_piece_++;
    mu_.Unlock();
    CopyPiece(job, piece);
    mu_.Lock();
    if (++pieces_done_ == pieces_) done_.NotifyOne();
  }
}

}  // namespace tryst
