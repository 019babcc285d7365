#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/doctor/checks.h"
#include "server/security/loopback.h"

namespace tryst {
namespace {

int PortOf(const std::string& address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  return colon != std::string::npos && absl::SimpleAtoi(address.substr(colon + 1), &port) ? port
                                                                                          : 0;
}

void ListenTaken(const Host& host, Report* report) {
  const std::string all = absl::StrCat(host.config().listen, ",", host.config().nic_listen);
  for (const absl::string_view part : absl::StrSplit(all, ',', absl::SkipEmpty())) {
    const std::string address(part);
    const absl::Status listened = host.calls().try_listen(address);
    if (listened.ok()) continue;
    const std::string self =
        absl::StrCat("/job:", host.config().job, "/replica:0/task:", host.config().task);
    if (host.calls().who_answers != nullptr &&
        host.calls().who_answers(host.config().listen) == self) {
      report->Note(absl::StrCat(self, " runs here already: it has ", address),
                   "nothing is wrong; but a second one would not start",
                   "leave it; or, to start another here, give it another task and port");
      continue;
    }
    report->Fault(absl::StrCat("cannot listen on ", address, ": ", listened.message()),
                  "the server will not start",
                  absl::StrCat("see who has it: ss -ltnp 'sport = :", PortOf(address),
                               "'; or set another address"));
  }
}

void EphemeralPort(const Host& host, Report* report) {
  const auto range = host.Read("/proc/sys/net/ipv4/ip_local_port_range");
  const int port = PortOf(host.config().listen);
  if (!range || port == 0) return;
  const std::vector<std::string> ends =
      absl::StrSplit(*range, absl::ByAnyChar("\t "), absl::SkipEmpty());
  int low = 0;
  int high = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &low) || !absl::SimpleAtoi(ends[1], &high) ||
      port < low || port > high) {
    return;
  }
  report->Note(
      absl::StrCat("port ", port, " is among those that outgoing connections take (", low, "-",
                   high, ")"),
      "when the server restarts, a connection of another program may hold the port, and the server "
      "does not start",
      absl::StrCat("take a port below ", low, ", or add it to net.ipv4.ip_local_reserved_ports"));
}

void TcpBuffers(const Host& host, Report* report) {
  for (const char* name : {"tcp_rmem", "tcp_wmem"}) {
    const auto text = host.Read(absl::StrCat("/proc/sys/net/ipv4/", name));
    if (!text) continue;
    const std::vector<std::string> words =
        absl::StrSplit(*text, absl::ByAnyChar("\t "), absl::SkipEmpty());
    int64_t most = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[2], &most) || most >= 4 << 20) continue;
    report->Warn(absl::StrCat("net.ipv4.", name, " allows ", most, " bytes"),
                 "one connection cannot fill a fast network",
                 absl::StrCat("sysctl net.ipv4.", name, "='4096 131072 16777216'"));
  }
}

void Backlog(const Host& host, Report* report) {
  const auto most = host.ReadNumber("/proc/sys/net/core/somaxconn");
  if (!most || *most >= 128) return;
  report->Warn(
      absl::StrCat("net.core.somaxconn is ", *most),
      "when a large job starts, its connections are dropped and tried again a second later",
      "sysctl net.core.somaxconn=4096");
}

void ProxyVariables(const Host& host, Report* report) {
  for (const char* name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    const std::string proxy = host.Variable(name);
    if (proxy.empty()) continue;
    const std::string except =
        absl::StrCat(host.Variable("no_grpc_proxy"), host.Variable("no_proxy"));
    if (!except.empty()) return;
    report->Warn(absl::StrCat(name, "=", proxy, ", and no_proxy is not set"),
                 "gRPC sends the calls to peers through that proxy",
                 "export no_grpc_proxy='*', or list the peers' names in no_proxy");
    return;
  }
}

void Loopback(const Host& host, Report* report) {
  const auto flags = host.Read("/sys/class/net/lo/flags");
  int32_t bits = 0;
  if (!flags || !absl::SimpleHexAtoi(*flags, &bits) || (bits & 1) != 0) return;
  report->Fault("the loopback interface is down", "nothing on this machine reaches itself",
                "ip link set lo up");
}

void HostName(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  if (IsLoopback(config.listen) || config.listen.empty() || !config.advertise.empty()) return;
  const std::string name = host.calls().host_name();
  const std::vector<std::string> addresses = host.calls().resolve(name);
  if (!std::all_of(addresses.begin(), addresses.end(),
                   [](const std::string& address) { return IsLoopback(address); })) {
    return;
  }
  report->Warn(absl::StrCat("this host's name, ", name, ", leads to ",
                            addresses.empty() ? "nowhere" : absl::StrJoin(addresses, ", ")),
               "a peer that connects to this name reaches its own machine",
               "set --advertise=ADDRESS:PORT, or mend /etc/hosts");
}

void Advertise(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  if (config.listen.empty() || IsLoopback(config.listen) || !IsLoopback(config.advertise)) return;
  report->Warn(absl::StrCat("advertise is ", config.advertise, " and listen ", config.listen),
               "a peer on another machine that connects to it reaches its own machine",
               "advertise an address that they reach");
}

void Conntrack(const Host& host, Report* report) {
  const auto most = host.ReadNumber("/proc/sys/net/netfilter/nf_conntrack_max");
  const auto now = host.ReadNumber("/proc/sys/net/netfilter/nf_conntrack_count");
  if (!most || !now || *most <= 0 || *now * 10 < *most * 9) return;
  report->Warn(absl::StrCat("the firewall tracks ", *now, " of at most ", *most, " connections"),
               "the firewall drops new connections and tells neither end",
               absl::StrCat("sysctl net.netfilter.nf_conntrack_max=", *most * 4));
}

void Duplex(const Host& host, Report* report) {
  for (const std::string& interface : host.List("/sys/class/net")) {
    const std::string folder = absl::StrCat("/sys/class/net/", interface);
    if (host.Read(folder + "/duplex") != "half" || host.Read(folder + "/operstate") != "up")
      continue;
    report->Warn(absl::StrCat(interface, " runs in half duplex"),
                 "its two ends disagree; throughput falls to a few per cent under load",
                 absl::StrCat("ethtool -s ", interface, " autoneg on, at both ends"));
  }
}

}  // namespace

std::vector<Check> NetworkChecks() {
  return {{"listen-taken", ListenTaken},
          {"ephemeral-port", EphemeralPort},
          {"tcp-buffers", TcpBuffers},
          {"backlog", Backlog},
          {"proxy-variables", ProxyVariables},
          {"loopback", Loopback},
          {"host-name", HostName},
          {"advertise", Advertise},
          {"conntrack", Conntrack},
          {"duplex", Duplex}};
}

}  // namespace tryst
