#include "server/members/membership.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kPeer[] = "/job:ps/replica:0/task:0";

// A member of an open cluster, at `address`.
class Connections {
 public:
  explicit Connections(const std::string& address)
      : members_(/*open=*/true, [](const std::string&, const std::string& at) {
          grpc::ChannelArguments args;
          args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
          return grpc::CreateCustomChannel(at, grpc::InsecureChannelCredentials(), args);
        }) {
    Member member;
    member.worker = kPeer;
    member.address = address;
    member.incarnation = 7;
    EXPECT_TRUE(members_.Announce(member).ok());
  }
  std::shared_ptr<grpc::Channel> Channel() { return *members_.ChannelTo(kPeer); }
  Membership& members() { return members_; }

 private:
  Membership members_;
};

TEST(Membership, TheSecondCallInARowWithoutAnAnswerHasTheNextConnectAnew) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  grpc::CallbackGenericService service;
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  Connections connections(absl::StrCat("127.0.0.1:", port));
  const std::shared_ptr<grpc::Channel> first = connections.Channel();
  ASSERT_TRUE(first->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  connections.members().NoteNoAnswer(kPeer);
  EXPECT_EQ(connections.Channel(), first);
  connections.members().NoteIncarnation(kPeer, 7);  // It has answered.
  connections.members().NoteNoAnswer(kPeer);
  EXPECT_EQ(connections.Channel(), first);
  connections.members().NoteNoAnswer(kPeer);
  EXPECT_NE(connections.Channel(), first);
}

TEST(Membership, WithNewCertificatesTheNextConnectAnew) {
  Connections connections("127.0.0.1:1");
  const std::shared_ptr<grpc::Channel> first = connections.Channel();
  EXPECT_EQ(connections.Channel(), first);
  connections.members().RenewChannels();
  const std::shared_ptr<grpc::Channel> second = connections.Channel();
  EXPECT_NE(second, first);
  EXPECT_EQ(connections.Channel(), second) << "once is enough";
}

TEST(Membership, WhatIsNotConnectedGoesOnTryingToConnect) {
  Connections connections("127.0.0.1:1");
  const std::shared_ptr<grpc::Channel> first = connections.Channel();
  for (int i = 0; i < 5; ++i) connections.members().NoteNoAnswer(kPeer);
  EXPECT_EQ(connections.Channel(), first);
  connections.members().NoteNoAnswer("/job:nobody/replica:0/task:0");
}

}  // namespace
}  // namespace tryst
