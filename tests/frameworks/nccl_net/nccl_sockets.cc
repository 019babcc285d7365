// Makes a plugin of NCCL's own socket transport, so that the suite and the bench can run on it.
// This file replaces those parts of NCCL and of CUDA that net_socket.cc and its helpers call; none
// of them moves a byte. nccl_sockets.sh compiles it with NCCL's sources.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "plugins/nccl/abi.h"

// NCCL's names and types from here on.
enum ncclDebugLogLevel : int {};
enum ncclResult_t : int {};
enum cudaError_t : int {};

extern tryst::nccl::TableV12 ncclNetSocket;
extern "C" {
extern tryst::nccl::TableV12 ncclNetPlugin_v12;
}

int ncclDebugLevel = tryst::nccl::kLogInformation;
uint64_t ncclDebugMask = ~uint64_t{0};
thread_local int ncclDebugNoWarn = 0;

namespace {

tryst::nccl::LogFunction log_function = nullptr;

tryst::nccl::Result Init(void** context, uint64_t comm_id, tryst::nccl::CommConfig* config,
                         tryst::nccl::LogFunction log, tryst::nccl::ProfilerFunction profiler) {
  log_function = log;
  return ncclNetSocket.init(context, comm_id, config, log, profiler);
}

// The table is NCCL's, except for its logger.
__attribute__((constructor)) void Fill() {
  ncclNetPlugin_v12 = ncclNetSocket;
  ncclNetPlugin_v12.init = &Init;
}

}  // namespace

tryst::nccl::TableV12 ncclNetPlugin_v12;

void ncclDebugLogInternal(ncclDebugLogLevel level, unsigned long flags, const char* file,
                          const char*, int line, const char* format, ...) {
  if (log_function == nullptr) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  log_function(level, flags, file, line, "%s", text);
}

void ncclInitEnv() {}
const char* ncclEnvPluginGetEnv(const char* name) { return getenv(name); }
void ncclSetThreadName(std::thread&, const char*, ...) {}
ncclResult_t ncclParamSetCpuStackSize() { return ncclResult_t(); }

extern "C" {
bool ncclParamIsCacheDisabled(const char*) { return false; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaError_t();
}
cudaError_t cudaGetLastError() { return cudaError_t(); }
const char* cudaGetErrorString(cudaError_t) { return "there is no CUDA"; }
}
