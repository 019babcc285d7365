#ifndef TRYST_BASE_FAILING_CALL_H_
#define TRYST_BASE_FAILING_CALL_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace tryst {

// For tests. Calls `run` on a thread of its own, on which the kernel refuses `call` (SYS_listen,
// ...) with `error`. False: the kernel lets nobody say so, and `run` was not called.
[[nodiscard]] inline bool RunWhereCallFails(uint32_t call, uint32_t error,
                                            const std::function<void()>& run) {
  bool refuses = false;
  std::thread([&] {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {4, filter};
    refuses = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (refuses) run();
  }).join();
  return refuses;
}

}  // namespace tryst

#endif  // TRYST_BASE_FAILING_CALL_H_
