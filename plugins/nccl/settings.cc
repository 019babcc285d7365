#include "plugins/nccl/settings.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "plugins/nccl/wire.h"
#include "verbs/ofi/ofi_provider.h"

namespace tryst::nccl {
namespace {

class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& environment)
      : environment_(environment) {}

  void Text(const std::string& name, std::string* out) const {
    const auto found = environment_.find(name);
    if (found != environment_.end()) *out = found->second;
  }
  template <typename T>
  void Number(const std::string& name, int64_t least, int64_t most, T* out) {
    const auto found = environment_.find(name);
    if (found == environment_.end()) return;
    int64_t value = 0;
    if (!absl::SimpleAtoi(found->second, &value) || value < least || value > most) {
      if (status_.ok()) {
        status_ = absl::InvalidArgumentError(
            absl::StrCat(name, "=", found->second, " is not a number from ", least, " to ", most));
      }
      return;
    }
    *out = static_cast<T>(value);
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::map<std::string, std::string>& environment_;
  absl::Status status_;
};

constexpr size_t kLeastTokenBytes = 16;

// Reads the token that all ranks share. Only the software NIC can encrypt, so it is the one taken.
absl::Status ReadToken(const std::string& file, Settings* settings) {
  if (file.empty()) return absl::OkStatus();
  std::ifstream in(file);
  std::getline(in, settings->token);
  absl::StripTrailingAsciiWhitespace(&settings->token);
  if (settings->token.size() < kLeastTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("TRYST_NCCL_TOKEN_FILE=", file,
                                                   " cannot be read, or its first line has fewer "
                                                   "than ",
                                                   kLeastTokenBytes, " bytes"));
  }
  if (settings->nic == "auto") settings->nic = "soft";
  if (settings->nic == "soft") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("TRYST_NCCL_TOKEN_FILE is set, and TRYST_NCCL_NIC=", settings->nic,
                   " cannot encrypt: set TRYST_NCCL_NIC=soft, or unset one of the two"));
}

}  // namespace

absl::StatusOr<Settings> ParseSettings(const std::map<std::string, std::string>& environment,
                                       int processors) {
  Settings settings;
  settings.threads = std::min(processors / 4, 8);
  // Where processors are few, a spinning thread keeps working ones from running.
  settings.spin_us = processors >= 8 ? 50 : 0;
  Variables in(environment);
  in.Text("TRYST_NCCL_NIC", &settings.nic);
  in.Number("TRYST_NCCL_THREADS", 0, kMaxLanes - 1, &settings.threads);
  in.Number("TRYST_NCCL_LANES", 0, kMaxLanes, &settings.lanes);
  in.Number("TRYST_NCCL_PIECE_BYTES", 4096, int64_t{1} << 30, &settings.piece_bytes);
  in.Number("TRYST_NCCL_MAX_PIECE_BYTES", 4096, int64_t{1} << 30, &settings.max_piece_bytes);
  in.Number("TRYST_NCCL_EAGER_BYTES", 0, 65536, &settings.eager_bytes);
  in.Number("TRYST_NCCL_SPIN_US", 0, 1'000'000, &settings.spin_us);
  in.Number("TRYST_NCCL_PEER_TIMEOUT_MS", 200, 600'000, &settings.peer_timeout_ms);
  in.Text("NCCL_SOCKET_IFNAME", &settings.interfaces);
  in.Text("NCCL_SOCKET_FAMILY", &settings.family);
  in.Text("NCCL_IB_HCA", &settings.hca);
  in.Number("NCCL_IB_GID_INDEX", -1, 255, &settings.gid_index);
  in.Number("NCCL_IB_TC", -1, 255, &settings.traffic_class);
  if (!in.status().ok()) return in.status();
  if (settings.nic == "ofi") settings.nic = "ofi:tcp";
  if (IsOfiName(settings.nic)) {
    const absl::StatusOr<OfiProvider> provider = FindOfiProvider(settings.nic);
    if (!provider.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("TRYST_NCCL_NIC: ", provider.status().message()));
    }
  } else if (settings.nic != "auto" && settings.nic != "ibv" && settings.nic != "soft") {
    return absl::InvalidArgumentError(absl::StrCat("TRYST_NCCL_NIC=", settings.nic,
                                                   " should be auto, ibv, soft or ofi:PROVIDER"));
  }
  std::string token_file;
  in.Text("TRYST_NCCL_TOKEN_FILE", &token_file);
  const absl::Status read = ReadToken(token_file, &settings);
  if (!read.ok()) return read;
  settings.max_piece_bytes = std::max(settings.max_piece_bytes, settings.piece_bytes);
  return settings;
}

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    out.emplace(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
  }
  return out;
}

}  // namespace tryst::nccl
