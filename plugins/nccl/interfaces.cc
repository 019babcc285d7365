#include "plugins/nccl/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tryst::nccl {
namespace {

constexpr int kUnknownSpeedMbps = 10000;

bool IsBridge(const std::string& name) {
  return absl::StartsWith(name, "docker") || absl::StartsWith(name, "virbr") ||
         absl::StartsWith(name, "veth") || absl::StartsWith(name, "br-");
}

// Returns "" for an address that cannot be used, such as a link-local one.
std::string HostOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
    return text;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) return "";
  inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]");
}

bool FamilyAllowed(int family, const std::string& wanted) {
  if (family == AF_INET) return wanted != "AF_INET6";
  return family == AF_INET6 && wanted != "AF_INET";
}

std::vector<NetworkInterface> AllInterfaces(const std::string& family) {
  std::vector<NetworkInterface> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || !FamilyAllowed(one->ifa_addr->sa_family, family)) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_RUNNING) == 0) continue;
    const std::string name = one->ifa_name;
    const bool known = std::any_of(
        out.begin(), out.end(), [&](const NetworkInterface& other) { return other.name == name; });
    const std::string host = HostOf(one->ifa_addr);
    if (!known && !host.empty()) out.push_back({name, host, ""});
  }
  return out;
}

}  // namespace

bool InterfaceMatches(const std::string& name, const std::string& rule) {
  absl::string_view rest = rule;
  const bool others = absl::ConsumePrefix(&rest, "^");
  const bool exact = absl::ConsumePrefix(&rest, "=");
  if (rest.empty()) return true;
  bool named = false;
  for (absl::string_view word : absl::StrSplit(rest, ',', absl::SkipEmpty())) {
    word = word.substr(0, word.find(':'));  // NCCL_IB_HCA may name a port after a ':'.
    named = named || (exact ? name == word : absl::StartsWith(name, word));
  }
  return named != others;
}

InterfaceChoice ChooseInterfaces(const std::string& rule, const std::string& family) {
  enum Rank { kReal, kBridge, kLoopback };
  InterfaceChoice choice;
  const auto rank = [](const std::string& name) {
    if (name == "lo") return kLoopback;
    return IsBridge(name) ? kBridge : kReal;
  };
  Rank best = kLoopback;
  const std::vector<NetworkInterface> all = AllInterfaces(family);
  for (const NetworkInterface& one : all) best = std::min(best, rank(one.name));
  for (NetworkInterface one : all) {
    if (!rule.empty()) {
      const bool matches = InterfaceMatches(one.name, rule);
      one.reason =
          absl::StrCat("NCCL_SOCKET_IFNAME=", rule, matches ? " names it" : " leaves it out");
      (matches ? choice.chosen : choice.passed_over).push_back(one);
    } else if (rank(one.name) == best) {
      one.reason = best == kReal     ? "leads to other machines"
                   : best == kBridge ? "no interface leads further than this bridge"
                                     : "there is no other interface";
      choice.chosen.push_back(one);
    } else {
      one.reason = "others lead further; NCCL_SOCKET_IFNAME can name it";
      choice.passed_over.push_back(one);
    }
  }
  return choice;
}

int InterfaceSpeedMbps(const std::string& name) {
  int speed = 0;
  std::ifstream(absl::StrCat("/sys/class/net/", name, "/speed")) >> speed;
  return speed > 0 ? speed : kUnknownSpeedMbps;
}

std::string PciPath(const std::string& sysfs_device) {
  char path[PATH_MAX];
  if (realpath(sysfs_device.c_str(), path) == nullptr) return "";
  return path;
}

}  // namespace tryst::nccl
