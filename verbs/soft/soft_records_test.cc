#include "verbs/soft/soft_records.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbs/soft/soft_kernel_tls.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {
namespace {

struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0); }
  ~Pair() {
    for (int one : fd) {
      if (one >= 0) close(one);
    }
  }
  int fd[2];
};

std::string Text(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

SoftTrafficSecret Secret() {
  SoftTrafficSecret secret;
  secret.fill(7);
  return secret;
}

// What the writer puts on the wire.
std::string Wire(const std::string& text, uint64_t records_of_key = 1 << 20) {
  Pair pair;
  SoftBlocks blocks;
  SoftRecordWriter writer(Secret(), &blocks, records_of_key);
  const iovec piece = {const_cast<char*>(text.data()), text.size()};
  std::string wire;
  ssize_t sent = writer.Send(pair.fd[0], &piece, 1);
  char some[1 << 16];
  for (;;) {
    const ssize_t got = recv(pair.fd[1], some, sizeof(some), MSG_DONTWAIT);
    if (got <= 0 && !writer.has_unsent() && sent == static_cast<ssize_t>(text.size())) break;
    if (got > 0) wire.append(some, static_cast<size_t>(got));
    const iovec rest = {const_cast<char*>(text.data()) + sent,
                        text.size() - static_cast<size_t>(sent)};
    sent += std::max<ssize_t>(writer.Send(pair.fd[0], &rest, 1), 0);
  }
  return wire;
}

struct Read {
  std::string text;
  int error = 0;  // 0: the stream ended.
};

// What a reader with rooms of `room` bytes makes of it.
Read ReadAll(const std::string& wire, size_t room = 1 << 15, size_t chunk = 50'000) {
  Pair pair;
  SoftBlocks blocks;
  SoftRecordReader reader(Secret(), &blocks);
  Read read;
  size_t fed = 0;
  std::string place(room, '\0');
  for (;;) {
    if (!reader.HoldsBytes()) {
      if (fed == wire.size()) shutdown(pair.fd[0], SHUT_WR);
      const size_t some = std::min(chunk, wire.size() - fed);
      if (some > 0)
        fed +=
            static_cast<size_t>(std::max<ssize_t>(send(pair.fd[0], wire.data() + fed, some, 0), 0));
    }
    const iovec into[2] = {{place.data(), room / 3}, {place.data() + room / 3, room - room / 3}};
    const ssize_t got = reader.Receive(pair.fd[1], into, 2);
    if (got > 0) read.text.append(place.data(), static_cast<size_t>(got));
    if (got == 0) return read;
    if (got < 0 && errno != EAGAIN) {
      read.error = errno;
      return read;
    }
  }
}

TEST(SoftRecordsTest, BytesComeBackWhateverTheRooms) {
  for (size_t bytes : {1, 63, 64, 16383, 16384, 16385, 300'000}) {
    const std::string wire = Wire(Text(bytes));
    for (size_t room : {3, 100, 20'000, 400'000}) {
      const Read read = ReadAll(wire, room, room == 3 ? 7'001 : 50'000);
      EXPECT_EQ(read.error, 0);
      EXPECT_TRUE(read.text == Text(bytes)) << bytes << " through rooms of " << room;
    }
  }
}

// The descriptor is not readable then, and whoever waits for it would wait for ever.
TEST(SoftRecordsTest, AReaderKnowsWhatItHolds) {
  const std::string wire = Wire(Text(100));
  Pair pair;
  SoftBlocks blocks;
  SoftRecordReader reader(Secret(), &blocks);
  EXPECT_FALSE(reader.HoldsBytes());
  const auto receive = [&](size_t room) {
    std::string place(room, 0);
    const iovec into = {place.data(), room};
    return reader.Receive(pair.fd[1], &into, 1);
  };
  ASSERT_EQ(send(pair.fd[0], wire.data(), wire.size() - 1, 0),
            static_cast<ssize_t>(wire.size()) - 1);
  EXPECT_LT(receive(10), 0);
  EXPECT_FALSE(reader.HoldsBytes()) << "its last byte is missing";
  ASSERT_EQ(send(pair.fd[0], &wire.back(), 1, 0), 1);
  for (size_t got = 10; got <= 100; got += 10) {
    EXPECT_EQ(receive(10), 10);
    EXPECT_EQ(reader.HoldsBytes(), got < 100) << got;
  }
  std::string wrong = Wire(Text(100));
  wrong.back() ^= 1;
  ASSERT_EQ(send(pair.fd[0], wrong.data(), wrong.size(), 0), static_cast<ssize_t>(wrong.size()));
  EXPECT_LT(receive(10), 0);
  EXPECT_TRUE(reader.HoldsBytes()) << "the error is to be told again";
}

ssize_t ReceiveByte(SoftRecordReader* reader, int fd) {
  char byte;
  const iovec into = {&byte, 1};
  return reader->Receive(fd, &into, 1);
}

TEST(SoftRecordsTest, WhatAnEarlierCallLeftInErrnoSaysNothing) {
  const std::string wire = Wire("x");
  Pair pair;
  SoftBlocks blocks;
  SoftRecordReader reader(Secret(), &blocks);
  ASSERT_EQ(send(pair.fd[0], wire.data(), wire.size(), 0), static_cast<ssize_t>(wire.size()));
  errno = EINTR;
  EXPECT_EQ(ReceiveByte(&reader, pair.fd[1]), 1);
}

TEST(SoftRecordsTest, AReaderSaysWhyTheSocketFailed) {
  Pair pair;
  SoftBlocks blocks;
  SoftRecordReader reader(Secret(), &blocks);
  EXPECT_EQ(ReceiveByte(&reader, pair.fd[1]), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(send(pair.fd[1], "x", 1, 0), 1);
  close(std::exchange(pair.fd[0], -1));  // Unread bytes make it a reset.
  EXPECT_EQ(ReceiveByte(&reader, pair.fd[1]), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(SoftRecordsTest, AReaderThatGoesGivesItsMemoryBack) {
  const std::string wire = Wire("x");
  Pair pair;
  SoftBlocks blocks;
  constexpr size_t kEnough = 1 << 20;
  void* const block = blocks.Take(kEnough);
  blocks.Give(block);
  {
    SoftRecordReader reader(Secret(), &blocks);
    ASSERT_EQ(send(pair.fd[0], wire.data(), 3, 0), 3);
    EXPECT_EQ(ReceiveByte(&reader, pair.fd[1]), -1);  // It holds a part of a record.
  }
  EXPECT_EQ(blocks.Take(kEnough), block);
  blocks.Give(block);
}

TEST(SoftRecordsTest, AWriterThatGoesGivesItsMemoryBack) {
  Pair pair;
  SoftBlocks blocks;
  constexpr size_t kEnough = 1 << 20;
  void* const block = blocks.Take(kEnough);
  blocks.Give(block);
  const std::string text = Text(8 << 20);
  const iovec piece = {const_cast<char*>(text.data()), text.size()};
  {
    SoftRecordWriter writer(Secret(), &blocks);
    ASSERT_GT(writer.Send(pair.fd[0], &piece, 1), 0);
    ASSERT_TRUE(writer.has_unsent());
  }
  EXPECT_EQ(blocks.Take(kEnough), block);
  blocks.Give(block);
}

TEST(SoftRecordsTest, AWriterWithoutRoomTakesNothing) {
  Pair pair;
  SoftBlocks blocks;
  SoftRecordWriter writer(Secret(), &blocks);
  std::string text = Text(8 << 20);
  const iovec piece = {text.data(), text.size()};
  EXPECT_LT(writer.Send(pair.fd[0], &piece, 1), static_cast<ssize_t>(text.size()));
  ASSERT_TRUE(writer.has_unsent());
  EXPECT_EQ(writer.Send(pair.fd[0], &piece, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(SoftRecordsTest, KeysChangeBetweenRecords) {
  const std::string once = Wire(Text(300'000));
  const std::string often = Wire(Text(300'000), 2);
  EXPECT_GT(often.size(), once.size());
  EXPECT_TRUE(ReadAll(often).text == Text(300'000));
}

TEST(SoftRecordsTest, WhoChangesTheWireDeliversNothingWrong) {
  const std::string text = Text(40'000);
  const std::string wire = Wire(text);
  const size_t first = 5 + (static_cast<uint8_t>(wire[3]) << 8 | static_cast<uint8_t>(wire[4]));
  std::vector<std::string> edited;
  for (size_t at = 0; at < wire.size(); at += at < 64 ? 1 : 499) {
    edited.push_back(wire);
    edited.back()[at] = static_cast<char>(edited.back()[at] ^ 1);
  }
  edited.push_back(wire.substr(first));                                     // One is taken out,
  edited.push_back(wire.substr(0, first) + wire);                           // comes twice,
  edited.push_back(wire.substr(first, first) + wire.substr(0, first));      // in another order,
  edited.push_back(wire.substr(0, first) + std::string(200, 'x'));          // is made up.
  edited.push_back(std::string("\x15\x03\x03\x00\x02\x01\x00", 7) + wire);  // An alert,
  edited.push_back(std::string("\x14\x03\x03\x00\x01\x01", 6) + wire);      // a change of ciphers.
  edited.push_back(std::string("\x17\x03\x03\xff\xff", 5) + std::string(70'000, 'x'));
  for (size_t i = 0; i < edited.size(); ++i) {
    const Read read = ReadAll(edited[i]);
    EXPECT_TRUE(text.compare(0, read.text.size(), read.text) == 0) << "edit " << i;
    EXPECT_LT(read.text.size(), text.size()) << "edit " << i;
    // A record whose length grew waits for bytes that never come.
    if (read.error == 0) continue;
    EXPECT_EQ(read.error, EPROTO) << "edit " << i;
  }
  for (size_t cut : {size_t{3}, first - 1, first, wire.size() - 1}) {
    const Read read = ReadAll(wire.substr(0, cut));
    EXPECT_EQ(read.error, 0) << "who waits for more learns that it has ended";
    EXPECT_LT(read.text.size(), text.size());
  }
}

// The other end is OpenSSL and nothing of ours, so what we make is TLS 1.3.
class OpenSslPeer {
 public:
  explicit OpenSslPeer(int fd) : context_(SSL_CTX_new(TLS_method())), ssl_(nullptr) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(context_, 0);
    SSL_CTX_set_psk_server_callback(
        context_, [](SSL*, const char*, unsigned char* key, unsigned) -> unsigned {
          memset(key, 9, sizeof(Token));
          return sizeof(Token);
        });
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd);
    SSL_set_accept_state(ssl_);
  }
  ~OpenSslPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL* ssl() { return ssl_; }

 private:
  SSL_CTX* const context_;
  SSL* ssl_;
};

TEST(SoftRecordsTest, SpeaksTls13WithOpenSsl) {
  Pair pair;
  OpenSslPeer peer(pair.fd[1]);
  const auto tls = SoftTls::Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  Token token;
  token.fill(9);
  const auto session = (*tls)->Dial(pair.fd[0], 1, token);
  const std::string text = Text(30'000);
  std::string heard(text.size(), '\0');
  size_t sent = 0;
  size_t got = 0;
  for (int i = 0; i < 10'000 && got < text.size(); ++i) {
    const iovec piece = {const_cast<char*>(text.data()) + sent, text.size() - sent};
    const ssize_t more = session->Send(&piece, 1);
    if (more > 0) sent += static_cast<size_t>(more);
    const int some = SSL_read(peer.ssl(), &heard[got], static_cast<int>(text.size() - got));
    if (some > 0) got += static_cast<size_t>(some);
  }
  EXPECT_TRUE(heard == text);
  EXPECT_STREQ(SSL_get_version(peer.ssl()), "TLSv1.3");
  // Back, with a change of the key between.
  ASSERT_EQ(SSL_write(peer.ssl(), text.data(), 20'000), 20'000);
  ASSERT_EQ(SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
  ASSERT_EQ(SSL_write(peer.ssl(), text.data() + 20'000, 10'000), 10'000);
  std::string back(text.size(), '\0');
  for (size_t have = 0; have < back.size();) {
    const iovec place = {&back[have], back.size() - have};
    const ssize_t some = session->Receive(&place, 1);
    ASSERT_GT(some, 0) << strerror(errno);
    have += static_cast<size_t>(some);
  }
  EXPECT_TRUE(back == text);
}

// Whoever is on the wire answers the dial himself, with a certificate of his own.
TEST(SoftRecordsTest, WhoDoesNotKnowTheTokenCannotAnswerADial) {
  Pair pair;
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  ASSERT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, pair.fd[1]);
  SSL_set_accept_state(ssl);

  const auto tls = SoftTls::Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  Token token;
  token.fill(9);
  const auto session = (*tls)->Dial(pair.fd[0], 1, token);
  char secret[] = "the peer's token";
  char heard[64];
  ssize_t sent = -1;
  int got = -1;
  for (int i = 0; i < 100 && sent < 0 && got <= 0; ++i) {
    const iovec piece = {secret, sizeof(secret)};
    sent = session->Send(&piece, 1);
    const int error = errno;
    got = SSL_read(ssl, heard, sizeof(heard));
    if (sent < 0 && error != EAGAIN) {
      EXPECT_EQ(error, EPROTO);
      break;
    }
  }
  EXPECT_LT(sent, 0);
  EXPECT_LE(got, 0);
  SSL_free(ssl);
  X509_free(certificate);
  EVP_PKEY_free(key);
  SSL_CTX_free(context);
}

// Each costs the receiver a derivation, and the sender 27 bytes.
TEST(SoftRecordsTest, KeysThatChangeForNothingEndTheConnection) {
  Pair pair;
  OpenSslPeer peer(pair.fd[1]);
  const auto tls = SoftTls::Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  Token token;
  token.fill(9);
  const auto session = (*tls)->Dial(pair.fd[0], 1, token);
  char byte = 'x';
  const iovec piece = {&byte, 1};
  int got = -1;
  for (int i = 0; i < 100 && got <= 0; ++i) {
    (void)session->Send(&piece, 1);
    got = SSL_read(peer.ssl(), &byte, 1);
  }
  ASSERT_EQ(got, 1);
  for (const int updates : {2, 3}) {
    for (int i = 0; i < updates; ++i) {
      ASSERT_EQ(SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(peer.ssl()), 1);
    }
    ASSERT_EQ(SSL_write(peer.ssl(), &byte, 1), 1);
    EXPECT_EQ(session->Receive(&piece, 1), updates == 2 ? 1 : -1) << updates;
  }
  EXPECT_EQ(errno, EPROTO);
}

// The two directions share nothing.
TEST(SoftRecordsTest, OneThreadSendsWhileAnotherReceives) {
  Pair pair;
  const auto tls = SoftTls::Create();
  Token token;
  token.fill(9);
  const std::unique_ptr<SoftTlsSession> ends[2] = {
      (*tls)->Dial(pair.fd[0], 1, token),
      (*tls)->Accept(pair.fd[1], [&](uint32_t) { return token; })};
  const std::string text = Text(4 << 20);
  const auto hello = [&](int end, bool sends) {
    char byte = 'x';
    const iovec piece = {&byte, 1};
    return sends ? ends[end]->Send(&piece, 1) == 1 : ends[end]->Receive(&piece, 1) == 1;
  };
  bool sent = false;
  for (int i = 0; i < 100 && !hello(1, false); ++i) sent = sent || hello(0, true);
  std::vector<std::thread> threads;
  for (int end : {0, 1}) {
    threads.emplace_back([&, end] {
      for (size_t at = 0; at < text.size() || ends[end]->HasUnsent();) {
        const iovec piece = {const_cast<char*>(text.data()) + at, text.size() - at};
        const ssize_t some = ends[end]->Send(&piece, 1);
        if (some > 0) at += static_cast<size_t>(some);
      }
    });
    threads.emplace_back([&, end] {
      std::string back(text.size(), '\0');
      for (size_t have = 0; have < back.size();) {
        const iovec place = {&back[have], back.size() - have};
        const ssize_t some = ends[end]->Receive(&place, 1);
        if (some > 0) have += static_cast<size_t>(some);
        if (some == 0 || (some < 0 && errno != EAGAIN)) break;
      }
      EXPECT_TRUE(back == text);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SoftRecordsTest, AStrangerMaySayOnlySoMuch) {
  for (const size_t content : {16u << 10, 1000u}) {
    Pair pair;
    const auto tls = SoftTls::Create();
    const auto session = (*tls)->Accept(pair.fd[1], [](uint32_t) { return absl::nullopt; });
    // A greeting that claims to be as long as one may be, in large records or in many small ones.
    std::string record("\x16\x03\x01__\x01\x01\xff\x00", 9);
    record[3] = static_cast<char>(content >> 8);
    record[4] = static_cast<char>(content & 255);
    record.resize(5 + content, 'x');
    size_t said = 0;
    bool ended = false;
    for (int i = 0; i < 100 && !ended; ++i) {
      const ssize_t more =
          send(pair.fd[0], record.data(), record.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (more > 0) said += static_cast<size_t>(more);
      char byte;
      const iovec place = {&byte, 1};
      ended = session->Receive(&place, 1) < 0 && errno == EPROTO;
    }
    EXPECT_TRUE(ended) << "it still listens after " << said << " bytes";
  }
}

TEST(SoftRecordsTest, TheKernelGetsTheKeysAsItWantsThem) {
  SoftRecordKeys keys(Secret());
  keys.Advance();
  const tls12_crypto_info_aes_gcm_128 info = KernelKeys(keys);
  EXPECT_EQ(info.info.version, 0x0304);
  EXPECT_EQ(info.info.cipher_type, 51);
  EXPECT_EQ(memcmp(info.key, keys.key(), 16), 0);
  EXPECT_EQ(memcmp(info.salt, keys.nonce(), 4), 0);
  EXPECT_EQ(memcmp(info.iv, keys.nonce() + 4, 8), 0);
  const unsigned char one[8] = {0, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_EQ(memcmp(info.rec_seq, one, 8), 0);
  Pair pair;
  EXPECT_FALSE(KernelSends(pair.fd[0], &keys)) << "no Unix socket has TLS in the kernel";
}

// Each call has a record, and one more for every 16 KiB.
TEST(SoftRecordsTest, TheKernelSealsSoManyRecordsWithItsKey) {
  Pair pair;
  SoftKernelSender sender(5);
  char bytes[20 << 10] = {};
  for (const size_t size : {size_t{1}, sizeof(bytes), size_t{1}, size_t{1}}) {
    const iovec piece = {bytes, size};
    ASSERT_EQ(sender.Send(pair.fd[0], &piece, 1), static_cast<ssize_t>(size));
  }
  const iovec piece = {bytes, 1};
  EXPECT_EQ(sender.Send(pair.fd[0], &piece, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

// What the socket has no room for was not sealed.
TEST(SoftRecordsTest, TheKernelSealsNothingThatDoesNotGo) {
  Pair pair;
  SoftKernelSender sender(2);
  std::string bytes(16 << 20, '\0');
  const iovec all = {&bytes[0], bytes.size()};
  while (send(pair.fd[0], &bytes[0], bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sender.Send(pair.fd[0], &all, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
}

}  // namespace
}  // namespace tryst
