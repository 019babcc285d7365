#ifndef TRYST_BENCH_PEERS_HARNESS_H_
#define TRYST_BENCH_PEERS_HARNESS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

// The same work through any library. A producer process holds tensors by key; a consumer
// process sends a key and gets the bytes into memory of its own. The harness starts the
// processes, keeps so many keys outstanding, looks at what has landed and takes the time.
// A library is one file here: a ProducerEnd, a ConsumerEnd and a main().
namespace tryst {

[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));
int64_t MonotonicNs();

// As long as a rendezvous key of TensorFlow's.
constexpr size_t kKeyBytes = 59;
std::string KeyOf(int index);

struct Held {
  const char* data = nullptr;
  size_t bytes = 0;
};

// A producer's tensors, filled with what the consumer expects of each.
class Table {
 public:
  using Allocate = std::function<char*(size_t bytes)>;
  explicit Table(const std::vector<size_t>& sizes, const Allocate& allocate = AllocatePages);

  // Of kKeyBytes bytes. Dies of a key that is none. One thread.
  Held Find(const char* key) {
    key_.assign(key, kKeyBytes);
    const auto it = by_key_.find(key_);
    if (it == by_key_.end()) Die("no tensor is called %s", key_.c_str());
    CountFound();
    return tensors_[it->second];
  }
  const std::vector<Held>& tensors() const { return tensors_; }
  // For who finds tensors in another way.
  void CountFound() {
    const int64_t found = found_.load(std::memory_order_relaxed) + 1;
    found_.store(found, std::memory_order_release);
    if (on_all_found && found % static_cast<int64_t>(tensors_.size()) == 0) on_all_found();
  }
  int64_t found() const { return found_.load(std::memory_order_acquire); }

  static char* AllocatePages(size_t bytes);  // Touched, never freed.

  std::function<void()> on_all_found;  // Each time that as many were found as there are.

 private:
  std::unordered_map<std::string, int> by_key_;
  std::vector<Held> tensors_;
  std::string key_;
  std::atomic<int64_t> found_{0};
};

// Something of the library that has to be turned, unless it has threads of its own.
class LibraryEnd {
 public:
  virtual ~LibraryEnd() = default;
  // One turn; may sleep until there is something to do if `may_wait`.
  virtual void Poll(bool may_wait) = 0;
};

// Answers one consumer.
class ProducerEnd : public LibraryEnd {
 public:
  virtual Table& table() = 0;
  virtual std::string Address() = 0;  // For the consumer; any bytes.
};

class ConsumerEnd : public LibraryEnd {
 public:
  // Where the bytes of a slot have landed: in `into`, or in memory of the library's that
  // stays as it is until the slot's next Ask(). Never called inside Ask().
  using Landed = std::function<void(int slot, const char* data)>;
  // `key` stays what and where it is: who knows keys in another form makes that once.
  virtual void Ask(int slot, const std::string& key, char* into, size_t bytes) = 0;
};

struct ConsumerNeeds {
  std::string address;
  int slots = 1;
  size_t max_bytes = 0;
  // What has landed is not looked at after `landed` has returned: its memory may go.
  bool keeps_nothing = false;
  ConsumerEnd::Landed landed;
};

struct Library {
  // Ends work on threads of their own, one for each end, and Poll() is never called.
  bool threads = false;
  std::function<std::unique_ptr<ProducerEnd>(const std::string& variant,
                                             const std::vector<size_t>& sizes)>
      produce;
  std::function<std::unique_ptr<ConsumerEnd>(const std::string& variant,
                                             const ConsumerNeeds& needs)>
      consume;
};

// PROGRAM VARIANT WORKLOAD BYTES SECONDS. Prints a line "figure TAB bytes TAB value TAB unit"
// for each figure of the workload: pull, delivery, rate, first, idle, step1, step3, incast,
// delivery8 and rate4, of so many producers at once.
int RunLibrary(int argc, char** argv, const Library& library);

// For a library that starts its processes itself: this one is the producer (rank 0) or the
// consumer (rank 1) of two.
int RunLibraryRank(int rank, int producer_pid, int argc, char** argv, const Library& library);

inline bool Has(const std::string& variant, const char* word) {
  return variant.find(word) != std::string::npos;
}

}  // namespace tryst

#endif  // TRYST_BENCH_PEERS_HARNESS_H_
