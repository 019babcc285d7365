#include "tests/process/history/history_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "tests/process/history/kept_traces.h"

namespace tryst {
namespace {

int64_t Shown(int64_t ns) { return ns == kNeverNs ? -1 : ns; }
int64_t Meant(int64_t shown) { return shown == -1 ? kNeverNs : shown; }

std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  DIR* const directory = opendir(folder.c_str());
  if (directory == nullptr) return files;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") files.push_back(absl::StrCat(folder, "/", name));
  }
  closedir(directory);
  std::sort(files.begin(), files.end());
  return files;
}

bool HasTraces(const std::string& file) { return absl::EndsWith(file, kTracesEnd); }

std::string TextOf(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Parses all words but the first two as numbers.
bool Numbers(const std::vector<std::string>& words, std::vector<int64_t>* numbers) {
  for (size_t i = 2; i < words.size(); ++i) {
    numbers->emplace_back();
    if (!absl::SimpleAtoi(words[i], &numbers->back())) return false;
  }
  return true;
}

class Reader {
 public:
  explicit Reader(History* history) : history_(*history) {
    for (size_t i = 0; i < history_.keys.size(); ++i) {
      numbers_[history_.keys[i]] = static_cast<uint32_t>(i);
    }
  }
  bool Line(const std::vector<std::string>& words) {
    std::vector<int64_t> n;
    if (words.size() < 3 || words[0].size() != 1 || !Numbers(words, &n)) return false;
    const uint32_t key = KeyOf(words[1]);
    const auto stamp = [&n](size_t i) { return static_cast<uint64_t>(n[i]); };
    switch (words[0][0]) {
      case 's':
        if (n.size() != 3) return false;
        history_.sent.push_back({key, n[0], stamp(1), stamp(2)});
        return true;
      case 'o':
      case 'l': {
        MadeReceive receive;
        receive.key = key;
        receive.before = receive.after = stamp(0);
        receive.landed_late = words[0][0] == 'l';
        history_.made.push_back(receive);
        return n.size() == 1;
      }
      case 'r': {
        if (n.size() != 10) return false;
        MadeReceive receive;
        receive.key = key;
        receive.number = n[0];
        receive.whole = n[1] != 0;
        receive.before = stamp(2);
        receive.after = stamp(3);
        receive.may_fail_with = static_cast<absl::StatusCode>(n[4]);
        receive.fails_from_ns = Meant(n[5]);
        receive.ends_by_ns = Meant(n[6]);
        receive.calls = static_cast<int>(n[7]);
        receive.code = static_cast<absl::StatusCode>(n[8]);
        receive.ended_ns = n[9];
        history_.made.push_back(receive);
        return true;
      }
      default:
        return false;
    }
  }

 private:
  uint32_t KeyOf(const std::string& text) {
    const auto added = numbers_.emplace(text, static_cast<uint32_t>(history_.keys.size()));
    if (added.second) history_.keys.push_back(text);
    return added.first->second;
  }

  History& history_;
  std::map<std::string, uint32_t> numbers_;
};

}  // namespace

HistoryFile::HistoryFile(const std::string& path) {
  if (path.empty()) return;
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  TRYST_CHECK(fd_ >= 0) << path;
}

HistoryFile::~HistoryFile() {
  if (fd_ >= 0) close(fd_);
}

// One write() for each line, so lines of threads do not mix, and a kill takes none back.
void HistoryFile::Write(const std::string& line) {
  if (fd_ < 0) return;
  const ssize_t written = write(fd_, line.data(), line.size());
  TRYST_CHECK(written == static_cast<ssize_t>(line.size())) << "a history cannot be written";
}

void HistoryFile::Sent(const std::string& key, const SentTensor& sent) {
  if (fd_ < 0) return;
  Write(absl::StrCat("s ", key, " ", sent.number, " ", sent.before, " ", sent.after, "\n"));
}

void HistoryFile::Received(const std::string& key, const MadeReceive& receive) {
  if (fd_ < 0) return;
  const std::string head =
      absl::StrCat("r ", key, " ", receive.number, " ", receive.whole ? 1 : 0, " ", receive.before);
  const std::string ends = absl::StrCat(
      static_cast<int>(receive.may_fail_with), " ", Shown(receive.fails_from_ns), " ",
      Shown(receive.ends_by_ns), " ", receive.calls, " ", static_cast<int>(receive.code));
  Write(absl::StrCat(head, " ", receive.after, " ", ends, " ", receive.ended_ns, "\n"));
}

