// A worker in C, by docs/guide/worker-protocol.md and nothing else: it doubles. For a stage that takes f32 tensors, and gives as many, each as long as its
// input and with twice its numbers; or for one that takes texts, and gives as many, each twice its text. Build with `cc -O1 -pthread`.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SOCKET = 3, INPUTS = 4, OUTPUTS = 5, MAX_TENSORS = 16 };

struct span { uint64_t offset, row_bytes; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// ---- writing: integers of variable length, little-endian

struct frame { uint8_t *bytes; size_t length, room; };

static void put(struct frame *f, const void *bytes, size_t n) {
    if (f->length + n > f->room) {
        f->room = 2 * (f->length + n);
        f->bytes = realloc(f->bytes, f->room);
        if (f->bytes == NULL) _exit(76);
    }
    memcpy(f->bytes + f->length, bytes, n);
    f->length += n;
}

static void put_int(struct frame *f, uint64_t n) {
    uint8_t tag = n < 251 ? (uint8_t)n : n < 1 << 16 ? 251 : n <= UINT32_MAX ? 252 : 253;
    put(f, &tag, 1);
    if (tag >= 251) put(f, &n, (size_t)1 << (tag - 250)); // this machine is little-endian
}

static void put_text(struct frame *f, const char *text) {
    put_int(f, strlen(text));
    put(f, text, strlen(text));
}

static void send_all(const void *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(SOCKET, (const uint8_t *)bytes + at, n - at, MSG_NOSIGNAL);
        if (sent <= 0) _exit(0); // the parent is gone
        at += (size_t)sent;
    }
}

static void send_frame(struct frame *f) {
    uint32_t length = (uint32_t)f->length;
    pthread_mutex_lock(&lock);
    send_all(&length, sizeof length);
    send_all(f->bytes, f->length);
    pthread_mutex_unlock(&lock);
    f->length = 0;
}

// ---- reading

static uint8_t *in, *in_end;

static const uint8_t *take(uint64_t n) {
    if (n > (uint64_t)(in_end - in)) _exit(76); // a frame that is shorter than what it holds
    in += n;
    return in - n;
}

static uint64_t take_int(void) {
    uint8_t tag = *take(1);
    uint64_t n = 0;
    if (tag < 251) return tag;
    if (tag > 253) _exit(76);
    memcpy(&n, take((uint64_t)1 << (tag - 250)), (size_t)1 << (tag - 250));
    return n;
}

static void take_dim(void) {
    if (take_int() == 0) take_int(); // 0: fixed, and how many; 1: open
}

static struct span take_span(void) {
    take(take_int());  // the name
    take_int();        // the type
    for (uint64_t dims = take_int(); dims > 0; dims--) take_dim();
    take_dim();        // of the batch
    struct span span;
    span.offset = take_int();
    span.row_bytes = take_int();
    return span;
}

// The next frame, whole. When the parent has closed its side there is none, and the process ends.
static void read_frame(void) {
    static uint8_t *buffer;
    uint32_t length;
    if (recv(SOCKET, &length, sizeof length, MSG_WAITALL) != sizeof length) _exit(0);
    if (length > 1 << 30) _exit(76);
    buffer = realloc(buffer, length);
    if (buffer == NULL || recv(SOCKET, buffer, length, MSG_WAITALL) != (ssize_t)length) _exit(0);
    in = buffer;
    in_end = buffer + length;
}

// ---- the watch: beats four times a second, and ends the process when the parent hangs up, even in the middle of a batch

static uint64_t resident(void) {
    unsigned long size = 0, pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm != NULL) {
        if (fscanf(statm, "%lu %lu", &size, &pages) != 2) pages = 0;
        fclose(statm);
    }
    return (uint64_t)pages * 4096;
}

