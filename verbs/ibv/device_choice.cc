#include "verbs/ibv/device_choice.h"

#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

constexpr char kIwarp[] =
    "it is iWARP, which Tryst does not use: the soft NIC (nic=soft) runs over its network device, "
    "and a NIC that knows RoCE as well can be switched to it (docs/OPERATIONS.md)";

IbvCandidate DeadCandidate(const std::string& device, absl::Status why) {
  IbvCandidate candidate;
  candidate.device = device;
  candidate.port.number = 0;
  candidate.usable = std::move(why);
  return candidate;
}

absl::Status OpenFailure(const absl::Status& status) {
  std::string advice;
  if (status.code() == absl::StatusCode::kPermissionDenied ||
      absl::IsUnavailable(status)) {  // ENOENT: a container has sysfs but no /dev.
    advice = "; is /dev/infiniband/uverbs* there and readable and writable for this user?";
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), advice));
}

class Chooser {
 public:
  Chooser(const IbvCalls& calls, const IbvChoiceOptions& options)
      : calls_(calls), options_(options), pci_(options.sysfs_root) {
    if (!options.near_bus_id.empty()) gpu_path_ = pci_.PathOfBusId(options.near_bus_id);
  }

  void AddDevice(ibv_device* device) {
    const std::string name = device->name;
    if (options_.settings.device && *options_.settings.device != name) {
      Add(DeadCandidate(
          name, absl::UnavailableError(absl::StrCat(
                    "the setting RDMA_DEVICE names another device: ", *options_.settings.device))));
      return;
    }
    device_seen_ = true;
    if (device->transport_type == IBV_TRANSPORT_IWARP) {
      // By name it is the user's choice, which a server must not pass over in silence.
      Add(DeadCandidate(name,
                        absl::Status(options_.settings.device ? absl::StatusCode::kInvalidArgument
                                                              : absl::StatusCode::kUnavailable,
                                     kIwarp)));
      return;
    }
    absl::StatusOr<ibv_context*> context =
        FromPointer(calls_.open_device(device), "ibv_open_device");
    if (!context.ok()) {
      Add(DeadCandidate(name, OpenFailure(context.status())));
      return;
    }
    AddPorts(name, *context);
    const absl::Status closed = FromReturned(calls_.close_device(*context), "ibv_close_device");
    if (!closed.ok()) choice_.candidates.back().usable = closed;
  }

  IbvChoice Finish() {
    for (size_t i = 0; i < choice_.candidates.size(); ++i) {
      const IbvCandidate& candidate = choice_.candidates[i];
      if (!candidate.usable.ok()) continue;
      if (!choice_.chosen || Better(candidate, choice_.candidates[*choice_.chosen])) {
        choice_.chosen = i;
      }
    }
    if (!choice_.chosen) choice_.status = WhyNone();
    return std::move(choice_);
  }

 private:
  void Add(IbvCandidate candidate) { choice_.candidates.push_back(std::move(candidate)); }

  void AddPorts(const std::string& name, ibv_context* context) {
    ibv_device_attr attributes = {};
    const absl::Status status =
        FromReturned(calls_.query_device(context, &attributes), "ibv_query_device");
    if (!status.ok()) {
      Add(DeadCandidate(name, status));
      return;
    }
    const std::string path = pci_.PathOfRdmaDevice(name);
    for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
      IbvCandidate candidate;
      candidate.device = name;
      candidate.numa_node = pci_.NumaNode(path);
      candidate.gpu_distance = pci_.Distance(path, gpu_path_);
      candidate.port = ProbePort(calls_, context, number, options_.settings, options_.sysfs_root);
      candidate.usable = candidate.port.usable;
      if (options_.settings.port && *options_.settings.port != number) {
        candidate.usable = absl::UnavailableError(absl::StrCat(
            "the setting RDMA_DEVICE_PORT names another port: ", *options_.settings.port));
      } else {
        port_seen_ = true;
      }
      Add(std::move(candidate));
    }
  }

  bool Better(const IbvCandidate& a, const IbvCandidate& b) const {
    const auto score = [this](const IbvCandidate& candidate) {
      const bool near = options_.near_numa_node && candidate.numa_node == options_.near_numa_node;
      return std::make_tuple(-static_cast<int>(candidate.gpu_distance), near,
                             candidate.port.bits_per_second);
    };
    return score(a) > score(b);
  }

  absl::Status WhyNone() const {
    if (choice_.candidates.empty()) {
      return absl::UnavailableError(
          "no RDMA device is found: the machine has none, its driver is not loaded, or "
          "/sys/class/infiniband and /dev/infiniband are not in the container");
    }
    if (options_.settings.device && !device_seen_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no RDMA device named ", *options_.settings.device, "\n", choice_.Explain()));
    }
    bool misconfigured = options_.settings.port && !port_seen_;
    for (const IbvCandidate& candidate : choice_.candidates) {
      misconfigured |= absl::IsInvalidArgument(candidate.usable);
    }
    return absl::Status(
        misconfigured ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable,
        absl::StrCat("no RDMA port is usable:\n", choice_.Explain()));
  }

  const IbvCalls& calls_;
  const IbvChoiceOptions& options_;
  const PciTree pci_;
  std::string gpu_path_;
  bool device_seen_ = false;
  bool port_seen_ = false;
  IbvChoice choice_;
};

}  // namespace

std::string IbvChoice::Explain() const {
  std::string text;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const IbvCandidate& candidate = candidates[i];
    const char* verdict = chosen == i ? "chosen" : candidate.usable.ok() ? "usable" : "rejected";
    absl::StrAppend(&text, candidate.device);
    if (candidate.port.number != 0) absl::StrAppend(&text, " port ", candidate.port.number);
    absl::StrAppend(&text, ": ", verdict, ": ",
                    candidate.usable.ok() ? absl::string_view(candidate.port.description)
                                          : candidate.usable.message());
    if (candidate.usable.ok() && candidate.numa_node) {
      absl::StrAppend(&text, ", NUMA node ", *candidate.numa_node);
    }
    if (candidate.usable.ok() && candidate.gpu_distance != PciDistance::kUnknown) {
      absl::StrAppend(&text, ", GPU: ", PciDistanceName(candidate.gpu_distance));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

IbvChoice ChooseIbvPort(const IbvCalls& calls, const IbvChoiceOptions& options) {
  int count = 0;
  absl::StatusOr<ibv_device**> list =
      FromPointer(calls.get_device_list(&count), "ibv_get_device_list");
  if (!list.ok()) {
    IbvChoice none;
    none.status = absl::UnavailableError(
        absl::StrCat("cannot list the RDMA devices: ", list.status().message()));
    return none;
  }
  Chooser chooser(calls, options);
  for (int i = 0; i < count; ++i) chooser.AddDevice((*list)[i]);
  calls.free_device_list(*list);
  return chooser.Finish();
}

}  // namespace tryst