void HistoryFile::Open(const std::string& key, uint64_t before) {
  Write(absl::StrCat("o ", key, " ", before, "\n"));
}

void HistoryFile::LandedLate(const std::string& key, uint64_t before) {
  Write(absl::StrCat("l ", key, " ", before, "\n"));
}

absl::Status AddHistory(const std::string& text, size_t part, size_t parts, History* history) {
  Reader reader(history);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const bool has_key = words.size() > 1;
    if (has_key && std::hash<std::string>()(words[1]) % parts != part) continue;
    if (!reader.Line(words)) {
      return absl::DataLossError(absl::StrCat("no line of a history: ", line));
    }
  }
  return absl::OkStatus();
}

Judgement JudgeLives(History history) {
  std::map<uint32_t, std::set<int64_t>> received;
  std::set<uint32_t> failed;
  for (const MadeReceive& receive : history.made) {
    if (receive.calls > 0 && receive.code != absl::StatusCode::kOk) failed.insert(receive.key);
    if (receive.code == absl::StatusCode::kOk) received[receive.key].insert(receive.number);
  }
  // The numbers of a key rise from Send to Send, so tensors above the last one received may be
  // lost.
  const auto may_be_lost = [&](const SentTensor& sent) {
    const std::set<int64_t>& got = received[sent.key];
    if (got.count(sent.number) != 0) return false;
    return got.empty() || sent.number > *got.rbegin() || failed.count(sent.key) != 0;
  };
  history.sent.erase(std::remove_if(history.sent.begin(), history.sent.end(), may_be_lost),
                     history.sent.end());
  return JudgeHistory(history.sent, history.made);
}

namespace {

absl::Status JudgeTracesOf(const std::vector<std::string>& files, FolderJudgement* all) {
  std::vector<TraceDump> dumps;
  for (const std::string& file : files) {
    if (!HasTraces(file)) continue;
    absl::StatusOr<TraceDump> dump = ReadKeptTraces(TextOf(file));
    if (!dump.ok()) return absl::DataLossError(absl::StrCat(file, ": ", dump.status().message()));
    dumps.push_back(*std::move(dump));
  }
  const TracesJudgement judged = JudgeTraces(dumps);
  all->traced = judged.operations;
  all->traced_pairs = judged.pairs;
  absl::StrAppend(&all->breaches, judged.breaches);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FolderJudgement> JudgeFolder(const std::string& folder, size_t parts) {
  FolderJudgement all;
  const std::vector<std::string> files = FilesOf(folder);
  const absl::Status traces = JudgeTracesOf(files, &all);
  if (!traces.ok()) return traces;
  for (size_t part = 0; part < parts; ++part) {
    History history;
    for (const std::string& file : files) {
      if (HasTraces(file)) continue;
      const absl::Status added = AddHistory(TextOf(file), part, parts, &history);
      if (!added.ok()) return absl::DataLossError(absl::StrCat(file, ": ", added.message()));
    }
    all.sent += history.sent.size();
    all.made += history.made.size();
    const std::vector<std::string> keys = history.keys;
    const Judgement judged = JudgeLives(std::move(history));
    if (judged.counts.empty()) continue;
    absl::StrAppend(&all.breaches, judged.ToText(), "\n");
    for (size_t i = 0; i < keys.size() && i < 100; ++i) {
      const bool named = absl::StrContains(judged.ToText(), absl::StrCat("key ", i));
      if (named) absl::StrAppend(&all.breaches, "  key ", i, ": ", keys[i], "\n");
    }
  }
  return all;
}

std::string NewHistoryFolder() {
  std::string parent = "/tmp";
  for (const char* name : {"TMPDIR", "TEST_UNDECLARED_OUTPUTS_DIR"}) {
    const char* const value = getenv(name);
    if (value != nullptr) parent = value;
  }
  std::string folder = absl::StrCat(parent, "/tryst_history_XXXXXX");
  TRYST_CHECK(mkdtemp(&folder[0]) != nullptr) << folder;
  return folder;
}

void RemoveHistoryFolder(const std::string& folder) {
  for (const std::string& file : FilesOf(folder)) unlink(file.c_str());
  rmdir(folder.c_str());
}

}  // namespace tryst
