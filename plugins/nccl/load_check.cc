#include "plugins/nccl/load_check.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "plugins/nccl/abi.h"

namespace tryst::nccl {
namespace {

constexpr int kNewest = 12;
constexpr int kOldest = 6;

std::vector<std::string>* heard = nullptr;  // Set while CheckStart() runs.

void Hear(int, unsigned long, const char*, int, const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (heard != nullptr) heard->emplace_back(line);
}

Result IgnoreEvent(void**, int, void*, int64_t, void*) { return kSuccess; }

std::string Value(const std::map<std::string, std::string>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

int NcclVersion(const std::string& library, std::string* why) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    *why = dlerror();
    return 0;
  }
  using GetVersion = Result (*)(int* version);
  const auto get = reinterpret_cast<GetVersion>(dlsym(handle, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != kSuccess) *why = library + " has no ncclGetVersion";
  return version;
}

std::string AdviceFor(const std::string& error) {
  if (absl::StrContains(error, "GLIBC_")) {
    return "this machine's C library is older than the one that the plugin was built with: build "
           "it here (./run plugin nccl)";
  }
  if (absl::StrContains(error, "libnccl-net") && absl::StrContains(error, "No such file")) {
    return "give NCCL the whole path, NCCL_NET_PLUGIN=/path/libnccl-net-tryst.so, or its folder, "
           "LD_LIBRARY_PATH=/path";
  }
  if (absl::StrContains(error, "No such file")) {
    return "a library that the plugin needs is not installed; the file that ./run plugin nccl "
           "makes needs the C library alone";
  }
  return "build it for this machine (./run plugin nccl)";
}

template <typename Table>
Result StartWith(const void* table, int* devices) {
  const auto* const t = static_cast<const Table*>(table);
  void* context = nullptr;
  CommConfig config = {kUndefined};
  Result result = t->init(&context, 0, &config, &Hear, &IgnoreEvent);
  if (result == kSuccess) result = t->devices(devices);
  if (result == kSuccess) t->finalize(context);
  return result;
}

Result Start(const void* table, int version, int* devices) {
  if (version == 12) return StartWith<TableV12>(table, devices);
  if (version == 11) return StartWith<TableV11>(table, devices);
  if (version == 10) {
    const auto* const t = static_cast<const TableV10*>(table);
    const Result result = t->init(&Hear, &IgnoreEvent);
    return result == kSuccess ? t->devices(devices) : result;
  }
  // All versions of the table begin in the same way.
  const auto* const t = static_cast<const TableV6*>(table);
  const Result result = t->init(&Hear);
  return result == kSuccess ? t->devices(devices) : result;
}

void CheckStart(void* library, const std::string& file, int newest,
                std::vector<LoadFinding>* findings) {
  std::vector<int> versions;
  for (int version = kNewest; version >= kOldest; --version) {
    if (dlsym(library, absl::StrCat("ncclNetPlugin_v", version).c_str()) != nullptr) {
      versions.push_back(version);
    }
  }
  int chosen = 0;
  for (const int version : versions) {
    if (chosen == 0 && version <= newest) chosen = version;
  }
  if (chosen == 0) {
    findings->push_back({false,
                         absl::StrCat(file, " has no table that this NCCL asks for (v", newest,
                                      " to v6); it has: ", absl::StrJoin(versions, ", ")),
                         "take a plugin and an NCCL of about the same age"});
    return;
  }
  findings->push_back({true,
                       absl::StrCat(file, " has the tables ", absl::StrJoin(versions, ", "),
                                    "; NCCL takes v", chosen),
                       ""});
  std::vector<std::string> lines;
  heard = &lines;
  int devices = 0;
  const void* const table = dlsym(library, absl::StrCat("ncclNetPlugin_v", chosen).c_str());
  const Result result = Start(table, chosen, &devices);
  heard = nullptr;
  for (const std::string& line : lines) findings->push_back({true, line, ""});
  if (result != kSuccess || devices <= 0) {
    findings->push_back({false,
                         absl::StrCat("it starts with no device (result ", static_cast<int>(result),
                                      "): NCCL goes on without it"),
                         "the lines above say what was passed over, and why"});
  } else {
    findings->push_back({true, absl::StrCat("it starts, with ", devices, " devices"), ""});
  }
}

}  // namespace

int NewestTableOf(int nccl_version) {
  struct Since {
    int nccl;
    int table;
  };
  // Which table each release of NCCL added, by its public headers.
  constexpr Since kSince[] = {{23000, 12}, {22800, 11}, {22600, 10}, {22300, 9},
                              {22000, 8},  {21800, 7},  {0, 6}};
  for (const Since& since : kSince) {
    if (nccl_version >= since.nccl) return since.table;
  }
  return kOldest;
}

std::vector<std::string> FilesTriedFor(const std::string& names) {
  if (names.empty()) return {"libnccl-net.so"};
  std::vector<std::string> out;
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    out.emplace_back(name);
    const bool is_file = absl::StrContains(name, "/") ||
                         (absl::StartsWith(name, "lib") && absl::EndsWith(name, ".so"));
    if (!is_file) out.push_back(absl::StrCat("libnccl-net-", name, ".so"));
  }
  return out;
}

std::vector<LoadFinding> CheckLoading(const std::map<std::string, std::string>& environment,
                                      const std::string& library) {
  std::vector<LoadFinding> findings;
  std::string why;
  const int version = NcclVersion(library, &why);
  const int newest = version > 0 ? NewestTableOf(version) : kNewest;
  findings.push_back(
      {true,
       version > 0 ? absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".",
                                  version % 100, " asks for table v", newest, " and older ones")
                   : absl::StrCat("NCCL itself is not found, so its version is not known: ", why),
       ""});
  const std::string names = Value(environment, "NCCL_NET_PLUGIN");
  if (names == "none") {
    findings.push_back({false, "NCCL_NET_PLUGIN=none: NCCL loads no plugin at all",
                        "NCCL_NET_PLUGIN=/path/libnccl-net-tryst.so"});
    return findings;
  }
  const std::string net = Value(environment, "NCCL_NET");
  if (!net.empty() && net != "Tryst") {
    findings.push_back({false,
                        absl::StrCat("NCCL_NET=", net, ": NCCL uses no network of another name"),
                        "unset NCCL_NET, or NCCL_NET=Tryst"});
  }
  const std::vector<std::string> files = FilesTriedFor(names);
  std::string errors;
  for (const std::string& file : files) {
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      CheckStart(handle, file, newest, &findings);
      return findings;
    }
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", dlerror());
  }
  findings.push_back({false,
                      absl::StrCat(names.empty() ? "NCCL_NET_PLUGIN is not set"
                                                 : absl::StrCat("NCCL_NET_PLUGIN=", names),
                                   ", and nothing loads: ", errors),
                      AdviceFor(errors)});
  return findings;
}

}  // namespace tryst::nccl