static void *watch(void *unused) {
    struct pollfd hang_up = { .fd = SOCKET, .events = POLLRDHUP };
    struct frame f = { NULL, 0, 0 };
    while (poll(&hang_up, 1, 250) == 0) {
        put_int(&f, 5);
        send_frame(&f);
    }
    _exit(0);
    return unused;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// One output of texts: the texts of input `which` of `n`, twice. `values` is where the values of the first row begin.
static void put_texts(struct frame *f, const uint8_t *values, uint64_t rows, uint64_t which, uint64_t n) {
    struct frame all = { NULL, 0, 0 };
    in = (uint8_t *)values;
    for (uint64_t i = 0; i < rows * n; i++) {
        if (take_int() != 2) _exit(76);           // a text
        uint64_t length = take_int();
        const uint8_t *text = take(length);
        uint32_t twice = 2 * (uint32_t)length;
        if (i % n != which) continue;
        put(&all, &twice, sizeof twice);
        put(&all, text, length);
        put(&all, text, length);
    }
    put_int(f, which);
    put_int(f, 4);                                // u8
    put_int(f, 1);                                // of one dimension
    put_int(f, all.length);
    put_int(f, all.length);
    if (all.length > 0) put(f, all.bytes, all.length);
    free(all.bytes);
}

int main(void) {
    struct frame f = { NULL, 0, 0 };
    const char *build = getenv("ORCHESTRA_BUILD"), *devices = getenv("CUDA_VISIBLE_DEVICES");

    // Hello
    put_int(&f, 0);
    put_int(&f, 18);
    put_text(&f, build != NULL ? build : "");
    put_int(&f, (uint64_t)getpid());
    put_int(&f, devices != NULL);
    if (devices != NULL) put_text(&f, devices);
    send_frame(&f);
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) return 76;

    // Load
    read_frame();
    uint64_t began = now_ns();
    if (take_int() != 0) return 76;
    take(take_int());                         // spec
    if (take_int() == 1) take(take_int());    // a GPU, and its UUID
    take_int(), take_int();                   // threads, streams
    if (take_int() == 1) take_int();          // the size that batches are padded to
    uint64_t slot_rows = take_int(), slots = take_int();
    struct span inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    uint64_t n_inputs = take_int();
    if (n_inputs > MAX_TENSORS) return 76;
    for (uint64_t i = 0; i < n_inputs; i++) inputs[i] = take_span();
    uint64_t n_outputs = take_int(), n_texts = 0, is_wrong = 0;
    if (n_outputs > MAX_TENSORS) return 76;
    for (uint64_t i = 0; i < n_outputs; i++) {
        if (*take(1) == 0) n_texts++;         // an output that lies in no slot
        else outputs[i] = take_span(), is_wrong = is_wrong || i >= n_inputs || outputs[i].row_bytes != inputs[i].row_bytes;
    }
    is_wrong = is_wrong || n_outputs != (n_texts > 0 ? n_texts : n_inputs) || (n_texts > 0 && n_inputs > 0);
    uint64_t input_step = take_int(), output_step = take_int();
    take_int();                               // bytes that outputs which lie in no slot may have
    if (in != in_end) return 76;
    const uint8_t *from = NULL;
    uint8_t *to = NULL;
    if (n_inputs > 0) from = mmap(NULL, input_step * slots, PROT_READ, MAP_SHARED, INPUTS, 0);
    if (n_inputs > 0) to = mmap(NULL, output_step * slots, PROT_READ | PROT_WRITE, MAP_SHARED, OUTPUTS, 0);

    if (is_wrong || from == MAP_FAILED || to == MAP_FAILED) {
        put_int(&f, 2);                       // LoadFailed
        put_int(&f, 2);                       // for good
        put_text(&f, "it doubles f32 or texts: as many outputs as inputs, each as long as its input");
        send_frame(&f);
        _exit(69);
    }
    put_int(&f, 1);                           // Loaded
    put_int(&f, 0);
    put_text(&f, "worker.c");
    put_int(&f, 0);
    put_int(&f, now_ns() - began);
    put_int(&f, resident());
    send_frame(&f);

    for (;;) {
        read_frame();
        if (take_int() != (n_texts > 0 ? 2 : 1)) return 76; // RunWithValues, or Run
        uint64_t batch = take_int();
        take_int();                           // the attempt
        uint64_t slot = take_int(), output_slot = take_int(), first = take_int(), rows = take_int();
        if (slot >= slots || output_slot >= slots || rows == 0 || first > slot_rows || rows > slot_rows - first) return 76;
        began = now_ns();
        for (uint64_t i = 0; i < n_inputs; i++) {
            uint64_t bytes = inputs[i].row_bytes;
            const float *x = (const float *)(from + input_step * slot + inputs[i].offset + bytes * first);
            float *y = (float *)(to + output_step * output_slot + outputs[i].offset + bytes * first);
            for (uint64_t k = 0; k < bytes * rows / sizeof *x; k++) y[k] = 2 * x[k];
        }
        put_int(&f, 3);                       // Done
        put_int(&f, batch);
        put_int(&f, n_texts);                 // outputs that lie in no slot
        if (n_texts > 0) take_int();          // how many bytes the values have: all that is left
        const uint8_t *values = in;
        for (uint64_t which = 0; which < n_texts; which++) put_texts(&f, values, rows, which, n_texts);
        put_int(&f, 0), put_int(&f, 0);       // no row is dropped, and none has failed
        put_int(&f, 0), put_int(&f, now_ns() - began), put_int(&f, 0);
        put_int(&f, resident());
        send_frame(&f);
    }
}
