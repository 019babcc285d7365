#include "tests/attack/honest_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/process/e2e/free_port.h"

namespace tryst {
namespace {

constexpr char kWorkerName[] = "/job:worker/replica:0/task:0";

std::set<std::string> SocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  DIR* const open = opendir(folder.c_str());
  if (open == nullptr) return inodes;
  while (const dirent* entry = readdir(open)) {
    char target[64] = {};
    const std::string path = absl::StrCat(folder, "/", entry->d_name);
    if (readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (absl::StartsWith(target, "socket:[")) {
      inodes.insert(std::string(target + 8, strlen(target) - 9));
    }
  }
  closedir(open);
  return inodes;
}

// Splits each line of a kernel table into words.
std::vector<std::vector<std::string>> Table(const char* path) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    rows.push_back(absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty()));
  }
  return rows;
}

}  // namespace

HonestJob::HonestJob(const std::string& load_worker, const std::string& folder,
                     const std::vector<std::string>& flags)
    : program_(load_worker), folder_(folder), port_(FreePort()) {
  ps_ = StartWorker("ps", flags);
  worker_ = StartWorker("worker", flags);
}

HonestJob::~HonestJob() {
  for (pid_t pid : {worker_, ps_}) {
    if (pid > 0) kill(pid, SIGTERM);
  }
  for (pid_t pid : {worker_, ps_}) {
    if (pid <= 0) continue;
    for (int i = 0; i < 200 && waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

pid_t HonestJob::StartWorker(const std::string& name, const std::vector<std::string>& flags) {
  const bool is_ps = name == "ps";
  std::vector<std::string> args = {program_, "--job=" + name, "--cluster=lab", "--open_cluster"};
  args.push_back(is_ps ? absl::StrCat("--listen=127.0.0.1:", port_) : "--listen=127.0.0.1:0");
  if (!is_ps) args.push_back(absl::StrCat("--join=", ps_name(), "@127.0.0.1:", port_));
  args.push_back(absl::StrCat("--peers=", is_ps ? kWorkerName : ps_name()));
  args.push_back("--largest=30000");
  args.push_back("--longest=120s");
  args.push_back("--status_listen=127.0.0.1:0");
  args.insert(args.end(), flags.begin(), flags.end());
  // An earlier job's output must not be counted.
  for (const char* suffix : {".out", ".err"}) {
    unlink(absl::StrCat(folder_, "/", name, suffix).c_str());
  }
  const pid_t pid = fork();
  if (pid != 0) return pid;
  for (const auto& [suffix, fd] : std::map<std::string, int>{{".out", 1}, {".err", 2}}) {
    const std::string path = absl::StrCat(folder_, "/", name, suffix);
    dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), fd);
  }
  std::vector<char*> words;
  for (std::string& arg : args) words.push_back(arg.data());
  words.push_back(nullptr);
  execv(words[0], words.data());
  _exit(127);
}

bool HonestJob::Begins() {
  for (int i = 0; i < 1200 && received() < 20; ++i) {
    if (!Trouble().empty()) return false;
    absl::SleepFor(absl::Milliseconds(100));
  }
  return received() >= 20;
}

uint64_t HonestJob::received() const {
  uint64_t sum = 0;
  for (const char* name : {"ps", "worker"}) {
    std::ifstream in(absl::StrCat(folder_, "/", name, ".out"));
    // The keys are peer and incarnation. Each line holds the count so far.
    std::map<std::string, uint64_t> last;
    std::string line;
    // Skips a last line that is half written.
    while (std::getline(in, line) && !in.eof()) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      uint64_t count = 0;
      if (words.size() == 4 && words[0] == "got" && absl::SimpleAtoi(words[3], &count)) {
        last[words[1] + words[2]] = count;
      }
    }
    for (const auto& [peer, count] : last) sum += count;
  }
  return sum;
}

std::string HonestJob::Trouble() const {
  for (const auto& [name, pid] : std::map<std::string, pid_t>{{"ps", ps_}, {"worker", worker_}}) {
    if (waitpid(pid, nullptr, WNOHANG) != 0) return name + " has ended";
    std::ifstream in(absl::StrCat(folder_, "/", name, ".out"));
    std::string line;
    while (std::getline(in, line)) {
      if (absl::StartsWith(line, "wrong:") || absl::StartsWith(line, "ended ")) {
        return absl::StrCat(name, " says: ", line);
      }
    }
  }
  return "";
}

uint64_t HonestJob::log_bytes() const {
  uint64_t sum = 0;
  for (const char* name : {"ps", "worker"}) {
    struct stat file = {};
    if (stat(absl::StrCat(folder_, "/", name, ".err").c_str(), &file) == 0) {
      sum += static_cast<uint64_t>(file.st_size);
    }
  }
  return sum;
}

std::vector<int> HonestJob::OtherPorts() const {
  const std::set<std::string> own = SocketsOf(ps_);
  std::vector<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const auto& row : Table(table)) {
      if (row.size() < 10 || row[3] != "0A" || own.count(row[9]) == 0) continue;
      const int port =
          static_cast<int>(std::stoul(row[1].substr(row[1].rfind(':') + 1), nullptr, 16));
      if (port != port_) ports.push_back(port);
    }
  }
  return ports;
}

std::vector<std::string> HonestJob::AbstractSockets() const {
  const std::set<std::string> own = SocketsOf(ps_);
  std::vector<std::string> names;
  for (const auto& row : Table("/proc/net/unix")) {
    if (row.size() == 8 && own.count(row[6]) > 0 && absl::StartsWith(row[7], "@tryst-") &&
        row[3] == "00010000") {
      names.push_back(row[7].substr(1));
    }
  }
  return names;
}

}  // namespace tryst
