/* NVIDIA's management library for a machine with two GPUs, of which only the first counts its energy. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } Memory;
static int gpus[2] = {0, 1};
static unsigned long long millijoules = 5000000;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } Process;
enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = &gpus[index]; return OK; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) {
  snprintf(text, size, "NVIDIA A100-SXM4-40GB");
  return OK;
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) {
  snprintf(text, size, "GPU-%d5a2", *(int *)gpu);
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *gpu, Memory *memory) {
  memset(memory, 0, sizeof *memory);
  memory->total = 42949672960ULL;
  return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) { *major = 8; *minor = 0; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts) { *milliwatts = 400000; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *gpu, unsigned *milliwatts) {
  *milliwatts = 500000;
  return OK;
}
int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *megahertz) {
  *megahertz = kind == 1 ? 1410 : 1215;
  return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *energy) {
  if (*(int *)gpu) return NOT_SUPPORTED;
  *energy = millijoules += 2500;
  return OK;
}
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *megahertz) { *megahertz = 705; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *reasons) { *reasons = 0x4; return OK; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) {
  if (*(int *)gpu) return NOT_SUPPORTED;
  *celsius = 71;
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *processes) {
  if (!processes) { *count = 2; return INSUFFICIENT_SIZE; }
  memset(processes, 0, 2 * sizeof *processes);
  processes[0].pid = getpid();
  processes[1].pid = 1;
  *count = 2;
  return OK;
}
const char *nvmlErrorString(int code) { return "not supported"; }
