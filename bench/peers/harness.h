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

// Runs the same work through any library. A producer process holds tensors by key; a consumer
// process sends a key and gets the bytes into its own memory. The harness starts the processes,
// keeps a number of keys outstanding, checks the bytes that landed and takes the time. Each library
// has one file here, with a ProducerEnd, a ConsumerEnd and a main().
namespace tryst {

[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));
int64_t MonotonicNs();

// The length of a rendezvous key in TensorFlow.
constexpr size_t kKeyBytes = 59;
std::string KeyOf(int index);

struct Held {
  const char* data = nullptr;
  size_t bytes = 0;
};

// A producer's tensors. Each is filled with the bytes that the consumer expects.
class Table {
 public:
  using Allocate = std::function<char*(size_t bytes)>;
  explicit Table(const std::vector<size_t>& sizes, const Allocate& allocate = AllocatePages);

  // REQUIRES: `key` is one of the table's. Used by one thread.
  Held Find(const char* key) {
    key_.assign(key, kKeyBytes);
    const auto it = by_key_.find(key_);
    if (it == by_key_.end()) Die("no tensor is called %s", key_.c_str());
    CountFound();
    return tensors_[it->second];
  }
  const std::vector<Held>& tensors() const { return tensors_; }
  // A library that finds tensors without their keys calls this for each.
  void CountFound() {
    const int64_t found = found_.load(std::memory_order_relaxed) + 1;
    found_.store(found, std::memory_order_release);
    if (on_all_found && found % static_cast<int64_t>(tensors_.size()) == 0) on_all_found();
  }
  int64_t found() const { return found_.load(std::memory_order_acquire); }

  static char* AllocatePages(size_t bytes);  // Touched, never freed.

  std::function<void()> on_all_found;  // Called after every tensors().size() finds.

 private:
  std::unordered_map<std::string, int> by_key_;
  std::vector<Held> tensors_;
  std::string key_;
  std::atomic<int64_t> found_{0};
};

// An end of the library. The harness polls it, unless the library has its own threads.
class LibraryEnd {
 public:
  virtual ~LibraryEnd() = default;
  // Does what there is to do. With `may_wait` it may sleep until there is something.
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
  // Reports that the bytes of a slot have landed at `data`: that is `into`, or memory of the
  // library that does not change before the slot's next Ask(). Never called inside Ask().
  using Landed = std::function<void(int slot, const char* data)>;
  // Requests a tensor. A key's text never changes or moves, so an end that needs keys in another
  // form may make them once, and find them by the text's address.
  virtual void Ask(int slot, const std::string& key, char* into, size_t bytes) = 0;
};

struct ConsumerNeeds {
  std::string address;
  int slots = 1;
  size_t max_bytes = 0;
  // The harness does not read the bytes after `landed` has returned.
  bool keeps_nothing = false;
  ConsumerEnd::Landed landed;
};

struct Library {
  // Each end has its own thread, and Poll() is never called.
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

// For a library that starts its processes itself. This process is the producer (rank 0) or the
// consumer (rank 1).
int RunLibraryRank(int rank, int producer_pid, int argc, char** argv, const Library& library);

inline bool Has(const std::string& variant, const char* word) {
  return variant.find(word) != std::string::npos;
}

// The path of a token, a key or a certificate that bench/systems.py has made for this run.
std::string SecretFile(const std::string& name);

}  // namespace tryst

#endif  // TRYST_BENCH_PEERS_HARNESS_H_
