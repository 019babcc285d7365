#include "tests/frameworks/nccl_net/world.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

namespace tryst::nccl_net {

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

SharedPage* NewSharedPage() {
  void* const memory =
      mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) SharedPage();
}

std::vector<pid_t> StartRanks(int count, SharedPage* page,
                              const std::function<absl::Status(int rank)>& run) {
  std::vector<pid_t> out;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const absl::Status ended = run(rank);
      if (!ended.ok()) {
        snprintf(page->errors[rank], sizeof(page->errors[rank]), "%s",
                 std::string(ended.message()).c_str());
      }
      _exit(ended.ok() ? 0 : 1);
    }
    out.push_back(pid);
  }
  return out;
}

absl::Status Reap(pid_t pid, const SharedPage& page, int rank) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return absl::InternalError("a rank is lost");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  if (WIFSIGNALED(status)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " died of signal ", WTERMSIG(status)));
  }
  return absl::InternalError(absl::StrCat("rank ", rank, ": ", page.errors[rank]));
}

absl::Status AwaitPhase(const SharedPage& page, int rank, int phase) {
  return Until(absl::StrCat("rank ", rank, "'s phase ", phase), [&]() -> absl::StatusOr<bool> {
    usleep(200);
    return page.phase[rank].load() >= phase;
  });
}

absl::Status ConnectRank(const Opened& opened, SharedPage* page, int rank, int peer,
                         PeerComms* out) {
  SharedPage::Listener& mine = page->listeners[rank][peer];
  SharedPage::Listener& theirs = page->listeners[peer][rank];
  NCCL_NET_TRY(
      Call(opened.net->listen(opened.context, opened.device, mine.handle, &out->listen), "listen"));
  mine.ready.store(1);
  char handle[nccl::kHandleBytes];
  bool have = false;
  return Until("connecting ranks", [&]() -> absl::StatusOr<bool> {
    if (!have && theirs.ready.load() == 1) {
      memcpy(handle, theirs.handle, sizeof(handle));
      have = true;
    }
    if (have && out->send == nullptr) {
      NCCL_NET_TRY(
          Call(opened.net->connect(opened.context, opened.device, handle, &out->send), "connect"));
    }
    if (out->recv == nullptr) {
      NCCL_NET_TRY(Call(opened.net->accept(out->listen, &out->recv), "accept"));
    }
    return out->send != nullptr && out->recv != nullptr;
  });
}

}  // namespace tryst::nccl_net
