/* The fake CUDA runtime: a registry of allocations, one timeline in ns, launches, CUPTI's records, faults on demand. */
#include "fake.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REAL_BYTES = 4 << 20, GAP_NS = 1200, API_NS = 800, HELD_LAUNCHES = 40 };
static const double HELD_CLOCK = 0.6;
enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, CONCURRENT_KERNEL = 10, EXTERNAL = 39, KINDS = 64 };

/* One allocation. A freed one stays in the list, unreadable, and its addresses are never given out again. */
typedef struct {
    char *start;
    uint64_t bytes;
    int live;
} Range;
/* One of CUPTI's activity records; `complete` at the count of launches that the host has waited for. */
typedef struct {
    int32_t kind;
    uint32_t correlation;
    uint64_t start, end, bytes, external, launch;
    uint32_t grid[3], block[3], registers, fixed_shared, dynamic_shared;
    char name[160];
} Record;

static Range *ranges;
static int range_count, sticky, streams, enabled[KINDS], profiling;
static uint64_t now_ns = 1700000000000000000u, used_bytes, launches, waited_for, dropped, held_until;
static uint32_t correlation;
static struct { uint32_t kind; uint64_t id; } stack[64];
static int depth;
static Record *records;
static int record_count, record_room;
static char last_message[512];

static const Gpu GPUS[] = {
    {"NVIDIA H100 80GB HBM3", 9, 0, 132, 60000.0, 3350.0, 80ull << 30},
    {"Tesla V100-SXM2-16GB", 7, 0, 80, 15700.0, 900.0, 16ull << 30},
    {"NVIDIA GeForce RTX 5090", 12, 0, 170, 100000.0, 1792.0, 32ull << 30},
};

/* The device of this process; NULL where FAKE_GPU is "none", as without a driver. */
const Gpu *fake_gpu(void) {
    const char *named = getenv("FAKE_GPU");
    if (!named || !strcmp(named, "h100")) return &GPUS[0];
    if (!strcmp(named, "v100")) return &GPUS[1];
    return strcmp(named, "gb202") ? NULL : &GPUS[2];
}

/* The facts of the device that CuPy's stand-in asks for: compute capability ×10, SMs, bytes in all, bytes free. */
int fake_device(const char **name, int *capability, int *sms, uint64_t *total, uint64_t *available) {
    const Gpu *gpu = fake_gpu();
    if (!gpu) return CUDA_NO_DEVICE;
    if (fake_fault("cudaGetDevice", -1)) return CUDA_INSUFFICIENT_DRIVER;
    *name = gpu->name, *capability = 10 * gpu->major + gpu->minor, *sms = gpu->sms, *total = gpu->memory;
    *available = gpu->memory - (600ull << 20) - used_bytes;
    return sticky;
}

/* Keep the words of an error for cudnnGetLastErrorString, and return its status. */
int fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_message, sizeof last_message, format, arguments);
    va_end(arguments);
    return status;
}

/* The words of the last error, once. */
const char *fake_message(void) { return last_message; }

/* The number of the matching call in this run, across processes: a byte for each in a file of FAKE_STATE. */
static long matching_call(int fault) {
    const char *folder = getenv("FAKE_STATE");
    char path[512];
    struct stat status;
    if (!folder) return 1;
    snprintf(path, sizeof path, "%s/fault-%d", folder, fault);
    int file = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (file < 0 || write(file, ".", 1) != 1 || fstat(file, &status)) abort();
    close(file);
    return (long)status.st_size;
}

/* What FAKE_FAULTS orders for this call: "KIND FUNCTION ALGORITHM CALL; ...", algorithm -1 is any, call 0 is every
 * one, -N every one from the N-th on, else only the matching call of that number. A segfault and a hang happen here. */
int fake_fault(const char *function, int algorithm) {
    static const char *KINDS_OF[] = {"", "segfault", "hang", "sticky", "soft", "memory", "nan", "error", "late", "drop",
                                     "internal"};
    const char *orders = getenv("FAKE_FAULTS");
    for (int fault = 0; orders && *orders; fault++) {
        char kind[32], name[96];
        int which;
        long call;
        if (sscanf(orders, " %31s %95s %d %ld", kind, name, &which, &call) != 4) abort();
        orders = strchr(orders, ';') ? strchr(orders, ';') + 1 : NULL;
        if (strcmp(name, function) || (which >= 0 && which != algorithm)) continue;
        if (call > 0 && matching_call(fault) != call) continue;
        if (call < 0 && matching_call(fault) < -call) continue;
        for (int number = 1; number < (int)(sizeof KINDS_OF / sizeof *KINDS_OF); number++) {
            if (strcmp(kind, KINDS_OF[number])) continue;
            if (number == FAULT_SEGFAULT) raise(SIGSEGV);
            while (number == FAULT_HANG) pause();
            if (number == FAULT_STICKY || number == FAULT_INTERNAL) fake_stick(CUDA_ILLEGAL_ADDRESS);
            return number;
        }
        abort();
    }
    return FAULT_NONE;
}

