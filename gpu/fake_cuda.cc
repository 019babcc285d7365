// A CUDA driver of two cards, for driver_test: what crosses the boundary is checked
// here. FAKE_CUDA_INIT is what cuInit returns.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

int cuInit(unsigned int flags) {
  const char* result = getenv("FAKE_CUDA_INIT");
  if (flags != 0) return 1;
  return result != nullptr ? atoi(result) : 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  if (error != 100) return 1;
  *text = "no CUDA-capable device is detected";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 40 + ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  snprintf(name, static_cast<size_t>(bytes), "Card %d", device);
  return 0;
}

int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", device);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 40 || device > 41) return 101;
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = static_cast<size_t>(device) << 30;
  return 0;
}

}  // extern "C"
