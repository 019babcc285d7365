// A peer on this host that writes anything into the rings and sends anything on the socket. Either
// end of a link must survive that: it may end the link, never the process.
//
// The first byte says which end is hostile. Then come operations of one byte each
// with their arguments: a random cell, a cell that is nearly right, a packet, statements about the
// end of the link, the end itself, another hello or link, a turn.
//
// The honest end lives on from input to input, which makes the test fast. At the end of an input it
// must be in its first state again.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/shm/shm_transport.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/process/pair/one_step.h"
#include "tests/process/shm/hostile_link.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}
  bool empty() const { return left_ == 0; }
  uint8_t Byte() {
    uint8_t byte = 0;
    Fill(&byte, 1);
    return byte;
  }
  void Fill(void* to, size_t bytes) {
    memset(to, 0, bytes);
    const size_t taken = bytes < left_ ? bytes : left_;
    if (taken == 0) return;  // An empty input has no pointer to copy from.
    memcpy(to, data_, taken);
    data_ += taken;
    left_ -= taken;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

class RenewedStep final : public OpenSource {
 public:
  explicit RenewedStep(Alarms* alarms) : alarms_(alarms) { Renew(); }
  void Renew() { step = std::make_unique<LocalRendezvous>(LocalRendezvous::Options(), alarms_); }
  std::unique_ptr<LocalRendezvous> step;

 private:
  LocalRendezvous* StepOf(int64_t) override { return step.get(); }

  Alarms* const alarms_;
};

TensorKey Key() {
  return TensorKeyPrefix::Make(std::string(kProducer) + "/device:CPU:0", 1,
                               std::string(kConsumer) + "/device:CPU:0", "edge")
      ->At(0, 0);
}

struct World {
  World() : source(&alarms), poller(&alarms) {
    ArenaOptions options;
    options.cap_bytes = 4 << 20;
    options.first_segment_bytes = 1 << 20;
    arena = Arena::Make(options);
    TransportContext context;
    context.poller = &poller;
    context.bootstrap = &hellos;
    context.source = &source;
    context.self = kProducer;
    context.incarnation = 1;
    ShmOptions shm;
    shm.sizes = SmallLinkSizes();
    shm.parts_room_bytes = 128 << 10;  // Made anew for each link: most of the time, if it is large.
    path = std::make_unique<ShmTransport>(context, arena, shm);
    const absl::Status opened = path->Open();
    TRYST_CHECK(opened.ok()) << opened;
    door_name = absl::StrCat("tryst-fuzz-", getpid());
    auto listening = LocalSocket::Listen(door_name);
    TRYST_CHECK(listening.ok()) << listening.status();
    door = *std::move(listening);
    for (int64_t size : {8, 500, 600'000}) {
      sent.push_back(*Tensor::Allocate(DType::kUint8, {size}));
      memset(sent.back().mutable_data(), 1, sent.back().bytes());
    }
  }
  void Turn() {
    poller.Turn();
    // The links poll their sockets only now and then.
    alarms.AdvanceBy(absl::Microseconds(200));
  }
  // The hostile end goes, and everything that it was given is released.
  void EndInput() {
    source.step->StartAbort(absl::CancelledError("over"));
    int i = 0;
    do {
      Turn();
      path->Maintain();
      alarms.AdvanceBy(absl::Seconds(1));  // A session is kept for a while after its link.
    } while (++i < 100 && !path->serving().empty());
    TRYST_CHECK(path->serving().empty()) << "a consumer is left";
    TRYST_CHECK(arena->counters().used_bytes == 0) << arena->counters().used_bytes;
    for (const Tensor& tensor : sent) {
      TRYST_CHECK(tensor.data_as<uint8_t>()[0] == 1 &&
                  memcmp(tensor.data(), tensor.data_as<uint8_t>() + 1, 7) == 0);
    }
    source.Renew();
    while (door->Accept() != nullptr) {
    }
  }

  VirtualAlarms alarms;
  RenewedStep source;
  KeptHellos hellos;
  std::shared_ptr<Arena> arena;
  Poller poller;
  std::unique_ptr<ShmTransport> path;
  std::string door_name;  // The hostile producer's.
  std::unique_ptr<LocalSocket> door;
  std::vector<Tensor> sent;  // The honest producer's: one of every kind.
  uint64_t epoch = 0;
};

// Writes cells as the other end would, in order or not.
template <size_t kBytes>
void WriteCell(Input* in, uint8_t* ring, uint32_t* next, bool nearly_right) {
  uint8_t cell[kBytes];
  in->Fill(cell, nearly_right ? 24 : kBytes);
  if (nearly_right) {
    memset(cell + 24, 0, kBytes - 24);
    cell[4] = static_cast<uint8_t>(kBytes == shm_wire::kRequestCellBytes ? 1 + cell[4] % 11
                                                                         : 16 + cell[4] % 10);
    cell[6] &= 3;  // The slot.
    cell[7] = 0;
    memset(cell + 9, 0, 3);  // The generation: small.
    memset(cell + 13, 0, 3);
  }
  const uint32_t sequence = ++*next;
  memcpy(cell, &sequence, sizeof(sequence));
  memcpy(ring + size_t{(sequence - 1) & (shm_wire::kMinCells - 1)} * kBytes, cell, kBytes);
}

void SayAnything(Input* in, LocalSocket* socket, const SharedMemory* memory) {
  shm_wire::Packet packet;
  const uint8_t what = in->Byte();
  constexpr shm_wire::PacketType kTypes[] = {
      shm_wire::PacketType::kJoin, shm_wire::PacketType::kWelcome, shm_wire::PacketType::kReady,
      shm_wire::PacketType::kSegment, shm_wire::PacketType::kWake};
  packet.type = kTypes[what % 5];
  packet.segment = in->Byte() % 4;
  packet.segment_id = in->Byte();
  packet.segment_bytes = (what & 64) != 0 ? memory->bytes() : in->Byte();
  socket->Send(packet, (what & 128) != 0 ? memory->fd() : -1);
}

// What either end may find in memory of the link and of its slots.
void SayHowItEnded(Input* in, const shm_wire::LinkView& view) {
  const uint8_t what = in->Byte();
  view.header->producer_left.store(what & 3);
  view.header->consumer_left.store(what >> 6);
  view.slots[what >> 2 & 3].loan.store(what >> 4 & 3);
  view.slots[what >> 2 & 3].accepted.store(in->Byte());
}

// The fuzzer is the consumer of an honest producer.
void AttackProducer(Input* in, World* world) {
  Hello hello;
  hello.worker = kConsumer;
  hello.incarnation = 2;
  hello.epoch = ++world->epoch;
  hello.path = "shm";
  shm_wire::Offer offer;
  static const HostIdentity* const host = new HostIdentity(OwnHost());
  offer.boot_id = host->boot_id;
  offer.network_space = host->network_space;
  offer.sizes = SmallLinkSizes();
  hello.parameters = shm_wire::EncodeOffer(offer);
  absl::StatusOr<Hello> answer = absl::UnknownError("");
  world->path->OnHello(hello, [&](absl::StatusOr<Hello> its) { answer = std::move(its); });
  TRYST_CHECK(answer.ok()) << answer.status();
  auto invitation = shm_wire::DecodeInvitation(answer->parameters);
  TRYST_CHECK(invitation.ok());
  auto socket = LocalSocket::Connect(invitation->socket);
  TRYST_CHECK(socket.ok()) << socket.status();
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kJoin;
  packet.token = invitation->token;
  (*socket)->Send(packet);
  OwnedFd fd;
  for (int i = 0; i < 10 && !fd.valid(); ++i) {
    world->Turn();
    (*socket)->Receive(&packet, &fd);
  }
  auto memory = SharedMemory::Map(std::move(fd),
                                  SharedMemory::Rounded(shm_wire::LinkBytes(packet.sizes)), true);
  TRYST_CHECK(memory.ok()) << memory.status();
  const shm_wire::LinkView view((*memory)->data(), packet.sizes);
  packet.type = shm_wire::PacketType::kReady;
  packet.pulls = 1;
  memcpy(view.header->proof, packet.token.data(), sizeof(view.header->proof));
  (*socket)->Send(packet);
  world->Turn();
  // Tensors of every kind, to be requested.
  for (const Tensor& tensor : world->sent) {
    (void)world->source.step->Send(Key(), SendArgs(), tensor, false);
  }
  // Interns the key as an honest consumer does.
  uint32_t next = 0;
  const std::string text(Key().text());
  for (size_t at = 0; at < text.size(); at += sizeof(shm_wire::RequestCell::body)) {
    shm_wire::RequestCell cell{};
    cell.head.type = at == 0 ? shm_wire::CellType::kKey : shm_wire::CellType::kMore;
    cell.head.slot = static_cast<uint16_t>(text.size());
    memcpy(cell.body, text.data() + at, std::min(sizeof(cell.body), text.size() - at));
    cell.head.sequence = ++next;
    memcpy(view.requests + (next - 1) * sizeof(cell), &cell, sizeof(cell));
  }
  uint32_t returns = 0;
  for (int i = 0; i < 64 && !in->empty(); ++i) {
    const uint8_t what = in->Byte();
    if (what % 8 < 4) {
      WriteCell<shm_wire::kRequestCellBytes>(in, view.requests, &next, what % 8 != 0);
    } else if (what % 8 == 4) {
      SayAnything(in, socket->get(), memory->get());
    } else if (what % 8 == 5) {
      view.releases[returns & 7].store((uint64_t{returns} + 1) << 32 | uint64_t{in->Byte()} << 16 |
                                       in->Byte());
      ++returns;
    } else if (what % 8 == 6) {
      view.header->replies_read.store(in->Byte());
    } else if (what % 32 == 7) {
      SayHowItEnded(in, view);
    } else if (what % 32 == 15) {
      // For another link: of this incarnation or the next, of this attempt or an earlier one.
      hello.epoch = world->epoch += what >> 5 & 1;
      hello.incarnation += what >> 6 & 1;
      world->path->OnHello(hello, [](absl::StatusOr<Hello>) {});
    } else if (what % 32 == 23) {
      world->alarms.AdvanceBy(absl::Seconds(in->Byte()));
    }
    world->Turn();
  }
  socket->reset();
  world->alarms.AdvanceBy(absl::Seconds(61));  // The consumer that was invited has not come.
}

// The fuzzer is the producer of an honest consumer.
void AttackConsumer(Input* in, World* world) {
  std::unique_ptr<FetchSession> channel = world->path->MakeFetchSession(kProducer, nullptr, false);
  int started = 0;
  int ended = 0;
  const auto fetch = [&](bool into) {
    RecvArgs args;
    if (into) args.destination = *Tensor::Allocate(DType::kUint8, {100});
    ++started;
    channel->Fetch(1, Key(), args, [&ended](Received&& received) {
      // Every delivered byte must be readable.
      if (received.tensor.valid() && received.tensor.dtype() != DType::kString &&
          received.tensor.bytes() > 0) {
        const uint8_t* at = received.tensor.data_as<uint8_t>();
        volatile uint8_t sum = static_cast<uint8_t>(at[0] + at[received.tensor.bytes() - 1]);
        (void)sum;
      }
      ++ended;
    });
  };
  for (int i = 0; i < 6; ++i) fetch(i % 2 == 1);
  static const SharedMemory* const segment =
      SharedMemory::Create(8192, SharedMemory::Writers::kCreator)->release();
  HostileLink link;
  const auto open = [&](uint64_t incarnation) {
    link.Open(&world->hellos, world->door.get(), world->door_name, kProducer, incarnation, *segment,
              [world] { world->Turn(); });
  };
  open(7);
  TRYST_CHECK(link.socket != nullptr);
  for (int i = 0; i < 64 && !in->empty(); ++i) {
    const uint8_t what = in->Byte();
    if (what % 8 < 3) {
      WriteCell<shm_wire::kReplyCellBytes>(in, link.view.replies, &link.next, what % 8 != 0);
    } else if (what % 8 < 6) {
      // A cell that places bytes nearly right, so that later cells get further.
      shm_wire::ReplyCell cell{};
      cell.head.type = static_cast<shm_wire::CellType>(17 + in->Byte() % 3);
      cell.head.slot = in->Byte() & 3;
      cell.head.generation = in->Byte() & 1;
      shm_wire::Placed placed;
      placed.dtype = static_cast<uint8_t>(DType::kUint8);
      placed.rank = 1;
      placed.bytes = in->Byte() % 2 == 0 ? 100 : in->Byte() * 64;
      placed.dims[0] = static_cast<int64_t>(placed.bytes);
      placed.reference = in->Byte() % 9;
      placed.segment = in->Byte() % 2;
      placed.offset = in->Byte() * 64;
      placed.piece_bytes = in->Byte();
      placed.position = in->Byte();
      shm_wire::WritePlaced(placed, &cell);
      link.Reply(cell);
    } else if (what % 8 == 6) {
      if (link.socket != nullptr) SayAnything(in, link.socket.get(), segment);
    } else if (what % 32 == 15) {
      SayHowItEnded(in, link.view);
    } else if (what % 32 == 31) {
      // The link ends, and after a pause the consumer asks for another.
      link.socket.reset();
      world->Turn();
      world->alarms.AdvanceBy(absl::Seconds(2));
      world->Turn();
      link.session = 1 + (what >> 6 & 1);
      open(7 + (what >> 5 & 1));
    } else {
      fetch(what % 16 > 8);
    }
    world->Turn();
  }
  channel->Close(absl::CancelledError("over"));
  link.socket.reset();
  for (int i = 0; i < 3; ++i) world->Turn();
  // A hello of another attempt may be under way: it is answered now.
  if (world->hellos.answer != nullptr) {
    std::exchange(world->hellos.answer, nullptr)(absl::UnavailableError("over"));
  }
  for (int i = 0; i < 3; ++i) world->Turn();
  TRYST_CHECK(channel->Drained()) << channel->Explain();
  TRYST_CHECK(ended == started) << ended << " of " << started << " fetches have ended";
}

}  // namespace
}  // namespace tryst

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  tryst::SetLogSink([](tryst::LogSeverity severity, const char*, int, absl::string_view text) {
    if (severity == tryst::LogSeverity::kFatal) {
      fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    }
  });
  static tryst::World* const world = new tryst::World();
  tryst::Input in(data, bytes);
  const uint8_t how = in.Byte();
  if (how % 2 == 0) {
    tryst::AttackProducer(&in, world);
  } else {
    tryst::AttackConsumer(&in, world);
  }
  world->EndInput();
  return 0;
}
