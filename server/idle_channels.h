#ifndef TRYST_SERVER_IDLE_CHANNELS_H_
#define TRYST_SERVER_IDLE_CHANNELS_H_

#include <memory>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"
#include "server/membership.h"

namespace tryst {

// Every `period` lets go of the gRPC channels that nobody has asked for since the last
// time: most peers are called to open the data plane, and then no more. Its arguments
// outlive it.
class IdleChannels {
 public:
  IdleChannels(absl::Duration period, Membership* members, Alarms* alarms);
  ~IdleChannels();

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_IDLE_CHANNELS_H_
