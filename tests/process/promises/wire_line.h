#ifndef TRYST_TESTS_PROCESS_PROMISES_WIRE_LINE_H_
#define TRYST_TESTS_PROCESS_PROMISES_WIRE_LINE_H_

#include <string>

#include "absl/time/time.h"

namespace tryst {

// Lines of text between a test's two processes, beside the transport under test: they work even if
// that one is stuck. One thread at a time on each end.
class WireLine {
 public:
  explicit WireLine(int fd) : fd_(fd) {}  // Takes over the descriptor.
  ~WireLine();
  WireLine(const WireLine&) = delete;
  WireLine& operator=(const WireLine&) = delete;

  // False: the other end is gone.
  bool Say(const std::string& line);
  // False: nothing came in time, or the other end is gone.
  bool Hear(std::string* line, absl::Duration timeout = absl::Minutes(2));

 private:
  const int fd_;
  std::string heard_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PROMISES_WIRE_LINE_H_
