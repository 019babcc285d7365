#include "channel/shm/serve_sending.h"

#include "channel/shm/asleep_flag.h"

namespace tryst {

bool ShmServeSender::Say(shm_wire::CellType type, uint16_t slot, uint32_t generation,
                         uint32_t about) {
  if (!replies.HasRoom(1)) return false;
  shm_wire::ReplyCell* cell = reinterpret_cast<shm_wire::ReplyCell*>(replies.cell());
  cell->head.type = type;
  cell->head.flags = 0;
  cell->head.slot = slot;
  cell->head.generation = generation;
  cell->head.number = about;
  cell->is_long = 0;
  replies.Publish();
  return true;
}

void ShmServeSender::WakeConsumer() {
  if (AsleepFlag(&given->view().header->consumer_asleep).TakeDown()) {
    socket->Send(shm_wire::Packet());
  }
}

}  // namespace tryst
