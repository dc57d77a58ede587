// A driver's management library with one GPU, for machines that have none. Everything that it does not answer counts as not told.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, "GPU-0a5f0000", size); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Test GPU", size); return 0; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = 0; return 0; }

/* Of 8 GiB as many bytes are free as the file GPU_FREE says, or all. */
int nvmlDeviceGetMemoryInfo_v2(void *device, memory *info) {
    const char *name = getenv("GPU_FREE");
    FILE *file = name ? fopen(name, "r") : NULL;
    info->total = info->free = 8ull << 30;
    if (file && fscanf(file, "%llu", &info->free) != 1) info->free = 0;
    if (file) fclose(file);
    info->used = info->total - info->free;
    info->reserved = 0;
    return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, DRIVER, size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return 0; }

/* Those of the file GPU_PROCESSES: lines with a number and bytes. Each look at them adds a letter to the file GPU_LOOKS. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    const char *name = getenv("GPU_PROCESSES"), *looks = getenv("GPU_LOOKS");
    FILE *file = name ? fopen(name, "r") : NULL;
    process next = {0};
    unsigned n = 0;
    while (file && fscanf(file, "%u %llu", &next.pid, &next.used) == 2) {
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
