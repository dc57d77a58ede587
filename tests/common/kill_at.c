// Ends the process by SIGKILL around the moment when a file gets a name that ends with $KILL_AT_NAME: `before` it has that name, once it is `named`, or
// after that once a line is `indexed` in an index.jsonl, before the journal is written, `counting`, once it is `counted` in it, or once it is durable,
// `synced`, as $KILL_AT says; at the $KILL_AT_NTH such moment, if that is set. An empty name: any moment comes after it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int is_named;

static void end_at(const char *moment) {
    static int n;
    const char *at = getenv("KILL_AT"), *nth = getenv("KILL_AT_NTH");
    if (at && !strcmp(at, moment) && ++n >= (nth ? atoi(nth) : 1)) kill(getpid(), SIGKILL);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    const char *name = getenv("KILL_AT_NAME");
    size_t all = strlen(to), end = name ? strlen(name) : 0;
    int is_meant = end && all >= end && !strcmp(to + all - end, name);
    if (is_meant) end_at("before");
    int result = real(from, to);
    if (is_meant) {
        end_at("named");
        is_named = 1;
    }
    return result;
}

static void end_if(int fd, const char *name, const char *moment) {
    char link[64], path[4096], *after = getenv("KILL_AT_NAME");
    if (after && !*after) is_named = 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = is_named ? readlink(link, path, sizeof path - 1) : -1, end = strlen(name);
    if (n >= end && !strncmp(path + n - end, name, end)) end_at(moment);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    int result = real(fd);
    end_if(fd, "/journal", "synced");
    return result;
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    end_if(fd, "/journal", "counting");
    ssize_t result = real(fd, bytes, n, at);
    end_if(fd, "/index.jsonl", "indexed");
    end_if(fd, "/journal", "counted");
    return result;
}