/* The sticky error of the context, which every later call of the runtime returns; 0 for none. */
int fake_error(void) { return sticky; }

/* Set the sticky error. It shows at the next call, as an asynchronous one does. */
void fake_stick(int code) { sticky = sticky ? sticky : code; }

/* cudaMalloc: pages that cost nothing until they are touched. */
int fake_malloc(uint64_t bytes, void **pointer) {
    const Gpu *gpu = fake_gpu();
    if (!gpu) return CUDA_NO_DEVICE;
    if (sticky) return sticky;
    if (fake_fault("cudaMalloc", -1) == FAULT_MEMORY) return CUDA_OUT_OF_MEMORY;
    uint64_t room = (bytes + 511) / 512 * 512 + 512;
    if (used_bytes + room > gpu->memory - (600ull << 20)) return CUDA_OUT_OF_MEMORY;
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return CUDA_OUT_OF_MEMORY;
    ranges = realloc(ranges, (size_t)(range_count + 1) * sizeof *ranges);
    ranges[range_count++] = (Range){start, bytes, 1};
    used_bytes += room;
    *pointer = start;
    return 0;
}

/* cudaFree: the memory becomes unreadable to the host, and unreachable to every later launch. */
int fake_free(void *pointer) {
    for (int at = 0; at < range_count; at++) {
        if (ranges[at].start != pointer || !ranges[at].live) continue;
        uint64_t room = (ranges[at].bytes + 511) / 512 * 512 + 512;
        ranges[at].live = 0;
        used_bytes -= room;
        madvise(pointer, room, MADV_DONTNEED);
        mprotect(pointer, room, PROT_NONE);
        return 0;
    }
    fprintf(stderr, "fake CUDA: cudaFree of %p, which is no live allocation\n", pointer);
    return 1;
}

/* Why the operand cannot be reached, or NULL. */
static const char *unreachable(const Operand *operand) {
    const char *start = operand->start;
    if (!operand->bytes) return NULL;
    for (int at = 0; at < range_count; at++) {
        const Range *range = &ranges[at];
        if (start < range->start || start >= range->start + range->bytes) continue;
        if (!range->live) return "was freed";
        return start + operand->bytes > range->start + range->bytes ? "ends out of bounds" : NULL;
    }
    return "is no device memory";
}

/* Check all operands of a launch: live, in bounds, aligned, and none that is written overlaps another. What is wrong
 * is printed, and the context gets a sticky error; returns 1 where all is well. */
int fake_reachable(const char *function, const Operand *operands, int count) {
    for (int at = 0; at < count; at++) {
        const Operand *one = &operands[at];
        const char *start = one->start, *why = unreachable(one);
        int code = CUDA_ILLEGAL_ADDRESS;
        if (!why && one->bytes && one->alignment && (uintptr_t)start % one->alignment)
            why = "is misaligned", code = CUDA_MISALIGNED;
        for (int other = 0; !why && other < count; other++) {
            const char *theirs = operands[other].start;
            if (other == at || !(one->written || operands[other].written)) continue;
            if (start < theirs + operands[other].bytes && theirs < start + one->bytes) why = "overlaps another operand";
        }
        if (!why) continue;
        fprintf(stderr, "fake CUDA: %s: %s (%p, %llu bytes) %s\n", function, one->role, one->start,
                (unsigned long long)one->bytes, why);
        fake_stick(code);
        return 0;
    }
    return 1;
}

/* cudaStreamCreate: streams are numbered pointers. */
void *fake_stream(void) { return (void *)(uintptr_t)(0x1000 + 16 * ++streams); }

/* 1 for the default stream and those that were created. */
int fake_known_stream(const void *stream) {
    uintptr_t number = (uintptr_t)stream;
    return !number || (number > 0x1000 && number <= 0x1000u + 16u * (unsigned)streams && number % 16 == 0);
}

