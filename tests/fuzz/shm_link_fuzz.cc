// A peer of this host that writes what it likes into the rings and says what it likes on
// the socket. Either end of a link must stand it: it may end the link, never the process.
//
// The first byte says who is hostile. Then come operations of one byte each, with what they
// need behind: a cell of any bytes, a cell that is nearly right, a packet, a turn.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/shm/shm_path.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/virtual_alarms.h"

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
    if (taken == 0) return;  // Of an empty input there is no pointer to copy from.
    memcpy(to, data_, taken);
    data_ += taken;
    left_ -= taken;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

class OneStep final : public TensorSource {
 public:
  explicit OneStep(Alarms* alarms) : step(LocalRendezvous::Options(), alarms) {}
  void Take(int64_t, const TensorKey& key, uint64_t, const Args& args, DoneFn done) override {
    step.RecvAsync(key, args, std::move(done));
  }
  void GiveBack(int64_t, const TensorKey& key, Taken taken) override {
    step.GiveBack(key, std::move(taken));
  }
  LocalRendezvous step;
};

// The hostile end's hellos: kept by the fuzzer, answered by the fuzzer.
class Hellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    asked = hello;
    answer = std::move(done);
  }
  Hello asked;
  HelloDone answer;
};

TensorKey Key() {
  return TensorKeyPrefix::Make(std::string(kProducer) + "/device:CPU:0", 1,
                               std::string(kConsumer) + "/device:CPU:0", "edge")
      ->At(0, 0);
}

shm_wire::LinkSizes SmallSizes() {
  shm_wire::LinkSizes sizes;
  sizes.cells = shm_wire::kMinCells;
  sizes.slots = 4;
  sizes.references = 8;
  return sizes;
}

struct World {
  World() : source(&alarms), poller(&alarms) {
    ArenaOptions options;
    options.cap_bytes = 4 << 20;
    options.first_segment_bytes = 1 << 20;
    arena = Arena::Make(options);
    ShmPathOptions shm;
    shm.self = kProducer;
    shm.self_incarnation = 1;
    shm.sizes = SmallSizes();
    auto made = ShmPath::Create(&poller, &hellos, &source, arena, shm);
    TRYST_CHECK(made.ok()) << made.status();
    path = *std::move(made);
  }
  ~World() {
    path->Close(absl::CancelledError("over"));
    source.step.StartAbort(absl::CancelledError("over"));
    for (int i = 0; i < 100 && !path->Drained(); ++i) Turn();
    TRYST_CHECK(path->Drained());
    path.reset();
  }
  void Turn() {
    poller.Step();
    // Sockets are looked at once in a while only.
    alarms.AdvanceBy(absl::Microseconds(200));
  }

  VirtualAlarms alarms;
  OneStep source;
  Hellos hellos;
  std::shared_ptr<Arena> arena;
  Poller poller;
  std::unique_ptr<ShmPath> path;
};

// Writes cells as the other end would, in turn or not.
template <size_t kBytes>
void WriteCell(Input* in, uint8_t* ring, uint32_t* next, bool nearly_right) {
  uint8_t cell[kBytes];
  in->Fill(cell, nearly_right ? 24 : kBytes);
  if (nearly_right) {
    memset(cell + 24, 0, kBytes - 24);
    cell[4] = static_cast<uint8_t>(kBytes == shm_wire::kRequestCellBytes ? 1 + cell[4] % 6
                                                                         : 16 + cell[4] % 7);
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
      shm_wire::PacketType::kJoin,    shm_wire::PacketType::kWelcome, shm_wire::PacketType::kReady,
      shm_wire::PacketType::kSegment, shm_wire::PacketType::kWake,    shm_wire::PacketType::kLeave};
  packet.type = kTypes[what % 6];
  packet.segment = in->Byte() % 4;
  packet.segment_id = in->Byte();
  packet.segment_bytes = (what & 64) != 0 ? memory->bytes() : in->Byte();
  socket->Send(packet, (what & 128) != 0 ? memory->fd() : -1);
}

// We are the consumer of an honest producer.
void AttackProducer(Input* in) {
  World world;
  Hello hello;
  hello.worker = kConsumer;
  hello.incarnation = 2;
  hello.epoch = 1;
  hello.path = "shm";
  shm_wire::Offer offer;
  const HostIdentity host = OwnHost();
  offer.boot_id = host.boot_id;
  offer.network_space = host.network_space;
  offer.sizes = SmallSizes();
  hello.parameters = shm_wire::EncodeOffer(offer);
  absl::StatusOr<Hello> answer = absl::UnknownError("");
  world.path->OnHello(hello, [&](absl::StatusOr<Hello> its) { answer = std::move(its); });
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
    world.Turn();
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
  world.Turn();
  // Tensors of every kind for it to ask for.
  const int64_t sizes[] = {8, 500, 600'000};
  for (int64_t size : sizes) {
    Tensor tensor = *Tensor::Allocate(DType::kUint8, {size});
    memset(tensor.mutable_data(), 1, tensor.bytes());
    (void)world.source.step.Send(Key(), Args(), tensor, false);
  }
  // The key, told as it should be.
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
      view.header->replies_accepted.store(in->Byte());
    }
    world.Turn();
  }
}

