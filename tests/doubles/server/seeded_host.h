#ifndef TRYST_TESTS_DOUBLES_SERVER_SEEDED_HOST_H_
#define TRYST_TESTS_DOUBLES_SERVER_SEEDED_HOST_H_

#include <map>
#include <string>

#include "server/doctor/host.h"

namespace tryst {

// For tests: a machine made of files in a folder of its own and of prepared answers. It is healthy
// until a test seeds a fault.
class SeededHost {
 public:
  SeededHost();
  ~SeededHost();

  // Each creates the folders that it needs.
  void Write(const std::string& path, const std::string& text);
  void Link(const std::string& path, const std::string& target);
  void Remove(const std::string& path);

  // Adds a ConnectX with one active RoCE port on eth0, and everything that it needs.
  void AddRdmaDevice();
  // Adds an NVIDIA GPU below the same PCIe switch, with an open kernel module.
  void AddGpu();
  // Adds mutual TLS for /job:worker/task:0 of "tryst", with files in /etc/tryst.
  void AddCertificates(const std::string& uri);

  Host Make() const { return Host(root_, environment, config, calls); }
  const std::string& root() const { return root_; }

  std::map<std::string, std::string> environment;
  ServerConfig config;
  HostCalls calls;

 private:
  std::string root_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SERVER_SEEDED_HOST_H_
