// A libcuda.so.1 that notes what it is asked for, to see what cuda-bindings makes of our calls.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long u64;
static char notes[1 << 16];
static void* handle;

const char* fake_notes(void) { return notes; }
#ifdef SILENT  // benchmarks/gpu_launch.py: what a launch costs without a driver
#define NOTE(...) (void)0
#else
#define NOTE(...) sprintf(notes + strlen(notes), __VA_ARGS__)
#endif

int cuGetProcAddress_v2(const char* symbol, void** function, int version, u64 flags, int* status) {
  (void)version; (void)flags;
  if (!handle) handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (!strcmp(symbol, "cuGetProcAddress")) symbol = "cuGetProcAddress_v2";  // from CUDA 12 on
  *function = dlsym(handle, symbol);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : 500;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int error, const char** text) {
  return *text = error == 1 ? "invalid argument" : "unknown", 0;
}
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuCtxGetCurrent(void** context) { return *context = 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  NOTE("context of %d retained\n", device);
  return *context = (void*)0x33, 0;
}
int cuCtxSetCurrent(void* context) {
  NOTE("context %p entered\n", context);
  return 0;
}
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d,
                      void* e, unsigned f) {
  (void)a; (void)b; (void)d; (void)e;
  NOTE("load %.5s %u %u\n", (const char*)code, c, f);
  return *library = (void*)0x11, 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  NOTE("kernel %s of %p\n", name, library);
  return *kernel = (void*)0x22, strcmp(name, "absent") ? 0 : 1;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  NOTE("attribute %d = %d of %p on %d\n", attribute, value, kernel, device);
  return 0;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  NOTE("launch %p grid %u %u %u block %u %u %u shared %u stream %p extra %p: %llx %d\n", f, gx, gy,
       gz, bx, by, bz, shared, stream, (void*)extra, *(u64*)parameters[0], *(int*)parameters[1]);
  return 0;
}
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct { int id; char pad[4]; unsigned value[16]; }* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const struct Config* c, void* f, void** parameters, void** extra) {
  NOTE("launch %p grid %u %u %u block %u %u %u shared %u stream %p with", f, c->grid[0],
       c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream);
  for (unsigned i = 0; i < c->count; ++i)
    NOTE(" %d: %u %u %u", c->attributes[i].id, c->attributes[i].value[0],
         c->attributes[i].value[1], c->attributes[i].value[2]);
  NOTE(" extra %p: %llx\n", (void*)extra, *(u64*)parameters[0]);
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const u64* extents,
                           const u64* strides, const unsigned* box, const unsigned* steps,
                           int interleave, int swizzle, int promotion, int fill) {
  NOTE("map (at a multiple of 128: %d) type %d rank %u at %p: %llu %llu / %llu / %u %u / %u %u / "
       "%d %d %d %d\n", (u64)map % 128 == 0, type, rank, address, extents[0], extents[1],
       strides[0], box[0], box[1], steps[0], steps[1], interleave, swizzle, promotion, fill);
  memset(map, 0x5a, 128);
  return 0;
}
