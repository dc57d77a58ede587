// NVRTC without CUDA: a kernel is compiled for the host by `c++`, with SHIM before it, into a library in the folder CUDA_FAKE_CACHE, once. Its
// log names places as NVRTC does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct program { char *file, *text, *function; char log[4096], library[1024], options[4096]; int n; const char **names, **headers; };

static unsigned long long hash(unsigned long long h, const char *text) {
    while (*text) h = (h ^ (unsigned char)*text++) * 1099511628211u;
    return h * 1099511628211u;
}

static void write_file(const char *path, const char *before, const char *text, const char *after) {
    FILE *file = fopen(path, "w");
    if (file == NULL) return;
    fprintf(file, "%s%s%s", before, text, after);
    fclose(file);
}

int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 3; return 0; }
int nvrtcGetSupportedArchs(int *archs) { archs[0] = 80, archs[1] = 90, archs[2] = 120; return 0; }

int nvrtcCreateProgram(struct program **out, const char *text, const char *file, int n, const char *const *headers, const char *const *names) {
    struct program *p = *out = calloc(1, sizeof *p);
    p->file = strdup(file), p->text = strdup(text), p->n = n;
    p->headers = calloc(n + 1, sizeof *p->headers), p->names = calloc(n + 1, sizeof *p->names);
    for (int i = 0; i < n; i++) p->headers[i] = strdup(headers[i]), p->names[i] = strdup(names[i]);
    return 0;
}
int nvrtcAddNameExpression(struct program *p, const char *name) { p->function = strdup(name); return 0; }

int nvrtcCompileProgram(struct program *p, int n, const char *const *options) {
    const char *cache = getenv("CUDA_FAKE_CACHE");
    char folder[1000], path[2200], before[1200], after[600], command[9000];
    unsigned long long id = hash(hash(14695981039346656037u, p->text), p->function);
    int for_this = 0;
    for (int i = 0; i < n; i++) {
        id = hash(id, options[i]);
        for_this |= !strcmp(options[i], "--gpu-architecture=sm_90");
        if (!strncmp(options[i], "-D", 2)) snprintf(p->options + strlen(p->options), 500, " '%s'", options[i]);
        else if (strncmp(options[i], "--gpu-architecture=", 19) && strncmp(options[i], "--include-path=", 15) && strcmp(options[i], "--use_fast_math")) {
            snprintf(p->log, sizeof p->log, "nvrtc: error: unrecognized option %s found", options[i]);
            return 5;
        }
    }
    for (int i = 0; i < p->n; i++) id = hash(id, p->headers[i]);
    if (cache == NULL || !for_this) return 1;
    snprintf(p->library, sizeof p->library, "%s/%016llx.so", cache, id);
    if (access(p->library, R_OK) == 0) return 0;
    snprintf(folder, sizeof folder, "%s/%016llx-%d", cache, id, getpid());
    mkdir(folder, 0700);
    for (int i = 0; i < p->n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, p->names[i]);
        write_file(path, "", p->headers[i], "");
    }
    snprintf(path, sizeof path, "%s/source", folder);
    snprintf(before, sizeof before, "#include \"%s\"\n#line 1 \"%s\"\n", SHIM, p->file);
    snprintf(after, sizeof after, "extern \"C\" int fake_launch(void **p, unsigned grid, unsigned block) { return fake_grid(&%s, p, grid, block); }\n", p->function);
    write_file(path, before, p->text, after);
    // The command goes on when this process is killed, so that a kernel is compiled in the end.
    snprintf(command, sizeof command,
             "cd '%s' && { TMPDIR=. c++ -x c++ -std=c++17 -O2 -w -shared -fPIC -ffp-contract=off -I. %s -o library source 2>&1 | "
             "sed -E 's/^([^:]+):([0-9]+):[0-9]+:/\\1(\\2):/' >log; } && { test ! -e library || mv library '%s'; }",
             folder, p->options, p->library);
    if (system(command) == -1) return 11;
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *log = fopen(path, "r");
    if (log != NULL) {
        p->log[fread(p->log, 1, sizeof p->log - 1, log)] = 0;
        fclose(log);
    }
    return access(p->library, R_OK) == 0 ? 0 : 6;
}

int nvrtcGetProgramLogSize(struct program *p, size_t *n) { *n = strlen(p->log) + 1; return 0; }
int nvrtcGetProgramLog(struct program *p, char *log) { strcpy(log, p->log); return 0; }
int nvrtcGetCUBINSize(struct program *p, size_t *n) { *n = strlen(p->library); return 0; }
int nvrtcGetCUBIN(struct program *p, char *image) { memcpy(image, p->library, strlen(p->library)); return 0; }
int nvrtcGetPTXSize(struct program *p, size_t *n) { return 1; }
int nvrtcGetPTX(struct program *p, char *image) { return 1; }
int nvrtcGetLoweredName(struct program *p, const char *name, const char **lowered) {
    *lowered = "fake_launch";
    return strcmp(name, p->function) ? 10 : 0;
}
