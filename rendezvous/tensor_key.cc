#include "rendezvous/tensor_key.h"

#include <sys/random.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"

namespace tryst {
namespace {

// Two numbers of 20 digits, a colon.
constexpr size_t kMaxSuffixBytes = 41;
constexpr size_t kMaxEchoBytes = 256;

bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool ConsumeName(absl::string_view* in, absl::string_view* name) {
  if (in->empty() || !IsAlpha(in->front())) return false;
  size_t n = 1;
  while (n < in->size() && (IsAlpha((*in)[n]) || IsDigit((*in)[n]) || (*in)[n] == '_')) ++n;
  *name = in->substr(0, n);
  in->remove_prefix(n);
  return true;
}

// Decimal digits in their one spelling: no sign, no leading zero.
bool ConsumeNumber(absl::string_view* in, uint64_t* number) {
  size_t n = 0;
  uint64_t value = 0;
  for (; n < in->size() && IsDigit((*in)[n]); ++n) {
    const uint64_t digit = (*in)[n] - '0';
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, digit, &value)) {
      return false;
    }
  }
  if (n == 0 || (n > 1 && in->front() == '0')) return false;
  *number = value;
  in->remove_prefix(n);
  return true;
}

bool ConsumeNumber(absl::string_view* in, int32_t* number) {
  uint64_t wide;
  if (!ConsumeNumber(in, &wide) || wide > INT32_MAX) return false;
  *number = static_cast<int32_t>(wide);
  return true;
}

bool ParseIncarnation(absl::string_view in, uint64_t* incarnation) {
  if (in.size() != 16) return false;
  *incarnation = 0;
  for (const char c : in) {
    if (!IsDigit(c) && !(c >= 'a' && c <= 'f')) return false;
    *incarnation = *incarnation << 4 | static_cast<uint64_t>(IsDigit(c) ? c - '0' : c - 'a' + 10);
  }
  return true;
}

// Takes the text up to the next ';' and that ';', or all of the rest if there is none.
absl::string_view ConsumePart(absl::string_view* in, bool* separator) {
  const size_t end = in->find(';');
  *separator = end != absl::string_view::npos;
  const absl::string_view part = in->substr(0, end);
  in->remove_prefix(*separator ? end + 1 : in->size());
  return part;
}

absl::Status Invalid(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("Invalid  rendezvous key: ", absl::CHexEscape(text.substr(0, kMaxEchoBytes)),
                   text.size() > kMaxEchoBytes ? "..." : "", " (", why, ")"));
}

// Turns a device name in TensorFlow 1's form into today's form. Returns false for any other text.
bool ModernDeviceName(absl::string_view text, std::string* modern) {
  for (const absl::string_view type : {"/cpu:", "/CPU:", "/gpu:", "/GPU:"}) {
    const size_t at = text.find(type);
    if (at == absl::string_view::npos) continue;
    *modern = absl::StrCat(text.substr(0, at), "/device:", absl::AsciiStrToUpper(type.substr(1)),
                           text.substr(at + type.size()));
    DeviceName name;
    return ParseDeviceName(*modern, &name);
  }
  return false;
}

// Returns the key with today's device names. Empty if the names are already in that form, or are no
// device names.
std::string ModernKey(absl::string_view src, absl::string_view incarnation, absl::string_view dst,
                      absl::string_view rest) {
  std::string modern_src(src);
  std::string modern_dst(dst);
  const bool old_src = ModernDeviceName(src, &modern_src);
  const bool old_dst = ModernDeviceName(dst, &modern_dst);
  const bool old = old_src || old_dst;
  return old ? absl::StrCat(modern_src, ";", incarnation, ";", modern_dst, ";", rest) : "";
}

uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Without it the hashes of many keys can be made equal by arithmetic: 100,000 such keys held a
// table's lock for minutes.
struct HashSecret {
  uint64_t first;  // Both are odd.
  uint64_t second;
};
constexpr HashSecret kFixedSecret = {0x9e3779b97f4a7c15, 0xd6e8feb86659fd93};

std::atomic<bool> hashes_are_fixed{false};

HashSecret NewSecret() {
  if (hashes_are_fixed.load()) return kFixedSecret;
  HashSecret secret;
  TRYST_CHECK(getrandom(&secret, sizeof(secret), 0) == sizeof(secret)) << "no random bytes";
  secret.first |= 1;
  secret.second |= 1;
  return secret;
}

const HashSecret& Secret() {
  static const HashSecret secret = NewSecret();
  return secret;
}

uint64_t TextHash(absl::string_view text) {
  const HashSecret& secret = Secret();
  uint64_t hash = text.size();
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t n = text.size() < 8 ? text.size() : 8;
    memcpy(&word, text.data(), n);
    hash = Mix(hash ^ word ^ secret.first, secret.second);
    text.remove_prefix(n);
  }
  return hash;
}

