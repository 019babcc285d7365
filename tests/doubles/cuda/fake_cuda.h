#ifndef TRYST_TESTS_DOUBLES_CUDA_FAKE_CUDA_H_
#define TRYST_TESTS_DOUBLES_CUDA_FAKE_CUDA_H_

#include <dlfcn.h>

#include <cstdint>

// How a test controls the pretend driver, libfake_cuda.so, once it is loaded. Its GPUs work late
// and bit by bit, so code that does not wait reads old bytes. Its device memory is not mapped for
// the host, so a host access ends the process.
namespace tryst {

// Counts the calls that name no stream, and so mean the device's default one.
inline constexpr char kDefaultStream[] = "the default stream";

struct FakeCudaControl {
  // The next `times` calls of `name` return `result`; the first `after` of them work.
  void (*fail)(const char* name, int result, int times, int after);
  // One line for each call with wrong arguments so far; empty if there was none.
  const char* (*complaints)();
  // Calls that waited for a stream so far.
  int (*blocking_calls)();
  int (*calls)(const char* name);  // Or kDefaultStream.
  // While on, no stream does anything.
  void (*hold)(bool on);
  // Reads and writes device memory without any call of the driver.
  void (*peek)(uint64_t address, void* into, uint64_t bytes);
  void (*poke)(uint64_t address, const void* from, uint64_t bytes);
  // Device memory allocated and not freed.
  uint64_t (*allocated)();
  // Sets attribute `which` of every card.
  void (*set_attribute)(int which, int value);
  // While on, every stream captures a graph.
  void (*capture)(bool on);
};

// Null when the library cannot be loaded.
inline const FakeCudaControl* LoadFakeCuda(
    const char* path = "tests/doubles/cuda/libfake_cuda.so") {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  return static_cast<const FakeCudaControl*>(dlsym(handle, "fake_cuda_control"));
}

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_CUDA_FAKE_CUDA_H_
