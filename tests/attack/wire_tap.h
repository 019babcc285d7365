#ifndef TRYST_TESTS_ATTACK_WIRE_TAP_H_
#define TRYST_TESTS_ATTACK_WIRE_TAP_H_

#include <cstdint>
#include <list>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// Bytes that are easy to find again: 16 at a time, a tag of eight and a number.
inline constexpr char kMarkerTag[] = "MARK3R:\xa7";
inline constexpr size_t kMarkerBytes = 16;
std::string Markers(size_t count);

enum class WireEdit { kNone, kChange, kReplay, kReorder, kTruncate, kDowngrade };
const char* WireEditName(WireEdit edit);

// Somebody on the wire between two hosts: every connection to one of them goes through it, and it
// reads and changes what it likes. It listens where peers are told to connect, and forwards to
// where the worker listens, on the same port of another loopback address.
class WireTap {
 public:
  WireTap(const std::string& here, const std::string& worker, const std::vector<int>& ports);
  ~WireTap();
  WireTap(const WireTap&) = delete;
  WireTap& operator=(const WireTap&) = delete;

  bool listens() const { return listens_; }
  // What it has read: different markers, and secrets of hellos (a queue pair's token).
  uint64_t markers() const;
  uint64_t hellos() const;
  uint64_t bytes() const;
  // Makes `times` edits, each on another connection to `port`.
  void Edit(WireEdit edit, int port, int times);
  int edits() const;        // Made since Edit().
  int edited_open() const;  // Connections that were edited and are still open.

 private:
  struct Side {
    int fd = -1;
    std::string waits;  // To be written.
    std::string tail;   // The last that was read, for what lies across two reads.
    uint64_t read = 0;
  };
  struct Connection {
    int port = 0;
    Side side[2];  // Who has dialled; the worker.
    bool edited = false;
    bool ended = false;
  };
  struct Listener {
    int fd = -1;
    int port = 0;
  };
  void Run();
  void Accept(const Listener& listener);
  void Forward(Connection* connection, int from);
  void Write(Connection* connection, int to);
  void Look(Side* side, const std::string& bytes);
  void Change(Connection* connection, std::string* bytes, bool first, bool* cut);

  const std::string worker_;
  std::vector<Listener> listeners_;
  bool listens_ = true;
  int wake_[2];
  mutable Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::set<uint64_t> markers_ ABSL_GUARDED_BY(mu_);
  uint64_t hellos_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  WireEdit edit_ ABSL_GUARDED_BY(mu_) = WireEdit::kNone;
  int edit_port_ ABSL_GUARDED_BY(mu_) = 0;
  int edits_left_ ABSL_GUARDED_BY(mu_) = 0;
  int edits_ ABSL_GUARDED_BY(mu_) = 0;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 random_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_WIRE_TAP_H_