uint64_t KeyHash(uint64_t prefix_hash, uint64_t frame, uint64_t iter) {
  const HashSecret& secret = Secret();
  return Mix(Mix(prefix_hash ^ frame, secret.first) ^ iter, secret.second);
}

// Writes "frame:iter", which always fits, and returns its length.
size_t WriteSuffix(uint64_t frame, uint64_t iter, char* out) {
  char* const end = out + kMaxSuffixBytes;
  char* p = std::to_chars(out, end, frame).ptr;
  *p++ = ':';
  return std::to_chars(p, end, iter).ptr - out;
}

}  // namespace

void FixKeyHashes() {
  hashes_are_fixed.store(true);
  TRYST_CHECK(Secret().first == kFixedSecret.first) << "a key was hashed with a secret already";
}

bool ParseDeviceName(absl::string_view text, DeviceName* name) {
  absl::string_view in = text;
  if (!absl::ConsumePrefix(&in, "/job:") || !ConsumeName(&in, &name->job) ||
      !absl::ConsumePrefix(&in, "/replica:") || !ConsumeNumber(&in, &name->replica) ||
      !absl::ConsumePrefix(&in, "/task:") || !ConsumeNumber(&in, &name->task)) {
    return false;
  }
  name->worker = text.substr(0, text.size() - in.size());
  return absl::ConsumePrefix(&in, "/device:") && ConsumeName(&in, &name->type) &&
         absl::ConsumePrefix(&in, ":") && ConsumeNumber(&in, &name->index) && in.empty();
}

TensorKey::Rep* TensorKey::NewRep(absl::string_view text, size_t room) {
  void* block = malloc(sizeof(Rep) + text.size() + room);
  if (block == nullptr) throw std::bad_alloc();
  Rep* rep = new (block) Rep();
  rep->refs.store(1, std::memory_order_relaxed);
  rep->text_bytes = static_cast<uint16_t>(text.size());
  rep->has_room = room != 0;
  if (!text.empty()) memcpy(rep->text, text.data(), text.size());
  return rep;
}

void TensorKey::SetDevice(absl::string_view text, const DeviceName& name, Device* device) {
  device->begin = static_cast<uint16_t>(text.data() - rep_->text);
  device->bytes = static_cast<uint16_t>(text.size());
  device->worker_bytes = static_cast<uint16_t>(name.worker.size());
  device->job_bytes = static_cast<uint16_t>(name.job.size());
  device->type_bytes = static_cast<uint16_t>(name.type.size());
  device->replica = name.replica;
  device->task = name.task;
  device->index = name.index;
}

void TensorKey::Unref() {
  if (rep_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    rep_->~Rep();
    free(rep_);
  }
}

absl::StatusOr<TensorKey> TensorKey::Parse(absl::string_view text) {
  if (text.size() > kMaxBytes) {
    return Invalid(text, absl::StrCat(text.size(), " bytes, the limit is ", kMaxBytes));
  }
  TensorKey key(NewRep(text, 0));
  Rep& rep = *key.rep_;
  absl::string_view in(rep.text, rep.text_bytes);
  bool separator[5];
  const absl::string_view src_device = ConsumePart(&in, &separator[0]);
  const absl::string_view incarnation = ConsumePart(&in, &separator[1]);
  const absl::string_view dst_device = ConsumePart(&in, &separator[2]);
  const absl::string_view rest = in;
  const absl::string_view edge = ConsumePart(&in, &separator[3]);
  rep.prefix_bytes = static_cast<uint16_t>(rep.text_bytes - in.size());
  absl::string_view suffix = ConsumePart(&in, &separator[4]);
  if (!separator[3] || separator[4]) return Invalid(text, "not five parts");
  DeviceName src;
  DeviceName dst;
  const bool is_src = src_device.empty() || ParseDeviceName(src_device, &src);
  const bool is_dst = ParseDeviceName(dst_device, &dst);
  if (!is_src || !is_dst) {
    const std::string modern = ModernKey(src_device, incarnation, dst_device, rest);
    if (!modern.empty())
      return Parse(modern);  // It recurses once only: `modern` has today's names.
  }
  if (!is_src) return Invalid(text, "the source is not a full device name");
  if (!ParseIncarnation(incarnation, &rep.src_incarnation)) {
    return Invalid(text, "the incarnation is not 16 lower-case hex digits");
  }
  if (!is_dst) return Invalid(text, "the destination is not a full device name");
  if (edge.empty()) return Invalid(text, "no edge name");
  if (!ConsumeNumber(&suffix, &rep.frame) || !absl::ConsumePrefix(&suffix, ":") ||
      !ConsumeNumber(&suffix, &rep.iter) || !suffix.empty()) {
    return Invalid(text, "the last part is not frame:iteration");
  }
  key.SetDevice(src_device, src, &rep.src);
  key.SetDevice(dst_device, dst, &rep.dst);
  rep.edge_begin = static_cast<uint16_t>(edge.data() - rep.text);
  rep.edge_bytes = static_cast<uint16_t>(edge.size());
  rep.prefix_hash = TextHash(absl::string_view(rep.text, rep.prefix_bytes));
  rep.hash = KeyHash(rep.prefix_hash, rep.frame, rep.iter);
  return key;
}

