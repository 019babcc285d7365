// Two rings in shared memory, written by hand: the least that delivery on one host can cost.
// "stream" copies with streaming stores, "futex" sleeps; any other variant spins and uses memcpy.
#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr uint32_t kEntries = 256;  // More than keys are ever outstanding.
constexpr size_t kInlineBytes = 64;

struct alignas(128) Entry {
  std::atomic<uint32_t> turn{0};
  uint32_t slot;
  uint64_t bytes, offset;
  char data[kInlineBytes];
};
struct alignas(128) Door {
  std::atomic<uint32_t> waiting{0};
};
struct Rings {
  Entry requests[kEntries];
  Entry answers[kEntries];
  Door request_door, answer_door;
};
static_assert(kKeyBytes <= kInlineBytes, "a key fits an entry");

void StreamCopy(char* into, const char* from, size_t bytes) {
  const size_t whole = bytes & ~size_t{63};
  for (size_t at = 0; at < whole; at += 64) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at + 48), d);
  }
  memcpy(into + whole, from + whole, bytes - whole);
  _mm_sfence();
}

// One process's end of one direction.
class Turns {
 public:
  void Open(Entry* entries, Door* door, bool sleeps) {
    entries_ = entries, door_ = door, sleeps_ = sleeps;
  }
  Entry* entry() { return &entries_[next_ % kEntries]; }
  uint32_t turn() const { return next_ / kEntries + 1; }
  void Publish() {
    entry()->turn.store(turn(), std::memory_order_release);
    ++next_;
    if (!sleeps_) return;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (door_->waiting.exchange(0) != 0) {
      syscall(SYS_futex, &door_->waiting, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
  }
  bool Ready() { return entry()->turn.load(std::memory_order_acquire) == turn(); }
  void Sleep() {
    door_->waiting.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!Ready()) syscall(SYS_futex, &door_->waiting, FUTEX_WAIT, 1, nullptr, nullptr, 0);
    door_->waiting.store(0);
  }
  bool sleeps() const { return sleeps_; }
  void Use() { ++next_; }

 private:
  Entry* entries_ = nullptr;
  Door* door_ = nullptr;
  bool sleeps_ = false;
  uint32_t next_ = 0;
};

class RingProducer final : public ProducerEnd {
 public:
  RingProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : table_(sizes, [this](size_t bytes) { return Map(bytes); }) {
    requests_.Open(rings_->requests, &rings_->request_door, Has(variant, "futex"));
    answers_.Open(rings_->answers, &rings_->answer_door, Has(variant, "futex"));
  }
  Table& table() override { return table_; }
  std::string Address() override {
    char text[64];
    snprintf(text, sizeof(text), "/proc/%d/fd/%d %zu", getpid(), fd_, mapped_);
    return text;
  }
  void Poll(bool may_wait) override {
    if (!requests_.Ready()) {
      if (may_wait && requests_.sleeps()) requests_.Sleep();
      return;
    }
    const Entry* request = requests_.entry();
    const Held held = table_.Find(request->data);
    Entry* answer = answers_.entry();
    answer->slot = request->slot;
    answer->bytes = held.bytes;
    if (held.bytes <= kInlineBytes) {
      memcpy(answer->data, held.data, held.bytes);
    } else {
      answer->offset = static_cast<uint64_t>(held.data - reinterpret_cast<char*>(rings_));
    }
    requests_.Use();
    answers_.Publish();
  }

 private:
  char* Map(size_t bytes) {
    const size_t head = (sizeof(Rings) + 4095) & ~size_t{4095};
    mapped_ = head + bytes;
    fd_ = memfd_create("ring", 0);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(mapped_)) != 0) Die("no shared memory");
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) Die("no shared memory");
    rings_ = new (memory) Rings;
    return static_cast<char*>(memory) + head;
  }

  Rings* rings_ = nullptr;
  int fd_ = -1;
  size_t mapped_ = 0;
  Table table_;
  Turns requests_, answers_;
};

class RingConsumer final : public ConsumerEnd {
 public:
  RingConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs), stream_(Has(variant, "stream")), into_(needs.slots) {
    const size_t space = needs.address.find(' ');
    const size_t mapped = strtoull(needs.address.c_str() + space, nullptr, 10);
    const int fd = open(needs.address.substr(0, space).c_str(), O_RDWR);
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (fd < 0 || memory == MAP_FAILED) Die("cannot map the producer's memory");
    rings_ = static_cast<Rings*>(memory);
    requests_.Open(rings_->requests, &rings_->request_door, Has(variant, "futex"));
    answers_.Open(rings_->answers, &rings_->answer_door, Has(variant, "futex"));
  }
  void Ask(int slot, const std::string& key, char* into, size_t) override {
    into_[slot] = into;
    Entry* request = requests_.entry();
    request->slot = static_cast<uint32_t>(slot);
    memcpy(request->data, key.data(), kKeyBytes);
    requests_.Publish();
  }
  void Poll(bool may_wait) override {
    if (!answers_.Ready()) {
      if (may_wait && answers_.sleeps()) answers_.Sleep();
      return;
    }
    const Entry* answer = answers_.entry();
    const int slot = static_cast<int>(answer->slot);
    const char* from = reinterpret_cast<const char*>(rings_) + answer->offset;
    if (answer->bytes <= kInlineBytes) {
      memcpy(into_[slot], answer->data, answer->bytes);
    } else if (stream_) {
      StreamCopy(into_[slot], from, answer->bytes);
    } else {
      memcpy(into_[slot], from, answer->bytes);
    }
    answers_.Use();
    needs_.landed(slot, into_[slot]);
  }

 private:
  const ConsumerNeeds needs_;
  const bool stream_;
  std::vector<char*> into_;
  Rings* rings_ = nullptr;
  Turns requests_, answers_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::RingProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::RingConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
