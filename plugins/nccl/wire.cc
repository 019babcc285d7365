#include "plugins/nccl/wire.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst::nccl {
namespace {

constexpr size_t kMaxText = 512;

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(absl::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  void Bytes(const Secret& secret) {
    bytes_.append(reinterpret_cast<const char*>(secret.data()), secret.size());
  }
  void Name(const PeerName& name) {
    Number(name.process);
    Number(name.pid);
    Text(name.host);
    Text(name.device);
  }
  void Ring(const RemoteRing& ring) {
    Number(ring.address);
    Number(ring.key);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads until something does not fit. From then on it returns zeros, and ok() is false.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : left_(bytes) {}
  template <typename T>
  void Number(T* out) {
    *out = T();
    if (left_.size() < sizeof(T)) return Fail();
    memcpy(out, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
  }
  void Text(std::string* out) {
    uint32_t bytes = 0;
    Number(&bytes);
    if (bytes > kMaxText || bytes > left_.size()) return Fail();
    out->assign(left_.data(), bytes);
    left_.remove_prefix(bytes);
  }
  void Bytes(Secret* out) {
    if (left_.size() < out->size()) return Fail();
    memcpy(out->data(), left_.data(), out->size());
    left_.remove_prefix(out->size());
  }
  void Name(PeerName* out) {
    Number(&out->process);
    Number(&out->pid);
    Text(&out->host);
    Text(&out->device);
  }
  void Ring(RemoteRing* out) {
    Number(&out->address);
    Number(&out->key);
  }
  uint8_t Count(int most) {
    uint8_t count = 0;
    Number(&count);
    if (count > most) {
      Fail();
      return 0;
    }
    return count;
  }
  absl::Status Finish(absl::string_view what) const {
    if (ok_ && left_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("the other rank's ", what, " is malformed"));
  }

 private:
  void Fail() {
    ok_ = false;
    left_ = absl::string_view();
  }
  absl::string_view left_;
  bool ok_ = true;
};

}  // namespace

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kSoft:
      return "the software NIC";
    case DeviceKind::kIbv:
      return "RDMA verbs";
    case DeviceKind::kOfi:
      return "libfabric";
  }
  return "a NIC that this build does not know";
}

std::string PeerName::ToString() const {
  return absl::StrCat("process ", pid, " on ", host, " (", device, ")");
}

std::string Encode(const Hello& hello) {
  Writer out;
  out.Number(kWireVersion);
  out.Bytes(hello.secret);
  out.Name(hello.name);
  out.Number(hello.kind);
  out.Ring(hello.announcements);
  out.Number(static_cast<uint8_t>(hello.lanes.size()));
  for (const std::string& lane : hello.lanes) out.Text(lane);
  return out.Take();
}

std::string Encode(const Welcome& welcome) {
  Writer out;
  out.Number(kWireVersion);
  out.Text(welcome.refusal.substr(0, kMaxText));
  out.Name(welcome.name);
  out.Ring(welcome.eager);
  out.Number(welcome.eager_bytes);
  out.Number(static_cast<uint8_t>(welcome.lanes.size()));
  for (const std::string& lane : welcome.lanes) out.Text(lane);
  for (uint8_t rail : welcome.rails) out.Number(rail);
  return out.Take();
}

absl::StatusOr<Hello> DecodeHello(absl::string_view bytes) {
  Reader in(bytes);
  Hello hello;
  uint32_t version = 0;
  in.Number(&version);
  if (version != kWireVersion) {
    return absl::DataLossError(absl::StrCat("the other rank's plugin speaks version ", version,
                                            ", this rank's ", kWireVersion,
                                            ": load the same one on every rank"));
  }
  in.Bytes(&hello.secret);
  in.Name(&hello.name);
  in.Number(&hello.kind);
  in.Ring(&hello.announcements);
  hello.lanes.resize(in.Count(kMaxLanes));
  for (std::string& lane : hello.lanes) in.Text(&lane);
  const absl::Status finished = in.Finish("greeting");
  if (!finished.ok()) return finished;
  if (hello.lanes.empty())
    return absl::DataLossError(
        "the other rank broke the protocol: its greeting offers no connection");
  return hello;
}

absl::StatusOr<Welcome> DecodeWelcome(absl::string_view bytes) {
  Reader in(bytes);
  Welcome welcome;
  uint32_t version = 0;
  in.Number(&version);
  if (version != kWireVersion) {
    return absl::DataLossError(absl::StrCat("the other rank's plugin speaks version ", version,
                                            ", this rank's ", kWireVersion,
                                            ": load the same one on every rank"));
  }
  in.Text(&welcome.refusal);
  in.Name(&welcome.name);
  in.Ring(&welcome.eager);
  in.Number(&welcome.eager_bytes);
  welcome.lanes.resize(in.Count(kMaxLanes));
  for (std::string& lane : welcome.lanes) in.Text(&lane);
  welcome.rails.resize(welcome.lanes.size());
  for (uint8_t& rail : welcome.rails) {
    in.Number(&rail);
    if (rail >= kMaxRails)
      return absl::DataLossError(
          "the other rank broke the protocol: its answer names a NIC that the device does not "
          "have");
  }
  const absl::Status finished = in.Finish("welcome");
  if (!finished.ok()) return finished;
  if (welcome.refusal.empty() && welcome.lanes.empty()) {
    return absl::DataLossError(
        "the other rank broke the protocol: its answer accepts no connection");
  }
  return welcome;
}

uint32_t Immediate::Pack() const {
  return static_cast<uint32_t>(kind) << 30 | uint32_t{slot} << 25 | uint32_t{receive} << 22 |
         uint32_t{pieces} << 11 | generation;
}

Immediate Immediate::Unpack(uint32_t bits) {
  Immediate out;
  out.kind = static_cast<Kind>(bits >> 30);
  out.slot = (bits >> 25) & 31;
  out.receive = (bits >> 22) & 7;
  out.pieces = (bits >> 11) & kMaxPieces;
  out.generation = bits & kGenerationMask;
  return out;
}

}  // namespace tryst::nccl