absl::StatusOr<TensorKey> TensorKey::WithEdge(absl::string_view edge) const {
  const absl::string_view before = text().substr(0, rep_->edge_begin);
  const absl::string_view after = text().substr(rep_->prefix_bytes - 1);  // From the last ';' on.
  const size_t bytes = before.size() + edge.size() + after.size();
  if (edge.empty() || edge.find(';') != absl::string_view::npos || bytes > kMaxBytes) {
    return Parse(absl::StrCat(before, edge, after));  // It says what is wrong.
  }
  Rep* const rep = NewRep(before, bytes - before.size());
  TensorKey key(rep);
  memcpy(rep->text + before.size(), edge.data(), edge.size());
  memcpy(rep->text + before.size() + edge.size(), after.data(), after.size());
  rep->has_room = false;
  rep->text_bytes = static_cast<uint16_t>(bytes);
  rep->edge_begin = rep_->edge_begin;
  rep->edge_bytes = static_cast<uint16_t>(edge.size());
  rep->prefix_bytes = static_cast<uint16_t>(before.size() + edge.size() + 1);
  rep->src_incarnation = rep_->src_incarnation;
  rep->src = rep_->src;
  rep->dst = rep_->dst;
  rep->frame = rep_->frame;
  rep->iter = rep_->iter;
  rep->prefix_hash = TextHash(absl::string_view(rep->text, rep->prefix_bytes));
  rep->hash = KeyHash(rep->prefix_hash, rep->frame, rep->iter);
  return key;
}

absl::StatusOr<TensorKeyPrefix> TensorKeyPrefix::Make(absl::string_view src_device,
                                                      uint64_t src_incarnation,
                                                      absl::string_view dst_device,
                                                      absl::string_view edge) {
  absl::StatusOr<TensorKey> key =
      TensorKey::Parse(absl::StrCat(src_device, ";", absl::Hex(src_incarnation, absl::kZeroPad16),
                                    ";", dst_device, ";", edge, ";0:0"));
  if (!key.ok()) return key.status();
  return TensorKeyPrefix(*std::move(key));
}

TensorKey::Rep* TensorKeyPrefix::NewRep() const {
  const TensorKey::Rep& zero = *at_zero_.rep_;
  TensorKey::Rep* rep =
      TensorKey::NewRep(absl::string_view(zero.text, zero.prefix_bytes), kMaxSuffixBytes);
  rep->prefix_hash = zero.prefix_hash;
  rep->src_incarnation = zero.src_incarnation;
  rep->src = zero.src;
  rep->dst = zero.dst;
  rep->prefix_bytes = zero.prefix_bytes;
  rep->edge_begin = zero.edge_begin;
  rep->edge_bytes = zero.edge_bytes;
  return rep;
}

void TensorKeyPrefix::SetSuffix(uint64_t frame, uint64_t iter, TensorKey::Rep* rep) {
  rep->text_bytes = static_cast<uint16_t>(rep->prefix_bytes +
                                          WriteSuffix(frame, iter, rep->text + rep->prefix_bytes));
  rep->frame = frame;
  rep->iter = iter;
  rep->hash = KeyHash(rep->prefix_hash, frame, iter);
}

TensorKey TensorKeyPrefix::At(uint64_t frame, uint64_t iter) const {
  TensorKey::Rep* rep = NewRep();
  SetSuffix(frame, iter, rep);
  return TensorKey(rep);
}

void TensorKeyPrefix::Assign(uint64_t frame, uint64_t iter, TensorKey* key) const {
  const TensorKey::Rep& zero = *at_zero_.rep_;
  const bool in_place = key->rep_ != nullptr &&
                        key->rep_->refs.load(std::memory_order_acquire) == 1 &&
                        key->rep_->prefix_bytes == zero.prefix_bytes && key->rep_->has_room &&
                        memcmp(key->rep_->text, zero.text, zero.prefix_bytes) == 0;
  if (!in_place) *key = TensorKey(NewRep());
  SetSuffix(frame, iter, key->rep_);
}

}  // namespace tryst
