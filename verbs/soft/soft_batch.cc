#include "verbs/soft/soft_batch.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace tryst {

bool SoftBatch::HasRoom(int payload_pieces) const {
  return frames_ < kMaxFrames && pieces_ + 1 + payload_pieces <= kMaxPieces;
}

void SoftBatch::Add(const FrameHeader& header, const iovec* payload, int payload_pieces,
                    uint64_t work, const void* owner) {
  TRYST_CHECK(HasRoom(payload_pieces));
  uint8_t* const encoded = headers_[frames_];
  EncodeFrameHeader(header, encoded);
  owner_[pieces_] = nullptr;
  piece_[pieces_++] = {encoded, kFrameHeaderBytes};
  for (int i = 0; i < payload_pieces; ++i) {
    owner_[pieces_] = owner;
    piece_[pieces_++] = payload[i];
  }
  end_ += kFrameHeaderBytes + header.bytes;
  frame_[frames_++] = {end_, work};
}

SoftBatch::Progress SoftBatch::WriteTo(SoftStream* stream, size_t* written) {
  const ssize_t sent =
      stream->SendOf(piece_ + next_piece_, owner_ + next_piece_, pieces_ - next_piece_);
  *written = sent < 0 ? 0 : static_cast<size_t>(sent);
  if (sent < 0) {
    return errno == EAGAIN || errno == ENOBUFS ? Progress::kSome : Progress::kLost;
  }
  written_ += *written;
  size_t left = *written;
  while (next_piece_ < pieces_ && left >= piece_[next_piece_].iov_len) {
    left -= piece_[next_piece_++].iov_len;
  }
  if (next_piece_ == pieces_) return stream->HasUnsent() ? Progress::kSome : Progress::kAll;
  piece_[next_piece_].iov_base = static_cast<uint8_t*>(piece_[next_piece_].iov_base) + left;
  piece_[next_piece_].iov_len -= left;
  return Progress::kSome;
}

uint64_t SoftBatch::TakeWritten() {
  while (frames_taken_ < frames_ && frame_[frames_taken_].end <= written_) {
    const uint64_t work = frame_[frames_taken_++].work;
    if (work != kNoWork) return work;
  }
  return kNoWork;
}

std::vector<uint8_t> SoftBatch::RestOfFrame() const {
  std::vector<uint8_t> rest;
  uint64_t frame_begin = 0;
  for (int i = 0; i < frames_; ++i) {
    if (frame_[i].end > written_) {
      if (frame_begin < written_) {
        uint64_t left = frame_[i].end - written_;
        for (int piece = next_piece_; left > 0; ++piece) {
          const auto* from = static_cast<const uint8_t*>(piece_[piece].iov_base);
          const uint64_t take = std::min<uint64_t>(left, piece_[piece].iov_len);
          rest.insert(rest.end(), from, from + take);
          left -= take;
        }
      }
      break;
    }
    frame_begin = frame_[i].end;
  }
  return rest;
}

void SoftBatch::Clear() {
  frames_ = frames_taken_ = 0;
  pieces_ = next_piece_ = 0;
  end_ = written_ = 0;
}

}  // namespace tryst
