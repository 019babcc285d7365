#include <cstring>

#include "base/log.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"

// A frame that is decoded is within its bounds, and the encoder could have written it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tryst;
  FrameHeader frame;
  if (size >= kFrameHeaderBytes && DecodeFrameHeader(data, &frame)) {
    TRYST_CHECK(frame.bytes <= kMaxFrameBytes);
    uint8_t again[kFrameHeaderBytes];
    EncodeFrameHeader(frame, again);
    TRYST_CHECK(memcmp(again, data, sizeof(again)) == 0);
  }
  SoftHello hello;
  if (size >= kHelloBytes && DecodeHello(data, &hello)) {
    TRYST_CHECK(hello.socket < hello.sockets);
    uint8_t again[kHelloBytes];
    EncodeHello(hello, again);
    TRYST_CHECK(memcmp(again, data, sizeof(again)) == 0);
  }
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto address = DecodeSoftAddress(text);
  if (address.ok()) TRYST_CHECK(EncodeSoftAddress(*address) == text);
  return 0;
}