/* The device's clock now, in ns. */
uint64_t fake_clock(void) { return now_ns; }

/* cudaEventRecord: the clock, and the count of launches that must be waited for before it can be asked. */
int fake_event(uint64_t *at_ns, uint64_t *launch) {
    now_ns += API_NS;
    *at_ns = now_ns, *launch = ++launches;
    return sticky;
}

/* 0 where the host has waited for that launch, else CUDA_NOT_READY. */
int fake_query(uint64_t launch) { return sticky ? sticky : launch <= waited_for ? 0 : CUDA_NOT_READY; }

/* cudaStreamSynchronize and cudaDeviceSynchronize. */
int fake_synchronize(void) {
    if (fake_fault("cudaStreamSynchronize", -1) == FAULT_SOFT) return CUDA_OUT_OF_RESOURCES;
    waited_for = launches;
    return sticky;
}

/* A fresh record at the end of CUPTI's buffer; NULL where its kind is off, or the record is lost: dropped for want of
 * buffers, which is counted, or too late for any flush. */
static Record *record(int kind) {
    if (!enabled[kind]) return NULL;
    int fault = fake_fault("record", kind);
    dropped += fault == FAULT_DROP;
    if (fault == FAULT_DROP || fault == FAULT_LATE) return NULL;
    if (record_count == record_room) {
        record_room = record_room ? 2 * record_room : 1024;
        records = realloc(records, (size_t)record_room * sizeof *records);
    }
    Record *one = &records[record_count++];
    *one = (Record){.kind = kind, .correlation = correlation, .launch = launches};
    return one;
}

/* The API that kernels are launched by: FAKE_LAUNCHES is runtime (default), driver, or mixed: one by one, the other by
 * the other. */
static int launching(void) {
    const char *named = getenv("FAKE_LAUNCHES");
    if (!named || !strcmp(named, "runtime")) return RUNTIME;
    return strcmp(named, "mixed") || launches % 2 ? DRIVER : RUNTIME;
}

/* The record of one call of an API, behind the external correlations, where its kind is on. */
static void record_api(int api) {
    correlation++, launches++;
    if (!enabled[api]) return;
    for (int at = depth - 1; at >= 0; at--) {
        Record *label = record(EXTERNAL);
        if (label) label->external = stack[at].id;
    }
    Record *call = record(api);
    if (call) call->start = now_ns, call->end = now_ns + API_NS;
}

/* Whether the clock is held down now, by the driver's account; a fault of "clock" holds it for some launches. */
int fake_held_down(void) { return launches < held_until; }

/* Let time pass for some work, with up to 1 % of noise that depends on the launch alone. */
static void pass(double ns, Record *one) {
    double noise = 1.0 + 0.01 * (double)(launches * 2654435761u % 1000) / 1000.0;
    if (fake_fault("clock", -1)) held_until = launches + HELD_LAUNCHES;
    if (fake_held_down()) noise /= HELD_CLOCK;
    now_ns += GAP_NS;
    if (one) one->start = now_ns;
    now_ns += (uint64_t)(ns * noise);
    if (one) one->end = now_ns;
}

/* Add a line to the attached profiler's log (FAKE_PROFILE), which it prints in its own format. */
static void log_launch(const Launch *launch, const char *kind, double ns) {
    const char *path = getenv("FAKE_PROFILE");
    FILE *file = (profiling || getenv("FAKE_PROFILE_FROM_START")) && path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\t%s\t%u\t%u\t%u\t%u\t%u\t%u\t%u\t%u\t%u\t%.0f\t%.0f\t%.0f\n", kind, launch->name, launch->grid[0],
            launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2], launch->registers,
            launch->fixed_shared, launch->dynamic_shared, ns, launch->flops, launch->bytes);
    fclose(file);
}

/* Run one kernel: the API's records, the kernel's, and its time on the clock. */
void fake_launch(const Launch *launch) {
    const Gpu *gpu = fake_gpu();
    double ns = 1500.0 + fmax(launch->flops / gpu->flops_per_ns, launch->bytes / gpu->bytes_per_ns);
    record_api(launching());
    Record *one = record(CONCURRENT_KERNEL);
    pass(ns, one);
    log_launch(launch, "kernel", ns);
    if (!one) return;
    memcpy(one->grid, launch->grid, sizeof one->grid);
    memcpy(one->block, launch->block, sizeof one->block);
    one->registers = launch->registers, one->fixed_shared = launch->fixed_shared;
    one->dynamic_shared = launch->dynamic_shared;
    snprintf(one->name, sizeof one->name, "%s", launch->name);
}

