#include "tests/process/shm/hostile_link.h"

#include <cstring>
#include <utility>

namespace tryst {

shm_wire::LinkSizes SmallLinkSizes() {
  shm_wire::LinkSizes sizes;
  sizes.cells = shm_wire::kMinCells;
  sizes.slots = 4;
  sizes.references = 8;
  return sizes;
}

void HostileLink::Invite(KeptHellos* hellos, const std::string& door_name,
                         const std::string& producer, uint64_t incarnation, uint64_t session) {
  Hello answer = hellos->asked;
  answer.worker = producer;
  answer.incarnation = incarnation;
  shm_wire::Invitation invitation;
  invitation.socket = door_name;
  invitation.session = session;
  answer.parameters = shm_wire::EncodeInvitation(invitation);
  std::exchange(hellos->answer, nullptr)(answer);
}

void HostileLink::Welcome() {
  // One for all links: it costs more to make than all the rest.
  static SharedMemory* const again =
      SharedMemory::Create(shm_wire::LinkBytes(SmallLinkSizes()), SharedMemory::Writers::kEverybody)
          ->release();
  memory = again;
  memset(memory->data(), 0, memory->bytes());
  view = shm_wire::LinkView(memory->data(), SmallLinkSizes());
  next = 0;
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kWelcome;
  packet.sizes = says;
  static const uint8_t probe[sizeof(packet.probe)] = {4, 7, 1, 1};
  if (lends) packet.probe_address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(probe));
  memcpy(packet.probe, probe, sizeof(probe));
  socket->Send(packet, memory->fd());
}

void HostileLink::Lend(const SharedMemory& segment) {
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kSegment;
  packet.segment_bytes = segment.bytes();
  socket->Send(packet, segment.fd());
}

void HostileLink::Reply(shm_wire::ReplyCell cell) {
  cell.head.sequence = ++next;
  memcpy(view.replies + size_t{(next - 1) & (shm_wire::kMinCells - 1)} * sizeof(cell), &cell,
         sizeof(cell));
}

}  // namespace tryst
