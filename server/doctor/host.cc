#include "server/doctor/host.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tryst {
namespace {

constexpr size_t kMostBytes = 64 << 10;

// The parent folder: "/a/b" -> "/a"; "" for the topmost.
std::string Above(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

absl::optional<std::string> Host::Read(const std::string& path) const {
  std::ifstream in(root_ + path, std::ios::binary);
  if (!in) return absl::nullopt;
  std::string text(kMostBytes, '\0');
  in.read(&text[0], static_cast<std::streamsize>(text.size()));
  if (in.bad()) return absl::nullopt;  // Reading an empty table entry of sysfs fails with EINVAL.
  text.resize(static_cast<size_t>(in.gcount()));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::optional<int64_t> Host::ReadNumber(const std::string& path) const {
  const absl::optional<std::string> text = Read(path);
  if (!text) return absl::nullopt;
  const std::vector<absl::string_view> words =
      absl::StrSplit(*text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  int64_t number = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &number)) return absl::nullopt;
  return number;
}

std::vector<std::string> Host::List(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(root_ + folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Host::Exists(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(root_ + path, error);
}

std::string Host::LinkOf(const std::string& path) const {
  std::error_code error;
  return std::filesystem::read_symlink(root_ + path, error).string();
}

absl::optional<std::string> Host::ReadField(const std::string& path,
                                            const std::string& name) const {
  const absl::optional<std::string> text = Read(path);
  if (!text) return absl::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    if (line.empty() || (line[0] != ':' && line[0] != ' ' && line[0] != '\t')) continue;
    absl::ConsumePrefix(&line, ":");
    return std::string(absl::StripAsciiWhitespace(line));
  }
  return absl::nullopt;
}

std::string Host::Variable(const std::string& name) const {
  const auto found = environment_.find(name);
  return found == environment_.end() ? "" : found->second;
}

std::string CgroupFolder(const Host& host, const std::string& controller) {
  const absl::optional<std::string> own = host.Read("/proc/self/cgroup");
  if (!own) return "";
  std::string folder;
  for (absl::string_view line : absl::StrSplit(*own, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const std::string path = parts[2] == "/" ? "" : parts[2];
    if (parts[0] == "0") {
      folder = absl::StrCat("/sys/fs/cgroup", path);
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      return absl::StrCat("/sys/fs/cgroup/", controller, path);
    }
  }
  // In a container /proc shows the host's path, but what is mounted is our own folder.
  if (!folder.empty() && !host.Exists(folder)) folder = "/sys/fs/cgroup";
  return folder;
}

absl::optional<int64_t> CgroupLeast(const Host& host, const std::string& controller,
                                    const std::string& file) {
  absl::optional<int64_t> least;
  for (std::string folder = CgroupFolder(host, controller);
       absl::StartsWith(folder, "/sys/fs/cgroup"); folder = Above(folder)) {
    const absl::optional<int64_t> here = host.ReadNumber(folder + "/" + file);
    if (here && (!least || *here < *least)) least = here;
  }
  return least;
}

std::vector<std::string> GpuBusIds(const Host& host) {
  constexpr char kPci[] = "/sys/bus/pci/devices";
  std::vector<std::string> gpus;
  for (const std::string& bus_id : host.List(kPci)) {
    const std::string folder = absl::StrCat(kPci, "/", bus_id);
    if (host.Read(folder + "/vendor") == "0x10de" &&
        absl::StartsWith(host.Read(folder + "/class").value_or(""), "0x03")) {
      gpus.push_back(bus_id);
    }
  }
  return gpus;
}

std::string BytesText(uint64_t bytes) {
  for (const auto& [shift, unit] :
       {std::pair<int, const char*>{40, " TiB"}, {30, " GiB"}, {20, " MiB"}, {10, " KiB"}}) {
    if (bytes >> shift != 0) return absl::StrCat(bytes >> shift, unit);
  }
  return absl::StrCat(bytes, " bytes");
}

}  // namespace tryst