/* A memset's records and time by an API; the caller writes. */
static void memset_record(uint64_t bytes, int api) {
    double ns = 1000.0 + (double)bytes / fake_gpu()->bytes_per_ns;
    record_api(api);
    Record *one = record(MEMSET);
    /* FAKE_FLUSH=other: the driver clears a large buffer by something that CUPTI does not record as that memset. */
    if (one) one->bytes = getenv("FAKE_FLUSH") && bytes > REAL_BYTES ? bytes / 2 : bytes;
    pass(ns, one);
    log_launch(&(Launch){.name = "[CUDA memset]"}, "memset", ns);
}

/* The memset of a library's own call. */
void fake_memset_record(uint64_t bytes) { memset_record(bytes, launching()); }

/* cudaMemsetAsync. Only the first 4 MiB are written: nothing reads the buffer that flushes the cache. */
int fake_memset(void *to, int value, uint64_t bytes) {
    Operand operand = {"memset", to, bytes, 1, 0};
    if (sticky || !fake_reachable("cudaMemsetAsync", &operand, 1)) return sticky;
    memset_record(bytes, RUNTIME);
    memset(to, value, bytes < REAL_BYTES ? bytes : REAL_BYTES);
    return 0;
}

/* cudaMemcpyAsync; `way` as cudaMemcpyKind: 1 to the device, 2 from it, 3 within. Of a copy to the device only the first
 * 4 MiB are made: larger problems are timed and not computed. */
int fake_memcpy(void *to, const void *from, uint64_t bytes, int way) {
    Operand operands[] = {{"destination", to, way == 2 ? 0 : bytes, 1, 0}, {"source", from, way == 1 ? 0 : bytes, 0, 0}};
    if (sticky || !fake_reachable("cudaMemcpyAsync", operands, 2)) return sticky;
    record_api(RUNTIME);
    Record *one = record(MEMCPY);
    if (one) one->bytes = bytes;
    pass(1000.0 + 2.0 * (double)bytes / fake_gpu()->bytes_per_ns, one);
    memcpy(to, from, way == 2 || bytes < REAL_BYTES ? bytes : REAL_BYTES);
    if (way != 3) waited_for = launches;
    return 0;
}

/* cudaProfilerStart and Stop: whether the attached profiler sees launches. */
void fake_profiler(int on) { profiling = on; }

/* cuptiActivityEnable and Disable. */
void fake_enable(int kind, int on) { enabled[kind % KINDS] = on; }

/* cuptiActivityPushExternalCorrelationId. */
void fake_push(uint32_t kind, uint64_t id) {
    if (depth == 64) abort();
    stack[depth].kind = kind, stack[depth++].id = id;
}

/* cuptiActivityPopExternalCorrelationId: 0 where nothing was pushed. */
int fake_pop(uint64_t *id) { return depth ? *id = stack[--depth].id, 1 : 0; }

/* cuptiActivityFlushAll: the records so far. By default none where one is not complete (the host has not waited for
 * its launch); a forced flush gives all, the incomplete ones without times. */
int fake_flush(int forced, Record **out) {
    int incomplete = 0;
    for (int at = 0; at < record_count; at++) incomplete += records[at].launch > waited_for;
    if (incomplete && !forced) return 0;
    for (int at = 0; at < record_count; at++)
        if (records[at].launch > waited_for) records[at].start = records[at].end = 0;
    int count = record_count;
    *out = records;
    record_count = 0;
    return count;
}

/* cuptiActivityGetNumDroppedRecords: since the last question. */
uint64_t fake_dropped(void) {
    uint64_t count = dropped;
    dropped = 0;
    return count;
}

/* A fresh context for the next test of this process: no error, no records, nothing enabled. Memory stays as it is. */
void fake_reset(void) {
    sticky = depth = profiling = record_count = 0;
    dropped = held_until = 0;
    memset(enabled, 0, sizeof enabled);
}

/* libcuda's own calls: whether there is a GPU, and the CUDA that the driver speaks. */
int cuInit(unsigned flags) { return flags || !fake_gpu() ? CUDA_NO_DEVICE : 0; }
int cuDriverGetVersion(int *version) { return *version = 12090, 0; }
