// CUDA's driver without a GPU: the few functions that orchestra-cuda and clients/python call. Its memory is the host's, and a kernel is a shared library that
// nvrtc.c has made. CUDA_FAKE_MEMORY: bytes of the device. CUDA_FAKE_LOST: a file; the first process that launches for the
// 20th time removes it, and has lost the device for good.
// CUDA_FAKE_PAGEABLE: no memory can be page-locked. CUDA_FAKE_NO_READ_ONLY: none that the device would only read.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int sticky, launches;
static size_t taken;

int cuInit(unsigned flags) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && *visible ? 0 : 100;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) {
    *count = 1;
    for (const char *at = getenv("CUDA_VISIBLE_DEVICES"); *at; at++) *count += *at == ',';
    return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &sticky; return 0; }
int cuCtxGetCurrent(void **context) { *context = NULL; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &sticky; return 0; }

// The image is the path of a library.
int cuModuleLoadData(void **module, const void *image) {
    *module = dlopen(image, RTLD_NOW | RTLD_LOCAL);
    return *module ? 0 : 200;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = dlsym(module, name);
    return *function ? 0 : 500;
}

int cuMemAlloc_v2(unsigned long long *start, size_t bytes) {
    const char *all = getenv("CUDA_FAKE_MEMORY");
    if (all && bytes > strtoull(all, NULL, 10) - taken) return 2;
    void *memory = malloc(bytes);
    if (memory == NULL) return 2;
    memset(memory, 0xa5, bytes); // as memory of a device, it holds what others left
    taken += bytes;
    *start = (unsigned long long)memory;
    return 0;
}
int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t bytes, void *stream) {
    if (!sticky) memset((void *)to, byte, bytes);
    return sticky;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    if (!sticky) memcpy((void *)to, from, bytes);
    return sticky;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
    if (!sticky) memcpy(to, (void *)from, bytes);
    return sticky;
}
// What this process may not write to needs the flag 8, for memory that the device only reads.
int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    unsigned long long first, last, at = (unsigned long long)start;
    char line[512], rights[5];
    FILE *maps = fopen("/proc/self/maps", "r");
    int code = 1;
    while (code == 1 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %4s", &first, &last, rights) == 3 && first <= at && at + bytes <= last)
            code = rights[1] == 'w' || flags & 8 ? 0 : 801;
    fclose(maps);
    return getenv("CUDA_FAKE_PAGEABLE") || (flags & 8 && getenv("CUDA_FAKE_NO_READ_ONLY")) ? 801 : code;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
    const char *lost = getenv("CUDA_FAKE_LOST");
    if (sticky) return sticky;
    if (gx == 0 || bx == 0 || bx > 1024) return 1;
    if (lost && ++launches == 20 && unlink(lost) == 0) sticky = 700;
    else sticky = ((int (*)(void **, unsigned, unsigned))function)(arguments, gx, bx);
    return 0; // what goes wrong on a device is known later
}
int cuStreamSynchronize(void *stream) { return sticky; }
int cuCtxSynchronize(void) { return sticky; }

int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
    return 0;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == 2 ? "out of memory" : code == 700 ? "an illegal memory access was encountered" : code == 719 ? "unspecified launch failure" : "an error of the fake";
    return 0;
}
