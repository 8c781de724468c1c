// A libamdhip64.so that notes what it is asked for.
#include <stdio.h>
#include <string.h>

static char notes[1 << 16];
#define NOTE(...) sprintf(notes + strlen(notes), __VA_ARGS__)

const char* fake_notes(void) { return notes; }
const char* hipGetErrorString(int error) { return error == 500 ? "not found" : "invalid value"; }
int hipModuleLoadData(void** module, const void* image) {
  NOTE("load %.3s\n", (const char*)image + 1);
  return *module = (void*)0x1100000000, 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  NOTE("kernel %s of %p\n", name, module);
  return *function = (void*)0x2200000000, strcmp(name, "absent") ? 0 : 500;
}
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** parameters,
                          void** extra) {
  NOTE("launch %p grid %u %u %u block %u %u %u shared %u stream %p extra %p:", f, gx, gy, gz, bx,
       by, bz, shared, stream, (void*)extra);
  for (int i = 0; i < 3; ++i) NOTE(" %llx", *(unsigned long long*)parameters[i]);
  NOTE(" %d %g\n", *(int*)parameters[3], *(float*)parameters[4]);
  return gx == 4 ? 1 : 0;
}
