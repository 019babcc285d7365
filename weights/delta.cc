#include "weights/delta.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "base/log.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tryst {
namespace {

constexpr uint8_t kGoOn = 255;  // A gap byte that another one follows.
constexpr size_t kCountBytes = sizeof(uint16_t);
constexpr size_t kMaskBytes = 64;

// One bit for each of kMaskBytes bytes: whether its element differs. All bits of an element are
// alike.
template <typename T>
uint64_t Changed(const uint8_t* a, const uint8_t* b) {
#if defined(__x86_64__)
  uint64_t equal = 0;
  for (size_t i = 0; i < kMaskBytes; i += sizeof(__m128i)) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
    __m128i same;
    if constexpr (sizeof(T) == 1) {
      same = _mm_cmpeq_epi8(x, y);
    } else if constexpr (sizeof(T) == 2) {
      same = _mm_cmpeq_epi16(x, y);
    } else {
      same = _mm_cmpeq_epi32(x, y);
    }
    equal |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(same))) << i;
  }
  if constexpr (sizeof(T) == 8) {  // SSE2 compares at most 4 bytes at a time.
    equal &= (equal >> 4 & 0x0f0f0f0f0f0f0f0f) | (equal & 0x0f0f0f0f0f0f0f0f) << 4;
  }
  return ~equal;
#else
  constexpr uint64_t kElement = (uint64_t{1} << sizeof(T)) - 1;
  uint64_t changed = 0;
  for (size_t i = 0; i < kMaskBytes; i += sizeof(T)) {
    changed |= memcmp(a + i, b + i, sizeof(T)) == 0 ? 0 : kElement << i;
  }
  return changed;
#endif
}

// One block, coded as sparse as long as that is shorter than the block.
template <typename T>
class SparseBlock {
 public:
  // False: it would not be shorter.
  bool Add(const uint8_t* base, const uint8_t* now, size_t bytes) {
    size_t at = 0;
    for (; at + kMaskBytes <= bytes; at += kMaskBytes) {
      const uint64_t changed = Changed<T>(base + at, now + at);
      if (changed == 0) continue;
      AddMask(changed, at, now);
      if (size() >= bytes) return false;
    }
    if (at == bytes) return true;
    uint8_t rest[2][kMaskBytes] = {};
    memcpy(rest[0], base + at, bytes - at);
    memcpy(rest[1], now + at, bytes - at);
    AddMask(Changed<T>(rest[0], rest[1]), at, now);
    return same() || size() < bytes;
  }
  bool same() const { return gap_count_ == 0; }
  void AppendTo(std::string* coded) const {
    uint8_t count[kCountBytes];
    StoreLittle(count, static_cast<uint16_t>(gap_count_));
    coded->append(reinterpret_cast<const char*>(count), sizeof(count));
    coded->append(reinterpret_cast<const char*>(gaps_), gap_count_);
    coded->append(reinterpret_cast<const char*>(values_), value_count_ * sizeof(T));
  }

 private:
  // The most gaps that one mask may add.
  static constexpr size_t kMostGaps = kMaskBytes / sizeof(T) + kDeltaBlockBytes / sizeof(T) / kGoOn;

  size_t size() const { return kCountBytes + gap_count_ + value_count_ * sizeof(T); }

  void AddMask(uint64_t changed, size_t at, const uint8_t* now) {
    constexpr uint64_t kElement = sizeof(T) == 8 ? 0xff : (uint64_t{1} << sizeof(T)) - 1;
    while (changed != 0) {
      const int bit = __builtin_ctzll(changed);
      changed &= ~(kElement << bit);
      const size_t place = (at + bit) / sizeof(T);
      size_t gap = place - next_;
      next_ = place + 1;
      for (; gap >= kGoOn; gap -= kGoOn) gaps_[gap_count_++] = kGoOn;
      gaps_[gap_count_++] = static_cast<uint8_t>(gap);
      memcpy(values_ + value_count_++, now + place * sizeof(T), sizeof(T));
    }
  }

