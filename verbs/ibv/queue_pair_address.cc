#include "verbs/ibv/queue_pair_address.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr absl::string_view kAddressMagic = "TIB1";  // The last character is the version.
constexpr size_t kAddressBytes = 4 + 4 + 4 + 2 + 1 + 4 + 1 + 16 + 4 + 4;
constexpr uint32_t kMax24Bits = (1u << 24) - 1;

template <typename T>
void Put(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T Take(absl::string_view* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>((*in)[i])) << (8 * i));
  }
  in->remove_prefix(sizeof(T));
  return value;
}

absl::Status Wrong(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer sent something that is not the address of a verbs queue pair: ", why));
}

}  // namespace

std::string EncodeQueuePairAddress(const QueuePairAddress& address) {
  std::string out(kAddressMagic);
  Put<uint32_t>(address.number, &out);
  Put<uint32_t>(address.first_packet, &out);
  Put<uint16_t>(address.lid, &out);
  Put<uint8_t>(address.ethernet ? 1 : 0, &out);
  Put<uint32_t>(address.mtu_bytes, &out);
  Put<uint8_t>(address.reads_served, &out);
  out.append(reinterpret_cast<const char*>(address.gid.raw), sizeof(address.gid.raw));
  Put<uint32_t>(address.ece_vendor, &out);
  Put<uint32_t>(address.ece_options, &out);
  return out;
}

absl::StatusOr<QueuePairAddress> DecodeQueuePairAddress(absl::string_view bytes) {
  if (bytes.size() != kAddressBytes) return Wrong(absl::StrCat("it has ", bytes.size(), " bytes"));
  if (bytes.substr(0, kAddressMagic.size()) != kAddressMagic)
    return Wrong("it is of another kind or version");
  bytes.remove_prefix(kAddressMagic.size());
  QueuePairAddress address;
  address.number = Take<uint32_t>(&bytes);
  address.first_packet = Take<uint32_t>(&bytes);
  address.lid = Take<uint16_t>(&bytes);
  const uint8_t ethernet = Take<uint8_t>(&bytes);
  address.mtu_bytes = Take<uint32_t>(&bytes);
  address.reads_served = Take<uint8_t>(&bytes);
  std::memcpy(address.gid.raw, bytes.data(), sizeof(address.gid.raw));
  bytes.remove_prefix(sizeof(address.gid.raw));
  address.ece_vendor = Take<uint32_t>(&bytes);
  address.ece_options = Take<uint32_t>(&bytes);
  if (address.number == 0 || address.number > kMax24Bits)
    return Wrong("its queue pair number is out of range");
  if (address.first_packet > kMax24Bits) return Wrong("its packet number is out of range");
  if (ethernet > 1) return Wrong("its link layer is unknown");
  if (!MtuFromBytes(address.mtu_bytes).ok()) return Wrong("its MTU is none that exists");
  address.ethernet = ethernet == 1;
  return address;
}

absl::StatusOr<ibv_mtu> MtuFromBytes(uint32_t bytes) {
  for (ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (MtuBytes(mtu) == bytes) return mtu;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("RDMA has no MTU of ", bytes, " bytes: it is 256, 512, 1024, 2048 or 4096"));
}

uint32_t MtuBytes(ibv_mtu mtu) {
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) return 0;
  return 128u << mtu;
}

}  // namespace tryst