// We are the producer of an honest consumer.
void AttackConsumer(Input* in) {
  World world;
  std::unique_ptr<ShmFetchChannel> channel = world.path->MakeFetchChannel(kProducer, nullptr);
  int ended = 0;
  const auto fetch = [&](bool into) {
    Args args;
    if (into) args.destination = *Tensor::Allocate(DType::kUint8, {100});
    channel->Fetch(1, Key(), args,
                   [&ended](absl::Status, const Args&, const Args&, Tensor tensor, bool) {
                     // What is delivered can be read.
                     if (tensor.valid() && tensor.dtype() != DType::kString && tensor.bytes() > 0) {
                       const uint8_t* at = tensor.data_as<uint8_t>();
                       volatile uint8_t sum = static_cast<uint8_t>(at[0] + at[tensor.bytes() - 1]);
                       (void)sum;
                     }
                     ++ended;
                   });
  };
  for (int i = 0; i < 6; ++i) fetch(i % 2 == 1);
  const std::string name = absl::StrCat("tryst-fuzz-", getpid());
  auto door = LocalSocket::Listen(name);
  TRYST_CHECK(door.ok()) << door.status();
  Hello answer = world.hellos.asked;
  answer.worker = kProducer;
  answer.incarnation = 7;
  shm_wire::Invitation invitation;
  invitation.socket = name;
  answer.parameters = shm_wire::EncodeInvitation(invitation);
  std::exchange(world.hellos.answer, nullptr)(answer);
  world.Turn();
  std::unique_ptr<LocalSocket> socket = (*door)->Accept();
  TRYST_CHECK(socket != nullptr);
  auto memory =
      SharedMemory::Create(shm_wire::LinkBytes(SmallSizes()), SharedMemory::Writers::kEverybody);
  TRYST_CHECK(memory.ok());
  const shm_wire::LinkView view((*memory)->data(), SmallSizes());
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kWelcome;
  packet.sizes = SmallSizes();
  socket->Send(packet, (*memory)->fd());
  for (int i = 0; i < 3; ++i) world.Turn();
  // A segment to point into.
  auto segment = SharedMemory::Create(8192, SharedMemory::Writers::kCreator);
  TRYST_CHECK(segment.ok());
  packet = shm_wire::Packet();
  packet.type = shm_wire::PacketType::kSegment;
  packet.segment_bytes = (*segment)->bytes();
  socket->Send(packet, (*segment)->fd());
  uint32_t next = 0;
  for (int i = 0; i < 64 && !in->empty(); ++i) {
    const uint8_t what = in->Byte();
    if (what % 8 < 3) {
      WriteCell<shm_wire::kReplyCellBytes>(in, view.replies, &next, what % 8 != 0);
    } else if (what % 8 < 6) {
      // Bytes placed somewhere: nearly right, so that what follows is reached.
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
      cell.head.sequence = ++next;
      memcpy(view.replies + size_t{(next - 1) & (shm_wire::kMinCells - 1)} * sizeof(cell), &cell,
             sizeof(cell));
    } else if (what % 8 == 6) {
      SayAnything(in, socket.get(), segment->get());
    } else {
      fetch(what % 16 > 8);
    }
    world.Turn();
  }
  channel->Close(absl::CancelledError("over"));
  socket.reset();
  for (int i = 0; i < 3; ++i) world.Turn();
  // A hello of a second attempt may be out: it is answered now.
  if (world.hellos.answer != nullptr) {
    std::exchange(world.hellos.answer, nullptr)(absl::UnavailableError("over"));
  }
  for (int i = 0; i < 3; ++i) world.Turn();
}

}  // namespace
}  // namespace tryst

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  tryst::SetLogSink([](tryst::LogSeverity severity, const char*, int, absl::string_view text) {
    if (severity == tryst::LogSeverity::kFatal) {
      fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    }
  });
  tryst::Input in(data, bytes);
  if (in.Byte() % 2 == 0) {
    tryst::AttackProducer(&in);
  } else {
    tryst::AttackConsumer(&in);
  }
  return 0;
}