  size_t next_ = 0;  // The element after the last one that changed.
  size_t gap_count_ = 0, value_count_ = 0;
  uint8_t gaps_[kDeltaBlockBytes + kMostGaps];
  T values_[kDeltaBlockBytes / sizeof(T) + kMaskBytes / sizeof(T)];
};

void SetBit(std::string* text, uint64_t begin, uint64_t bit) {
  (*text)[begin + bit / 8] =
      static_cast<char>(static_cast<uint8_t>((*text)[begin + bit / 8]) | 1 << bit % 8);
}

template <typename T>
void Encode(const uint8_t* base, const uint8_t* now, uint64_t bytes, std::string* coded) {
  const uint64_t blocks = (bytes + kDeltaBlockBytes - 1) / kDeltaBlockBytes;
  const uint64_t bits = (blocks + 7) / 8;
  const uint64_t changed_at = coded->size(), whole_at = changed_at + bits;
  coded->append(2 * bits, '\0');
  for (uint64_t block = 0; block < blocks; ++block) {
    const uint64_t at = block * kDeltaBlockBytes;
    const size_t size = std::min<uint64_t>(kDeltaBlockBytes, bytes - at);
    SparseBlock<T> sparse;
    if (!sparse.Add(base + at, now + at, size)) {
      SetBit(coded, changed_at, block);
      SetBit(coded, whole_at, block);
      coded->append(reinterpret_cast<const char*>(now + at), size);
    } else if (!sparse.same()) {
      SetBit(coded, changed_at, block);
      sparse.AppendTo(coded);
    }
  }
}

absl::Status NoDelta(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a delta of weights is malformed: ", what));
}

// The blocks of a coded box, one after the other.
class BlockReader {
 public:
  // REQUIRES: `coded` has the bits of all blocks.
  BlockReader(absl::string_view coded, uint64_t bytes)
      : data_(reinterpret_cast<const uint8_t*>(coded.data())),
        size_(coded.size()),
        bits_((bytes / kDeltaBlockBytes + (bytes % kDeltaBlockBytes != 0) + 7) / 8),
        at_(2 * bits_) {}

  bool changed(uint64_t block) const { return Bit(block); }
  bool whole(uint64_t block) const { return Bit(bits_ * 8 + block); }
  uint64_t left() const { return size_ - at_; }
  const uint8_t* Take(uint64_t bytes) {
    const uint8_t* taken = data_ + at_;
    at_ += bytes;
    return taken;
  }

 private:
  bool Bit(uint64_t bit) const { return (data_[bit / 8] >> bit % 8 & 1) != 0; }

  const uint8_t* const data_;
  const uint64_t size_, bits_;
  uint64_t at_;
};

// Checks a sparse block of `elements` and goes past it.
absl::Status CheckSparse(BlockReader* reader, uint64_t elements, uint32_t element_bytes) {
  if (reader->left() < kCountBytes) return NoDelta("it ends before a block's gaps");
  const uint16_t gaps = LoadLittle<uint16_t>(reader->Take(kCountBytes));
  if (gaps == 0 || reader->left() < gaps) return NoDelta("it ends within a block's gaps");
  const uint8_t* const gap = reader->Take(gaps);
  uint64_t place = 0, values = 0;
  for (uint32_t i = 0; i < gaps; ++i) {
    const bool goes_on = gap[i] == kGoOn;
    place += gap[i] + !goes_on;
    values += !goes_on;
  }
  if (gap[gaps - 1] == kGoOn || place > elements) {
    return NoDelta("a block's gaps lead past its end");
  }
  if (reader->left() / element_bytes < values) return NoDelta("it ends within a block's values");
  reader->Take(values * element_bytes);
  return absl::OkStatus();
}

