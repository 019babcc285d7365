#include "verbs/soft/soft_records.h"

#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {
namespace {

constexpr uint8_t kHandshakeRecord = 22;
constexpr uint8_t kDataRecord = 23;
constexpr size_t kRecordHeaderBytes = 5;
constexpr size_t kMostContent = 16 << 10;
// Beside its content: the header, the type, the tag.
constexpr size_t kRecordOverhead = kRecordHeaderBytes + 1 + Sealing::kTagBytes;
constexpr size_t kMostRecord = kMostContent + kRecordOverhead;
// What one system call moves. Four records stay in a core's cache between cipher and call.
constexpr size_t kRecordBlockBytes = 4 * kMostRecord;
constexpr uint8_t kKeyUpdate[5] = {24, 0, 0, 1, 0};  // The peer need not answer it.
// A smaller record is decrypted aside: it may be the sender's word that its key changes.
constexpr size_t kLeastInPlace = 64;
// In one call, so that a peer who sends nothing but new keys does not keep us.
constexpr int kMostRefills = 64;

// HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
void ExpandLabel(const SoftTrafficSecret& secret, absl::string_view label,
                 absl::Span<uint8_t> key) {
  std::string info;
  info.push_back(static_cast<char>(key.size() >> 8));
  info.push_back(static_cast<char>(key.size()));
  info.push_back(static_cast<char>(6 + label.size()));
  info.append("tls13 ").append(label.data(), label.size());
  info.push_back(0);
  ExpandKey(absl::string_view(reinterpret_cast<const char*>(secret.data()), secret.size()), info,
            key);
}

absl::string_view RecordHeader(const uint8_t* record) {
  return absl::string_view(reinterpret_cast<const char*>(record), kRecordHeaderBytes);
}

}  // namespace

SoftRecordKeys::SoftRecordKeys(const SoftTrafficSecret& secret) : secret_(secret) { Use(); }

SoftRecordKeys::~SoftRecordKeys() {
  OPENSSL_cleanse(secret_.data(), secret_.size());
  OPENSSL_cleanse(key_, sizeof(key_));
}

void SoftRecordKeys::Use() {
  ExpandLabel(secret_, "key", absl::MakeSpan(key_));
  ExpandLabel(secret_, "iv", absl::MakeSpan(nonce_));
  sealing_.emplace(absl::MakeConstSpan(key_), absl::MakeConstSpan(nonce_));
  sequence_ = 0;
}

void SoftRecordKeys::Update() {
  SoftTrafficSecret next;
  ExpandLabel(secret_, "traffic upd", absl::MakeSpan(next));
  secret_ = next;
  OPENSSL_cleanse(next.data(), next.size());
  Use();
}

SoftParts::SoftParts(const iovec* pieces, int count) : piece_(pieces) {
  for (int i = 0; i < count; ++i) left_ += pieces[i].iov_len;
}

iovec SoftParts::Next(size_t most) {
  while (offset_ == piece_->iov_len) {
    ++piece_;
    offset_ = 0;
  }
  const size_t take = std::min(most, piece_->iov_len - offset_);
  const iovec next = {static_cast<uint8_t*>(piece_->iov_base) + offset_, take};
  offset_ += take;
  left_ -= take;
  return next;
}

// ---- Sending ----

SoftRecordWriter::SoftRecordWriter(const SoftTrafficSecret& secret, SoftBlocks* blocks,
                                   uint64_t records_of_key)
    : blocks_(blocks), records_of_key_(records_of_key), keys_(secret) {}

SoftRecordWriter::~SoftRecordWriter() {
  if (block_ != nullptr) blocks_->Give(block_);
}

