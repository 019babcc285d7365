#include "verbs/ibv/ibv_port.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "verbs/ibv/ibv_status.h"
#include "verbs/ibv/queue_pair_address.h"

namespace tryst {
namespace {

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "unknown";
    case IBV_PORT_DOWN:
      return "down (no cable, no carrier, or its network device is not up)";
    case IBV_PORT_INIT:
      return "initialising (on InfiniBand: no subnet manager has configured it)";
    case IBV_PORT_ARMED:
      return "armed, not yet active";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "deferred";
  }
  return "unknown";
}

uint64_t Lanes(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

uint64_t BitsPerLane(uint8_t speed) {
  switch (speed) {
    case 1:
      return 2500000000;
    case 2:
      return 5000000000;
    case 4:
    case 8:
      return 10000000000;
    case 16:
      return 14062500000;
    case 32:
      return 25781250000;
    case 64:
      return 53125000000;
    case 128:
      return 106250000000;
    default:
      return 0;
  }
}

absl::Status ChooseMtu(const RdmaSettings& settings, ibv_mtu active, IbvPort* port) {
  port->mtu_bytes = MtuBytes(active);
  if (!settings.mtu_bytes) return absl::OkStatus();
  if (*settings.mtu_bytes > port->mtu_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("RDMA_QP_MTU is ", *settings.mtu_bytes, ", and the port's active MTU is ",
                     port->mtu_bytes, ": raise the network device's MTU, or lower RDMA_QP_MTU"));
  }
  port->mtu_bytes = *settings.mtu_bytes;
  return MtuFromBytes(port->mtu_bytes).status();
}

absl::Status ChooseAddress(const IbvCalls& calls, ibv_context* context, int table_length,
                           const RdmaSettings& settings, const std::string& sysfs_root,
                           IbvPort* port) {
  const absl::StatusOr<std::vector<ibv_gid_entry>> gids =
      ReadGids(calls, context, port->number, table_length, sysfs_root);
  if (!gids.ok()) return gids.status();
  absl::StatusOr<ChosenGid> gid = ChooseGid(*gids, port->ethernet, settings.gid_index);
  if (!gid.ok()) return gid.status();
  port->gid = *std::move(gid);
  return absl::OkStatus();
}

std::string Describe(const IbvPort& port) {
  return absl::StrCat(port.ethernet ? "Ethernet" : "InfiniBand", ", ",
                      port.bits_per_second == 0
                          ? std::string("unknown speed")
                          : absl::StrCat(port.bits_per_second / 1000000000, " Gb/s"),
                      ", MTU ", port.mtu_bytes, ", GID ", port.gid.why);
}

}  // namespace

IbvPort ProbePort(const IbvCalls& calls, ibv_context* context, uint8_t number,
                  const RdmaSettings& settings, const std::string& sysfs_root) {
  IbvPort port;
  port.number = number;
  ibv_port_attr attributes = {};
  port.usable = FromReturned(calls.query_port(context, number, &attributes), "ibv_query_port");
  if (!port.usable.ok()) return port;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.global_route = port.ethernet || (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  port.lid = attributes.lid;
  port.max_message_bytes = attributes.max_msg_sz;
  port.bits_per_second = Lanes(attributes.active_width) * BitsPerLane(attributes.active_speed);
  if (attributes.state != IBV_PORT_ACTIVE) {
    port.usable = absl::UnavailableError(absl::StrCat("the port is ", StateName(attributes.state)));
  } else {
    port.state = PortState::kActive;
  }
  // Also looked up on a port that is down: addresses exist before the link is up.
  absl::Status address =
      ChooseAddress(calls, context, attributes.gid_tbl_len, settings, sysfs_root, &port);
  if (address.ok()) address = ChooseMtu(settings, attributes.active_mtu, &port);
  if (port.usable.ok()) port.usable = address;
  port.description = port.usable.ok() ? Describe(port) : std::string(port.usable.message());
  return port;
}

}  // namespace tryst
