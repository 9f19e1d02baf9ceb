// A libpmix whose PMIx_Init never returns, to be preloaded.
#include <unistd.h>

extern "C" {
__attribute__((visibility("default"))) int PMIx_Init(void*, void*, unsigned long) {
  for (;;) pause();
}
__attribute__((visibility("default"))) const char* PMIx_Get_version() { return "9.9.9 that hangs"; }
}