// Adds a record of the next `bytes` of the pieces.
void SoftRecordWriter::Add(uint8_t type, SoftParts* pieces, size_t bytes) {
  uint8_t* const record = block_ + end_;
  const size_t sealed = bytes + 1 + Sealing::kTagBytes;
  record[0] = kDataRecord;
  record[1] = record[2] = 3;
  record[3] = static_cast<uint8_t>(sealed >> 8);
  record[4] = static_cast<uint8_t>(sealed);
  Sealing* const sealing = keys_.sealing();
  sealing->BeginSeal(keys_.sequence(), RecordHeader(record));
  uint8_t* out = record + kRecordHeaderBytes;
  while (bytes > 0) {
    const iovec piece = pieces->Next(bytes);
    sealing->Add(piece.iov_base, piece.iov_len, out);
    out += piece.iov_len;
    bytes -= piece.iov_len;
  }
  sealing->Add(&type, 1, out);
  sealing->EndSeal(out + 1);
  keys_.Advance();
  end_ += kRecordHeaderBytes + sealed;
}

bool SoftRecordWriter::Flush(int fd) {
  while (begin_ < end_) {
    const ssize_t sent = send(fd, block_ + begin_, end_ - begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    begin_ += static_cast<size_t>(sent);
  }
  begin_ = end_ = 0;
  return true;
}

ssize_t SoftRecordWriter::Send(int fd, const iovec* pieces, int count) {
  if (!Flush(fd)) return -1;
  SoftParts from(pieces, count);
  const size_t all = from.left();
  while (from.left() > 0) {
    if (block_ == nullptr) block_ = static_cast<uint8_t*>(blocks_->Take(kRecordBlockBytes));
    if (keys_.sequence() >= records_of_key_) {
      const iovec update = {const_cast<uint8_t*>(kKeyUpdate), sizeof(kKeyUpdate)};
      SoftParts one(&update, 1);
      Add(kHandshakeRecord, &one, sizeof(kKeyUpdate));
      keys_.Update();
    }
    while (from.left() > 0 && end_ + kRecordOverhead < kRecordBlockBytes &&
           keys_.sequence() < records_of_key_) {
      const size_t room = kRecordBlockBytes - end_ - kRecordOverhead;
      Add(kDataRecord, &from, std::min({from.left(), kMostContent, room}));
    }
    if (Flush(fd)) continue;
    // What is encrypted counts as sent, and the next call goes on with it.
    if (errno == EAGAIN || errno == ENOBUFS) break;
    return -1;
  }
  if (!has_unsent() && block_ != nullptr) {
    blocks_->Give(block_);
    block_ = nullptr;
  }
  return static_cast<ssize_t>(all - from.left());
}

// ---- Receiving ----

SoftRecordReader::SoftRecordReader(const SoftTrafficSecret& secret, SoftBlocks* blocks)
    : blocks_(blocks), keys_(secret) {}

SoftRecordReader::~SoftRecordReader() {
  if (block_ != nullptr) blocks_->Give(block_);
}

size_t SoftRecordReader::RecordBytes() const {
  if (end_ - begin_ < kRecordHeaderBytes) return 0;
  const uint8_t* const header = block_ + begin_;
  return kRecordHeaderBytes + (size_t{header[3]} << 8 | header[4]);
}

bool SoftRecordReader::HoldsBytes() const {
  const size_t record = RecordBytes();
  return wrong_ || plain_begin_ < plain_end_ || (record != 0 && record <= end_ - begin_);
}

bool SoftRecordReader::IsKeyUpdate(size_t content) const {
  return content == sizeof(kKeyUpdate) &&
         memcmp(block_ + begin_ + kRecordHeaderBytes, kKeyUpdate, sizeof(kKeyUpdate)) == 0;
}

// Decrypts into the pieces, or where it lies if they are null, and proves it.
SoftRecordReader::Opened SoftRecordReader::OpenContent(const uint8_t* record, size_t content,
                                                       SoftParts* pieces) {
  Sealing* const sealing = keys_.sealing();
  sealing->BeginOpen(keys_.sequence(), RecordHeader(record));
  const uint8_t* in = record + kRecordHeaderBytes;
  for (size_t left = content; left > 0;) {
    const iovec to = pieces != nullptr ? pieces->Next(left) : iovec{const_cast<uint8_t*>(in), left};
    sealing->Add(in, to.iov_len, to.iov_base);
    in += to.iov_len;
    left -= to.iov_len;
  }
  uint8_t type = 0;
  sealing->Add(in, 1, &type);
  if (!sealing->EndOpen(in + 1)) return Opened::kWrong;
  keys_.Advance();
  if (type == kDataRecord && content > 0) {
    updates_ = 0;
    return Opened::kRecord;
  }
  // Our side never sends nothing, pads, says goodbye or resumes, so all else is nonsense.
  if (type != kHandshakeRecord || pieces != nullptr || !IsKeyUpdate(content)) return Opened::kWrong;
  // A new key is cheap to announce and dear to make; our side makes one for many records.
  if (++updates_ > kMostUpdates) return Opened::kWrong;
  keys_.Update();
  plain_begin_ = plain_end_ = 0;
  return Opened::kRecord;
}

// Opens the next record. What fits goes to the pieces at once, and else stays where it is.
SoftRecordReader::Opened SoftRecordReader::Open(SoftParts* pieces, size_t* placed) {
  const size_t bytes = RecordBytes();
  if (bytes == 0) return Opened::kIncomplete;
  const uint8_t* const record = block_ + begin_;
  if (record[0] != kDataRecord || record[1] != 3 || record[2] != 3 || bytes < kRecordOverhead ||
      bytes > kMostRecord) {
    return Opened::kWrong;
  }
  if (bytes > end_ - begin_) return Opened::kIncomplete;
  const size_t content = bytes - kRecordOverhead;
  Opened opened;
  if (content >= kLeastInPlace && content <= pieces->left()) {
    opened = OpenContent(record, content, pieces);
    if (opened == Opened::kRecord) *placed += content;
  } else {
    plain_begin_ = begin_ + kRecordHeaderBytes;
    plain_end_ = plain_begin_ + content;
    opened = OpenContent(record, content, nullptr);
    if (opened != Opened::kRecord) plain_begin_ = plain_end_ = 0;
  }
  begin_ += bytes;
  return opened;
}

// Receives what there is room for. REQUIRES: no plain bytes are left.
ssize_t SoftRecordReader::Refill(int fd) {
  if (block_ == nullptr) block_ = static_cast<uint8_t*>(blocks_->Take(kRecordBlockBytes));
  if (begin_ > 0) memmove(block_, block_ + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = plain_begin_ = plain_end_ = 0;
  ssize_t got;
  do {
    got = recv(fd, block_ + end_, kRecordBlockBytes - end_, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) end_ += static_cast<size_t>(got);
  return got;
}

ssize_t SoftRecordReader::Receive(int fd, const iovec* pieces, int count) {
  SoftParts into(pieces, count);
  size_t done = 0;
  ssize_t got = 1;
  int refills = 0;
  int error = EAGAIN;
  while (into.left() > 0) {
    if (plain_begin_ < plain_end_) {
      const iovec to = into.Next(plain_end_ - plain_begin_);
      memcpy(to.iov_base, block_ + plain_begin_, to.iov_len);
      plain_begin_ += to.iov_len;
      done += to.iov_len;
      continue;
    }
    const Opened opened = wrong_ ? Opened::kWrong : Open(&into, &done);
    if (opened == Opened::kRecord) continue;
    if (opened == Opened::kWrong) {
      wrong_ = true;
      error = EPROTO;
      got = -1;
      break;
    }
    got = -1;
    if (++refills > kMostRefills) break;
    got = Refill(fd);
    if (got > 0) continue;
    error = errno;
    break;
  }
  if (block_ != nullptr && begin_ == end_ && plain_begin_ == plain_end_) {
    blocks_->Give(block_);
    block_ = nullptr;
    begin_ = end_ = plain_begin_ = plain_end_ = 0;
  }
  if (done > 0 || got > 0) return static_cast<ssize_t>(done);
  errno = error;
  return got;  // The end of the stream, or no bytes.
}

}  // namespace tryst
