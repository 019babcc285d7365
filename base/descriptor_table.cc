#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace tryst {

void EnlargeDescriptorTable(int count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const int last = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, count)) - 1;
  // A descriptor of that number makes the kernel enlarge the table, which then stays so.
  const int any = eventfd(0, EFD_CLOEXEC);
  if (any < 0) return;
  const int far = fcntl(any, F_DUPFD_CLOEXEC, last);
  if (far >= 0) close(far);
  close(any);
}

}  // namespace tryst
