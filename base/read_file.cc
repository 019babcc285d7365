#include "base/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

absl::Status CannotRead(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> ReadFrom(int fd, const std::string& path, size_t most_bytes,
                                     absl::Duration most_wait) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(most_wait);
  std::string text;
  for (;;) {
    const size_t had = text.size();
    text.resize(had + std::min(kPieceBytes, most_bytes + 1 - had));
    const ssize_t got = read(fd, &text[had], text.size() - had);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (text.size() > most_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is larger than ", most_bytes,
          " bytes, the most that Tryst reads, or is a device without an end: name another file"));
    }
    if (got > 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return CannotRead(path);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd wait = {fd, POLLIN, 0};
    if (left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a pipe or a device that had not ended after ",
                       absl::FormatDuration(most_wait)));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes,
                                     absl::Duration most_wait) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return CannotRead(path);
  absl::StatusOr<std::string> text = ReadFrom(fd, path, most_bytes, most_wait);
  close(fd);
  return text;
}

}  // namespace tryst
