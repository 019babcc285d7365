#include "server/status/status_page.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// What the page at 127.0.0.1:`port` answers; empty: nobody is there.
std::string Get(const std::string& address, const std::string& url) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0) {
    const std::string request =
        absl::StrCat("GET ", url, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    char part[4096];
    for (ssize_t got; (got = recv(fd, part, sizeof(part), 0)) > 0;) answer.append(part, got);
  }
  close(fd);
  return answer;
}

TEST(StatusPageTest, AnswersUntilItGoes) {
  StatusPageOptions options;
  options.listen = "127.0.0.1:0";
  auto page = StatusPage::Start(options, nullptr,
                                [](absl::string_view url, std::string* type, std::string* body) {
                                  *type = "text/plain";
                                  *body = "all is well";
                                  return url == "/here";
                                });
  ASSERT_TRUE(page.ok()) << page.status();
  const std::string address = (*page)->address();
  EXPECT_TRUE(absl::StrContains(Get(address, "/here"), "all is well"));
  EXPECT_TRUE(absl::StartsWith(Get(address, "/there"), "HTTP/1.1 404"));
  page->reset();
  EXPECT_EQ(Get(address, "/here"), "");
}

TEST(StatusPageTest, AnAddressIsTakenOnce) {
  StatusPageOptions options;
  options.listen = "127.0.0.1:0";
  const auto nothing = [](absl::string_view, std::string*, std::string*) { return false; };
  auto page = StatusPage::Start(options, nullptr, nothing);
  ASSERT_TRUE(page.ok()) << page.status();
  options.listen = (*page)->address();
  EXPECT_EQ(StatusPage::Start(options, nullptr, nothing).status().code(),
            absl::StatusCode::kUnavailable);
  page->reset();
  EXPECT_TRUE(StatusPage::Start(options, nullptr, nothing).ok());
}

}  // namespace
}  // namespace tryst
