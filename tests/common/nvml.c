// A driver's management library for machines without one, with as many GPUs as GPU_COUNT says, or one. GPU `n` is `GPU-<n>a5f0000` and has `8 + n` GiB.
// Everything that it does not answer counts as not told.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;

static unsigned count_of_gpus(void) {
    const char *count = getenv("GPU_COUNT");
    return count ? strtoul(count, NULL, 10) : 1;
}
// A handle is the number of the GPU and one more, so that none is NULL.
static unsigned number_of(void *device) { return (unsigned)(unsigned long)device - 1; }
static void *handle_of(unsigned index) { return (void *)(unsigned long)(index + 1); }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = count_of_gpus(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = handle_of(index); return index < count_of_gpus() ? 0 : 2; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { snprintf(text, size, "GPU-%ua5f0000", number_of(device)); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char own[32];
    for (unsigned index = 0; index < count_of_gpus(); index++) {
        nvmlDeviceGetUUID(*device = handle_of(index), own, sizeof own);
        if (!strcmp(own, uuid)) return 0;
    }
    return 6;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Test GPU", size); return 0; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = number_of(device); return 0; }

/* As many bytes are free as the file GPU_FREE says, which has a number for each GPU, or all. */
int nvmlDeviceGetMemoryInfo_v2(void *device, memory *info) {
    const char *name = getenv("GPU_FREE");
    FILE *file = name ? fopen(name, "r") : NULL;
    info->total = info->free = (8ull + number_of(device)) << 30;
    for (unsigned index = 0; file && index <= number_of(device); index++)
        if (fscanf(file, "%llu", &info->free) != 1) info->free = 0;
    if (file) fclose(file);
    info->used = info->total - info->free;
    info->reserved = 0;
    return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, DRIVER, size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return 0; }

/* Those of the file GPU_PROCESSES: lines with the number of a process, bytes, and the number of the GPU, 0 where there is none. Each look at some adds a
   letter to the file GPU_LOOKS. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    const char *name = getenv("GPU_PROCESSES"), *looks = getenv("GPU_LOOKS");
    FILE *file = name ? fopen(name, "r") : NULL;
    char line[128];
    unsigned n = 0;
    while (file && fgets(line, sizeof line, file)) {
        process next = {0};
        unsigned index = 0;
        if (sscanf(line, "%u %llu %u", &next.pid, &next.used, &index) < 2 || index != number_of(device)) continue;
        if (processes && n < *count) processes[n] = next;
        n++;
    }
    if (file) fclose(file);
    if (processes && looks && (file = fopen(looks, "a"))) {
        fputc('x', file);
        fclose(file);
    }
    if (!processes) return *count = n, n ? 7 : 0;
    if (n < *count) *count = n;
    return 0;
}
