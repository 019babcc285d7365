#ifndef TRYST_VERBS_SOFT_SOFT_RECORDS_H_
#define TRYST_VERBS_SOFT_SOFT_RECORDS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/optional.h"
#include "base/sealing.h"
#include "verbs/soft/soft_blocks.h"

namespace tryst {

using SoftTrafficSecret = std::array<uint8_t, 32>;

// The records of TLS 1.3 (RFC 8446, section 5) with AES-128-GCM, one direction of a connection:
// what Linux's kernel TLS does with the secrets that a handshake has agreed. OpenSSL's own records
// would share state between the directions, cost a system call for each 16 KiB, and a copy on each
// side. Used by one thread at a time.
class SoftRecordKeys {
 public:
  explicit SoftRecordKeys(const SoftTrafficSecret& secret);
  ~SoftRecordKeys();
  Sealing* sealing() { return &*sealing_; }
  uint64_t sequence() const { return sequence_; }
  void Advance() { ++sequence_; }
  // Goes on with the next key, as both sides do when the sender says so.
  void Update();
  const uint8_t* key() const { return key_; }
  const uint8_t* nonce() const { return nonce_; }

 private:
  void Use();

  SoftTrafficSecret secret_;
  uint8_t key_[16];
  uint8_t nonce_[Sealing::kNonceBytes];
  absl::optional<Sealing> sealing_;
  uint64_t sequence_ = 0;
};

// Walks through pieces of memory.
class SoftParts {
 public:
  SoftParts(const iovec* pieces, int count);
  size_t left() const { return left_; }
  // The next bytes in one stretch, at most `most`. REQUIRES: left() > 0.
  iovec Next(size_t most);

 private:
  const iovec* piece_;
  size_t offset_ = 0;
  size_t left_ = 0;
};

class SoftRecordWriter {
 public:
  // After this many records the key changes: AES-GCM would be good for more (RFC 8446,
  // section 5.5).
  static constexpr uint64_t kRecordsOfKey = uint64_t{1} << 23;

  SoftRecordWriter(const SoftTrafficSecret& secret, SoftBlocks* blocks,
                   uint64_t records_of_key = kRecordsOfKey);
  ~SoftRecordWriter();

  ssize_t Send(int fd, const iovec* pieces, int count);
  bool has_unsent() const { return begin_ < end_; }
  SoftRecordKeys* keys() { return &keys_; }

 private:
  bool Flush(int fd);  // False: the socket has taken less, or failed; errno says which.
  void Add(uint8_t type, SoftParts* pieces, size_t bytes);

  SoftBlocks* const blocks_;
  const uint64_t records_of_key_;
  SoftRecordKeys keys_;
  uint8_t* block_ = nullptr;  // Borrowed while [begin_, end_) of it is unsent.
  size_t begin_ = 0;
  size_t end_ = 0;
};

class SoftRecordReader {
 public:
  SoftRecordReader(const SoftTrafficSecret& secret, SoftBlocks* blocks);
  ~SoftRecordReader();

  ssize_t Receive(int fd, const iovec* pieces, int count);
  bool HoldsBytes() const;

 private:
  static constexpr int kMostUpdates = 2;  // In a row.
  enum class Opened : uint8_t { kRecord, kIncomplete, kWrong };
  Opened Open(SoftParts* pieces, size_t* placed);
  Opened OpenContent(const uint8_t* record, size_t content, SoftParts* pieces);
  bool IsKeyUpdate(size_t content) const;
  size_t RecordBytes() const;  // The next record's, as its header says; 0: no whole header.
  ssize_t Refill(int fd);

  SoftBlocks* const blocks_;
  SoftRecordKeys keys_;
  bool wrong_ = false;
  int updates_ = 0;           // Changes of the key since the last bytes.
  uint8_t* block_ = nullptr;  // Borrowed while it holds anything.
  size_t plain_begin_ = 0;    // Decrypted, not yet received: before begin_.
  size_t plain_end_ = 0;
  size_t begin_ = 0;  // Records, the last perhaps in part.
  size_t end_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_RECORDS_H_
