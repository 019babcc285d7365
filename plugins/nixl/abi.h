#ifndef TRYST_PLUGINS_NIXL_ABI_H_
#define TRYST_PLUGINS_NIXL_ABI_H_

#include <pthread.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// The interface between NIXL's agent and a back end, version 1: the layouts, the order of virtual
// functions and the numbers of NIXL 1.5.1, in our own words. The agent reads members of the objects
// below by itself and calls by the place of a function, so every member and every function is here
// in its order, also those that the plug-in has no use for. Both sides share libstdc++'s new ABI.
namespace tryst::nixl::abi {

inline constexpr int kVersion = 1;

enum Memory : int { kDram = 0, kVram = 1, kBlock = 2, kObject = 3, kFile = 4 };
enum Operation : int { kRead = 0, kWrite = 1 };
enum Status : int {
  kInProgress = 1,
  kSuccess = 0,
  kNotPosted = -1,
  kInvalidParameter = -2,
  kBackendFailed = -3,
  kNotFound = -4,
  kMismatch = -5,
  kNotAllowed = -6,
  kStillActive = -7,
  kUnknown = -8,
  kNotSupported = -9,
  kRemoteGone = -10,
  kCancelled = -11,
  kNoTelemetry = -12,
};
enum class Locking : int { kNone = 0, kStrict = 1, kReadWrite = 2 };
enum class CostMethod : int { kAnalytical = 0 };

using Parameters = std::unordered_map<std::string, std::string>;
using Memories = std::vector<Memory>;
using Notifications = std::vector<std::pair<std::string, std::string>>;  // Agent, message.

// What a back end keeps of memory, of its own agent's or of another's.
class MemoryHandle {
 public:
  explicit MemoryHandle(bool is_own) : is_own_(is_own) {}
  virtual ~MemoryHandle() = default;

 protected:
  bool is_own_;
};

class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
};

struct Span {  // It lies in memory that is registered.
  uintptr_t address;
  size_t bytes;
  uint64_t device;
  MemoryHandle* memory;
};
struct Blob {  // Memory with what its owner has published of it.
  uintptr_t address;
  size_t bytes;
  uint64_t device;
  std::string text;
};
struct RemoteSpan {
  Span span;
  std::string agent;
};

// The agent makes these and we only read them, so its virtual functions do not matter, but that
// there are some.
template <typename T>
class List {
 public:
  explicit List(Memory kind) : kind(kind) {}
  virtual ~List() = default;
  Memory kind;
  std::vector<T> items;
};
using Spans = List<Span>;

struct PostOptions {
  std::string notification;
  bool has_notification = false;
  std::string custom;
};

struct AgentOptions;  // Nothing of it is used.

struct EngineOptions {
  std::string agent;
  std::string type;
  Parameters* parameters = nullptr;
  bool wants_progress_thread = false;
  uint64_t progress_delay_us = 0;
  Locking locking = Locking::kNone;
  bool wants_telemetry = false;
};

struct TelemetryEvent;

class Engine {
 private:  // The agent reads it.
  std::string type_;
  Parameters parameters_;
  std::vector<TelemetryEvent*> events_;  // Always empty.
  [[maybe_unused]] pthread_mutex_t events_mu_ =
      PTHREAD_MUTEX_INITIALIZER;  // To the agent it is a std::mutex.

 protected:
  bool failed_ = false;  // Then the agent gives the engine back at once.
  const std::string agent_;
  const bool wants_telemetry_;

 public:
  explicit Engine(const EngineOptions& options)
      : type_(options.type),
        parameters_(options.parameters == nullptr ? Parameters() : *options.parameters),
        agent_(options.agent),
        wants_telemetry_(options.wants_telemetry) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;
  bool failed() const { return failed_; }

  virtual bool SupportsRemote() const = 0;
  virtual bool SupportsLocal() const = 0;
  virtual bool SupportsNotifications() const = 0;
  virtual Memories SupportedMemories() const = 0;
  virtual Status Register(const Blob& memory, const Memory& kind, MemoryHandle*& handle) = 0;
  virtual Status Deregister(MemoryHandle* handle) = 0;
  virtual Status Connect(const std::string& agent) = 0;
  virtual Status Disconnect(const std::string& agent) = 0;
  virtual Status Unload(MemoryHandle* handle) = 0;
  virtual Status Prepare(const Operation& operation, const Spans& mine, const Spans& theirs,
                         const std::string& agent, RequestHandle*& handle,
                         const PostOptions* options) const = 0;
  virtual Status Post(const Operation& operation, const Spans& mine, const Spans& theirs,
                      const std::string& agent, RequestHandle*& handle,
                      const PostOptions* options) const = 0;
  virtual Status Check(RequestHandle* handle) const = 0;
  virtual Status Release(RequestHandle* handle) const = 0;
  virtual Status PrepareRemoteView(const List<RemoteSpan>& memory, void*& view,
                                   const PostOptions* options) const = 0;
  virtual Status PrepareView(const Spans& memory, void*& view,
                             const PostOptions* options) const = 0;
  virtual void ReleaseView(void* view) const = 0;
  virtual Status PublicData(const MemoryHandle* handle, std::string& text) const = 0;
  virtual Status ConnectionInfo(std::string& text) const = 0;
  virtual Status LoadConnectionInfo(const std::string& agent, const std::string& text) = 0;
  virtual Status LoadRemote(const Blob& memory, const Memory& kind, const std::string& agent,
                            MemoryHandle*& handle) = 0;
  virtual Status LoadOwn(MemoryHandle* handle, MemoryHandle*& same) = 0;
  virtual Status TakeNotifications(Notifications& taken) = 0;
  virtual Status Notify(const std::string& agent, const std::string& message) const = 0;
  virtual Status Query(const List<Blob>& memory,
                       std::vector<std::optional<Parameters>>& answers) const = 0;
  virtual Status EstimateCost(const Operation& operation, const Spans& mine, const Spans& theirs,
                              const std::string& agent, RequestHandle* const& handle,
                              std::chrono::microseconds& duration,
                              std::chrono::microseconds& margin, CostMethod& method,
                              const AgentOptions* options) const = 0;
};

// What nixl_plugin_init() returns.
struct Plugin {
  int version;
  Engine* (*create)(const EngineOptions* options);
  void (*destroy)(Engine* engine);
  const char* (*name)();
  const char* (*release)();
  Parameters (*options)();
  Memories (*memories)();
};

}  // namespace tryst::nixl::abi

#endif  // TRYST_PLUGINS_NIXL_ABI_H_
