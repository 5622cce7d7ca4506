/* NVIDIA's driver for a machine with GPUs as the environment describes them: the newest CUDA that it knows, as 12020,
   the error of cuInit, and the compute capability of its two GPUs, as 80. */
#include <stdlib.h>
#include <unistd.h>

static int from_environment(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *version) { *version = from_environment("STAND_IN_CUDA", 12090); return 0; }
int cuInit(unsigned flags) {
  if (from_environment("STAND_IN_HANGS", 0)) sleep(60);
  return from_environment("STAND_IN_ERROR", 0);
}
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int capability = from_environment("STAND_IN_CAPABILITY", 80);
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_NOT_PERMITTED";
  return 0;
}
