#include "server/process/stop_signals.h"

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace tryst {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

sigset_t DaemonSignals() {
  sigset_t set = StopSignals();
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

void BlockDaemonSignals() {
  const sigset_t set = DaemonSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
}

DaemonSignal WaitForDaemonSignal() {
  const sigset_t set = DaemonSignals();
  int signal = 0;
  sigwait(&set, &signal);
  return signal == SIGHUP ? DaemonSignal::kReload : DaemonSignal::kStop;
}

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void WaitForStopSignal() {
  const sigset_t set = StopSignals();
  int signal = 0;
  sigwait(&set, &signal);
}

bool StopSignalWithin(absl::Duration within) {
  const sigset_t set = StopSignals();
  const timespec limit = absl::ToTimespec(within);
  return sigtimedwait(&set, nullptr, &limit) > 0;
}

}  // namespace tryst
