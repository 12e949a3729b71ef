/* Declarations for both parts of the fake: CUDA's runtime (cuda.c) and cuDNN's legacy API (cudnn.c), linked into one
 * libcudnn. The fakes of CuPy and CUPTI call the same library and so share memory, clock and launches.
 * Numbers of statuses and attributes: cudnn_graph.h, cudnn_ops.h, cudnn_cnn.h of 9.x. */
#ifndef SEER_FAKE_H
#define SEER_FAKE_H
#include <stddef.h>
#include <stdint.h>

enum { BAD_PARAM = 2000, NULL_POINTER = 2002, MISALIGNED = 2003, NOT_FINALIZED = 2004, SIZE_INSUFFICIENT = 2006,
       ATTRIBUTE_TYPE = 2010, NOT_SUPPORTED = 3000, ARCH_MISMATCH = 3007, INTERNAL_ERROR = 4000,
       DEVICE_ALLOCATION_FAILED = 4004, EXECUTION_FAILED = 5000, EXECUTION_FAILED_CUDART = 5003,
       NOT_INITIALIZED = 1001 };
enum { CUDA_OUT_OF_MEMORY = 2, CUDA_INSUFFICIENT_DRIVER = 35, CUDA_NO_DEVICE = 100, CUDA_NOT_READY = 600, CUDA_ILLEGAL_ADDRESS = 700,
       CUDA_OUT_OF_RESOURCES = 701, CUDA_MISALIGNED = 716 };
/* What a fault does; FAULT_SEGFAULT and FAULT_HANG never return. */
enum { FAULT_NONE, FAULT_SEGFAULT, FAULT_HANG, FAULT_STICKY, FAULT_SOFT, FAULT_MEMORY, FAULT_NAN, FAULT_ERROR,
       FAULT_LATE, FAULT_DROP, FAULT_INTERNAL };

/* The GPU that the environment's FAKE_GPU names: h100 (default), v100, gb202, or none. */
typedef struct {
    const char *name;
    int major, minor, sms;
    double flops_per_ns, bytes_per_ns;
    uint64_t memory;
} Gpu;
const Gpu *fake_gpu(void);

/* One kernel: its mangled name, its shape, its work (FLOPs) and traffic (bytes). */
typedef struct {
    const char *name;
    uint32_t grid[3], block[3], registers, fixed_shared, dynamic_shared;
    double flops, bytes;
} Launch;

/* A part of device memory that a call reads or writes. */
typedef struct {
    const char *role;
    const void *start;
    uint64_t bytes;
    int written;
    uint32_t alignment;
} Operand;

int fake_fault(const char *function, int algorithm);
int fake_error(void);
void fake_stick(int code);
int fake_reachable(const char *function, const Operand *operands, int count);
int fake_known_stream(const void *stream);
void fake_launch(const Launch *launch);
void fake_memset_record(uint64_t bytes);
uint64_t fake_clock(void);
int fake_version(void);
int fail(int status, const char *format, ...);
#endif