template <typename T>
void Decode(absl::string_view coded, const uint8_t* base, uint64_t bytes, uint8_t* now) {
  BlockReader reader(coded, bytes);
  for (uint64_t at = 0, block = 0; at < bytes; at += kDeltaBlockBytes, ++block) {
    const size_t size = std::min<uint64_t>(kDeltaBlockBytes, bytes - at);
    if (reader.changed(block) && reader.whole(block)) {
      memcpy(now + at, reader.Take(size), size);
      continue;
    }
    if (base != now) memcpy(now + at, base + at, size);
    if (!reader.changed(block)) continue;
    const uint16_t gaps = LoadLittle<uint16_t>(reader.Take(kCountBytes));
    const uint8_t* const gap = reader.Take(gaps);
    const uint8_t* const values = gap + gaps;
    uint8_t* place = now + at;
    uint64_t taken = 0;
    for (uint32_t i = 0; i < gaps; ++i) {
      place += gap[i] * sizeof(T);
      if (gap[i] == kGoOn) continue;
      memcpy(place, values + taken, sizeof(T));
      place += sizeof(T);
      taken += sizeof(T);
    }
    reader.Take(taken);
  }
}

}  // namespace

void EncodeDelta(const void* base, const void* now, uint64_t bytes, uint32_t element_bytes,
                 std::string* coded) {
  TRYST_CHECK(bytes % element_bytes == 0);
  const uint8_t* const from = static_cast<const uint8_t*>(base);
  const uint8_t* const to = static_cast<const uint8_t*>(now);
  switch (element_bytes) {
    case 1:
      return Encode<uint8_t>(from, to, bytes, coded);
    case 2:
      return Encode<uint16_t>(from, to, bytes, coded);
    case 4:
      return Encode<uint32_t>(from, to, bytes, coded);
    default:
      TRYST_CHECK(element_bytes == 8 || element_bytes == 16);
      return Encode<uint64_t>(from, to, bytes, coded);
  }
}

absl::Status CheckDelta(absl::string_view coded, uint64_t bytes, uint32_t element_bytes) {
  TRYST_CHECK(bytes % element_bytes == 0);
  const uint32_t value_bytes = std::min<uint32_t>(element_bytes, sizeof(uint64_t));
  const uint64_t blocks = bytes / kDeltaBlockBytes + (bytes % kDeltaBlockBytes != 0);
  if (coded.size() < 2 * ((blocks + 7) / 8) || coded.size() > MaxDeltaBytes(bytes)) {
    return NoDelta(absl::StrCat(coded.size(), " bytes of it cannot stand for ", bytes));
  }
  BlockReader reader(coded, bytes);
  for (uint64_t block = 0; block < blocks; ++block) {
    const uint64_t size = std::min<uint64_t>(kDeltaBlockBytes, bytes - block * kDeltaBlockBytes);
    if (!reader.changed(block)) {
      if (reader.whole(block)) return NoDelta("a block is marked as unchanged and as whole");
      continue;
    }
    if (reader.whole(block)) {
      if (reader.left() < size) return NoDelta("it ends within a whole block");
      reader.Take(size);
      continue;
    }
    const absl::Status checked = CheckSparse(&reader, size / value_bytes, value_bytes);
    if (!checked.ok()) return checked;
  }
  if (reader.left() != 0) return NoDelta("it goes on after its last block");
  return absl::OkStatus();
}

absl::Status DecodeDelta(absl::string_view coded, const void* base, uint64_t bytes,
                         uint32_t element_bytes, void* now) {
  const absl::Status checked = CheckDelta(coded, bytes, element_bytes);
  if (!checked.ok()) return checked;
  const uint8_t* const from = static_cast<const uint8_t*>(base);
  uint8_t* const to = static_cast<uint8_t*>(now);
  switch (element_bytes) {
    case 1:
      Decode<uint8_t>(coded, from, bytes, to);
      break;
    case 2:
      Decode<uint16_t>(coded, from, bytes, to);
      break;
    case 4:
      Decode<uint32_t>(coded, from, bytes, to);
      break;
    default:
      Decode<uint64_t>(coded, from, bytes, to);
      break;
  }
  return absl::OkStatus();
}

}  // namespace tryst
