/* The fake's legacy cuDNN: descriptors with their state, convolutions that compute small problems, other operators. */
#include "fake.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
enum { TENSOR, FILTER, CONVOLUTION, POOLING, ACTIVATION, HANDLE, DESTROYED };
enum { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
enum { FMA_MATH = 3, COMPUTED_MACS = 10000000 };

/* Any of cuDNN's objects; `set` once it is described. Destroyed ones are kept, so that their use is seen. */
typedef struct {
    int kind, set;
    int layout, type, sizes[4]; /* tensors: n, c, h, w; filters: k, c, r, s */
    int pad[2], stride[2], dilation[2], mode, compute, groups, math, window[2];
    const void *stream;
} Object;
/* cudnnConvolution…AlgoPerf_t. */
typedef struct {
    int algorithm, status;
    float milliseconds;
    size_t memory;
    int determinism, math, reserved[3];
} Perf;
/* A convolution that has been checked: its descriptors by role, and its sizes. */
typedef struct {
    const Object *x, *w, *y, *conv;
    int direction;
    double macs;
} Problem;

const char *fake_message(void);

/* CUDNN_VERSION, or what FAKE_CUDNN_VERSION says. */
int fake_version(void) { return getenv("FAKE_CUDNN_VERSION") ? atoi(getenv("FAKE_CUDNN_VERSION")) : 91002; }
size_t cudnnGetVersion(void) { return (size_t)fake_version(); }

/* The name of a status: its own, or else its group's. */
const char *cudnnGetErrorString(int status) {
    const struct { int status; const char *name; } NAMES[] = {
        {0, "SUCCESS"}, {NULL_POINTER, "BAD_PARAM_NULL_POINTER"}, {NOT_FINALIZED, "BAD_PARAM_NOT_FINALIZED"},
        {ATTRIBUTE_TYPE, "BAD_PARAM_ATTRIBUTE_TYPE"}, {ARCH_MISMATCH, "NOT_SUPPORTED_ARCH_MISMATCH"},
        {DEVICE_ALLOCATION_FAILED, "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
        {EXECUTION_FAILED_CUDART, "EXECUTION_FAILED_CUDART"}, {status / 1000 == 1 ? status : -1, "NOT_INITIALIZED"},
        {status / 1000 == 2 ? status : -1, "BAD_PARAM"}, {status / 1000 == 3 ? status : -1, "NOT_SUPPORTED"},
        {status / 1000 == 4 ? status : -1, "INTERNAL_ERROR"}, {status, "EXECUTION_FAILED"}};
    static char name[64];
    int at = 0;
    while (NAMES[at].status != status) at++;
    snprintf(name, sizeof name, "CUDNN_STATUS_%s", NAMES[at].name);
    return name;
}

/* The words of the last failure, which are lost once they are read. */
void cudnnGetLastErrorString(char *message, size_t room) { snprintf(message, room, "%s", fake_message()), fail(0, "%s", ""); }

/* A new object of a kind. */
static int create(Object **object, int kind) {
    if (!object) return fail(NULL_POINTER, "the descriptor's address is NULL");
    *object = calloc(1, sizeof **object);
    **object = (Object){.kind = kind, .set = kind == HANDLE, .groups = 1};
    return 0;
}

/* 0 where an object is of the kind, described, and not destroyed. */
static int check(const Object *object, int kind, int described) {
    if (!object) return fail(NULL_POINTER, "a descriptor is NULL");
    if (object->kind == DESTROYED) fprintf(stderr, "fake cuDNN: a destroyed object is used\n");
    if (object->kind != kind) return fail(BAD_PARAM, "an object is of kind %d, not %d", object->kind, kind);
    return described && !object->set ? fail(BAD_PARAM, "a descriptor was never set") : 0;
}

/* Destroy an object; twice is an error. */
static int destroy(Object *object, int kind) {
    int status = check(object, kind, 0);
    if (!status) object->kind = DESTROYED;
    return status;
}

#define LIFE(Name, KIND)                                                                \
    int cudnnCreate##Name##Descriptor(Object **object) { return create(object, KIND); } \
    int cudnnDestroy##Name##Descriptor(Object *object) { return destroy(object, KIND); }
LIFE(Tensor, TENSOR)
LIFE(Filter, FILTER)
LIFE(Convolution, CONVOLUTION)
LIFE(Pooling, POOLING)
LIFE(Activation, ACTIVATION)

/* A handle; without a GPU, or with kernels too new for it, there is none. */
int cudnnCreate(Object **handle) {
    if (fake_fault("cudnnCreate", -1)) return fail(NOT_INITIALIZED, "cudaGetDevice failed");
    const Gpu *gpu = fake_gpu();
    if (!gpu) return fail(NOT_INITIALIZED, "cudaGetDeviceCount: no CUDA-capable device is detected");
    if (10 * gpu->major + gpu->minor < 75 && fake_version() >= 91100)
        return fail(ARCH_MISMATCH, "compute capability %d.%d is below 7.5", gpu->major, gpu->minor);
    return create(handle, HANDLE);
}
int cudnnDestroy(Object *handle) { return destroy(handle, HANDLE); }

/* The stream of every later call, which must exist. */
int cudnnSetStream(Object *handle, const void *stream) {
    int status = check(handle, HANDLE, 0);
    if (!status && !fake_known_stream(stream)) status = fail(BAD_PARAM, "%p is no stream", stream);
    if (!status) handle->stream = stream;
    return status;
}

/* Bytes of an element; 0 for a type that is not known. */
static size_t width(int type) { return type == DOUBLE ? 8 : type == FLOAT ? 4 : type == HALF || type == BFLOAT16 ? 2 : 0; }

/* Describe a tensor or filter. */
static int describe(Object *object, int kind, int layout, int type, const int *sizes) {
    int status = check(object, kind, 0);
    if (status) return status;
    if (!width(type) || layout < 0 || layout > 1) return fail(BAD_PARAM, "type %d, format %d", type, layout);
    for (int at = 0; at < 4; at++)
        if (sizes[at] < 1) return fail(BAD_PARAM, "size %d of a tensor is %d", at, sizes[at]);
    object->layout = layout, object->type = type, object->set = 1;
    memcpy(object->sizes, sizes, sizeof object->sizes);
    return 0;
}
int cudnnSetTensor4dDescriptor(Object *object, int layout, int type, int n, int c, int h, int w) {
    return describe(object, TENSOR, layout, type, (int[]){n, c, h, w});
}
int cudnnSetFilter4dDescriptor(Object *object, int type, int layout, int k, int c, int r, int s) {
    return describe(object, FILTER, layout, type, (int[]){k, c, r, s});
}

/* Paddings, strides, dilations, mode and the type of sums. Math and groups keep what they were. */
int cudnnSetConvolution2dDescriptor(Object *object, int ph, int pw, int u, int v, int dh, int dw, int mode, int compute) {
    int status = check(object, CONVOLUTION, 0);
    if (status) return status;
    if (ph < 0 || pw < 0 || u < 1 || v < 1 || dh < 1 || dw < 1 || mode < 0 || mode > 1)
        return fail(BAD_PARAM, "padding %d, stride %d, dilation %d, mode %d", ph, u, dh, mode);
    object->pad[0] = ph, object->pad[1] = pw, object->stride[0] = u, object->stride[1] = v;
    object->dilation[0] = dh, object->dilation[1] = dw, object->mode = mode, object->compute = compute, object->set = 1;
    return 0;
}
int cudnnSetConvolutionMathType(Object *object, int math) {
    int status = check(object, CONVOLUTION, 0);
    if (!status && (math < 0 || math > 3)) status = fail(BAD_PARAM, "math type %d", math);
    if (!status) object->math = math;
    return status;
}
int cudnnSetConvolutionGroupCount(Object *object, int groups) {
    int status = check(object, CONVOLUTION, 0);
    if (!status && groups < 1) status = fail(BAD_PARAM, "%d groups", groups);
    if (!status) object->groups = groups;
    return status;
}

/* Output size along one axis (0: height, 1: width). */
static int output(const Object *conv, const Object *x, const Object *w, int axis) {
    int reach = conv->dilation[axis] * (w->sizes[2 + axis] - 1) + 1;
    int room = x->sizes[2 + axis] + 2 * conv->pad[axis] - reach;
    return room < 0 ? 0 : room / conv->stride[axis] + 1;
}

/* Bytes of a whole tensor. */
static uint64_t size_of(const Object *tensor) {
    const int *s = tensor->sizes;
    return (uint64_t)s[0] * (uint64_t)s[1] * (uint64_t)s[2] * (uint64_t)s[3] * width(tensor->type);
}

/* 0 where handle and descriptors describe one convolution, which `problem` then holds. */
static int convolution(Problem *problem, const Object *handle, const Object *x, const Object *w, const Object *y,
                       const Object *conv, int direction) {
    int status = check(handle, HANDLE, 1);
    status = status ? status : check(x, TENSOR, 1);
    status = status ? status : check(w, FILTER, 1);
    status = status ? status : check(y, TENSOR, 1);
    status = status ? status : check(conv, CONVOLUTION, 1);
    if (status) return status;
    if (x->type != w->type || x->type != y->type || x->layout != w->layout || x->layout != y->layout)
        return fail(BAD_PARAM, "the tensors differ in type or format");
    if (conv->compute != (x->type == DOUBLE ? DOUBLE : FLOAT)) return fail(BAD_PARAM, "compute type %d", conv->compute);
    if (x->sizes[1] != w->sizes[1] * conv->groups || w->sizes[0] % conv->groups)
        return fail(BAD_PARAM, "%d input channels, %d filter channels, %d groups", x->sizes[1], w->sizes[1], conv->groups);
    int wanted[] = {x->sizes[0], w->sizes[0], output(conv, x, w, 0), output(conv, x, w, 1)};
    if (memcmp(wanted, y->sizes, sizeof wanted) || wanted[2] < 1 || wanted[3] < 1)
        return fail(BAD_PARAM, "the output is not %d %d %d %d", wanted[0], wanted[1], wanted[2], wanted[3]);
    double outputs = (double)y->sizes[0] * y->sizes[1] * y->sizes[2] * y->sizes[3];
    *problem = (Problem){x, w, y, conv, direction, outputs * w->sizes[1] * w->sizes[2] * w->sizes[3]};
    return 0;
}

/* The family of an algorithm, by the forward names; -1 for one that was never implemented. */
enum { IMPLICIT, PRECOMP, EXPLICIT, FFT, TILED_FFT, WINOGRAD, NONFUSED, ATOMIC };
static int family(int direction, int algorithm) {
    static const int FAMILIES[3][8] = {{IMPLICIT, PRECOMP, EXPLICIT, -1, FFT, TILED_FFT, WINOGRAD, NONFUSED},
                                       {ATOMIC, PRECOMP, FFT, TILED_FFT, WINOGRAD, NONFUSED, -1, -1},
                                       {ATOMIC, PRECOMP, FFT, ATOMIC, -1, NONFUSED, TILED_FFT, -1}};
    return algorithm < 0 || algorithm > 7 ? -1 : FAMILIES[direction][algorithm];
}
static const int ALGORITHMS[] = {8, 6, 7};

/* 0 where the algorithm takes the problem on this GPU, else the reason's status. */
static int supported(const Problem *p, int algorithm) {
    const Object *conv = p->conv;
    int r = p->w->sizes[2], s = p->w->sizes[3], kind = family(p->direction, algorithm), type = p->x->type;
    int plain = conv->stride[0] * conv->stride[1] * conv->dilation[0] * conv->dilation[1] == 1;
    if (algorithm < 0 || algorithm >= ALGORITHMS[p->direction]) return fail(BAD_PARAM, "algorithm %d", algorithm);
    if (kind < 0) return fail(NOT_SUPPORTED, "the algorithm is not implemented");
    if (p->x->layout && kind > PRECOMP && kind != ATOMIC) return fail(3004, "the layout is not supported");
    if ((type == BFLOAT16 || type == DOUBLE) && kind > EXPLICIT && kind != ATOMIC) return fail(3003, "the data type");
    if (kind == EXPLICIT && conv->groups > 1) return fail(NOT_SUPPORTED, "groups");
    if (kind == FFT && (!plain || p->x->sizes[2] + 2 * conv->pad[0] > 256 || p->x->sizes[3] + 2 * conv->pad[1] > 256))
        return fail(3002, "FFT takes stride 1, dilation 1 and images up to 256");
    if (kind == TILED_FFT && (r > 32 || s > 32 || !plain)) return fail(3002, "FFT takes filters up to 32 and stride 1");
    if ((kind == FFT || kind == TILED_FFT) && (r <= conv->pad[0] || s <= conv->pad[1]))
        return fail(3011, "the padding reaches the filter's size");
    if (kind == WINOGRAD && fake_gpu()->major >= 9) return fail(ARCH_MISMATCH, "no Winograd on 9.0 and newer");
    if (kind == WINOGRAD && (r != 3 || s != 3 || !plain)) return fail(3002, "Winograd takes 3 x 3 and stride 1");
    if (kind == NONFUSED && ((r != 3 && r != 5) || r != s || !plain)) return fail(3002, "Winograd takes 3 x 3 or 5 x 5");
    return 0;
}

/* Bytes of workspace that a supported algorithm needs. */
static uint64_t workspace(const Problem *p, int algorithm) {
    uint64_t filter = (uint64_t)p->w->sizes[1] * (uint64_t)p->w->sizes[2] * (uint64_t)p->w->sizes[3];
    uint64_t outputs = (uint64_t)p->y->sizes[2] * (uint64_t)p->y->sizes[3], images = (uint64_t)p->x->sizes[0];
    switch (family(p->direction, algorithm)) {
    case PRECOMP: return 16 * filter;
    case EXPLICIT: return images * filter * outputs * 4;
    case FFT: case TILED_FFT: return 2 * (size_of(p->x) + size_of(p->y)) + 8 * 32 * 32 * filter;
    case NONFUSED: return 3 * (size_of(p->x) + size_of(p->y)) + 4 * size_of(p->w);
    }
    return 0;
}

/* An IEEE half as a double, by hand: not every compiler has the type. */
static double from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31) value = mantissa ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
}

/* The nearest half; 65520 and above are infinite. */
static uint16_t to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    if (!(fabs(value) < 65520)) return (uint16_t)(sign | (isnan(value) ? 0x7e00 : 0x7c00));
    frexp(value, &exponent);
    if (exponent < -13 || value == 0) exponent = -13;
    return (uint16_t)(sign + ((exponent + 13) << 10) + lrint(ldexp(fabs(value), 11 - exponent)));
}

/* Widen one element to double. */
static double element(const void *data, int type, size_t at) {
    if (type == DOUBLE) return ((const double *)data)[at];
    if (type == FLOAT) return (double)((const float *)data)[at];
    if (type == HALF) return from_half(((const uint16_t *)data)[at]);
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return (double)value;
}

/* Narrow a double into one element. */
static void store(void *data, int type, size_t at, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    if (type == DOUBLE) ((double *)data)[at] = value;
    if (type == FLOAT) ((float *)data)[at] = narrow;
    if (type == HALF) ((uint16_t *)data)[at] = to_half(value);
    if (type == BFLOAT16) ((uint16_t *)data)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A float with TF32's 10 bits of mantissa. */
static float tf32(double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&narrow, &bits, 4);
    return narrow;
}

/* Where element (a, b, c, d) of a tensor lies in its memory. */
static size_t place(const Object *t, int a, int b, int c, int d) {
    const int *s = t->sizes;
    if (t->layout) return (((size_t)a * (size_t)s[2] + (size_t)c) * (size_t)s[3] + (size_t)d) * (size_t)s[1] + (size_t)b;
    return (((size_t)a * (size_t)s[1] + (size_t)b) * (size_t)s[2] + (size_t)c) * (size_t)s[3] + (size_t)d;
}

/* All three directions in one loop: the working copies have k innermost, x as (n, c, h, w), w as (c, r, s, k) with
 * k of all groups, y as (n, p, q, k). Sums are kept in the working type. */
#define COMPUTE(NAME, T, ROUND)                                                                                      \
    static void NAME(const Problem *m, const void *xs, const void *ws, const void *ys, double alpha, double beta) {  \
        const Object *v = m->conv;                                                                                   \
        const int *xd = m->x->sizes, *wd = m->w->sizes, *yd = m->y->sizes, type = m->x->type, K = wd[0];             \
        size_t counts[] = {size_of(m->x) / width(type), size_of(m->w) / width(type), size_of(m->y) / width(type)};   \
        T *x = calloc(counts[0], sizeof *x), *w = calloc(counts[1], sizeof *w), *y = calloc(counts[2], sizeof *y);   \
        if (!x || !w || !y) abort();                                                                                 \
        T *const work[] = {y, x, w}, *result = work[m->direction];                                                   \
        const void *const raw[] = {ys, xs, ws};                                                                      \
        for (int writing = 0; writing < 2; writing++) {                                                              \
            for (int role = 0; role < 3; role++) {                                                                   \
                const Object *t = role == 0 ? m->y : role == 1 ? m->x : m->w;                                        \
                const int *d = t->sizes;                                                                             \
                if (writing != (work[role] == result)) continue;                                                     \
                for (int a = 0; a < d[0]; a++)                                                                       \
                    for (int b = 0; b < d[1]; b++)                                                                   \
                        for (int i = 0; i < d[2]; i++)                                                               \
                            for (int j = 0; j < d[3]; j++) {                                                         \
                                size_t at = place(t, a, b, i, j), mine;                                              \
                                if (role == 0) mine = (size_t)((a * d[2] + i) * d[3] + j) * (size_t)K + (size_t)b;   \
                                else if (role == 1) mine = (size_t)(((a * d[1] + b) * d[2] + i) * d[3] + j);         \
                                else mine = (size_t)((b * d[2] + i) * d[3] + j) * (size_t)K + (size_t)a;             \
                                if (!writing) { work[role][mine] = (T)ROUND(element(raw[role], type, at)); continue; } \
                                double old = beta == 0.0 ? 0.0 : beta * element(raw[role], type, at);                \
                                store((void *)raw[role], type, at, alpha * (double)work[role][mine] + old);          \
                            }                                                                                        \
            }                                                                                                        \
            if (writing) break;                                                                                      \
            int C = wd[1], per = K / v->groups;                                                                      \
            for (int n = 0; n < xd[0]; n++)                                                                          \
                for (int p = 0; p < yd[2]; p++)                                                                      \
                    for (int q = 0; q < yd[3]; q++)                                                                  \
                        for (int c = 0; c < xd[1]; c++)                                                              \
                            for (int r = 0; r < wd[2]; r++)                                                          \
                                for (int s = 0; s < wd[3]; s++) {                                                    \
                                    int h = p * v->stride[0] - v->pad[0] + r * v->dilation[0];                       \
                                    int i = q * v->stride[1] - v->pad[1] + s * v->dilation[1];                       \
                                    if (h < 0 || i < 0 || h >= xd[2] || i >= xd[3]) continue;                        \
                                    T *X = &x[((n * xd[1] + c) * xd[2] + h) * xd[3] + i], sum = 0;                   \
                                    T *W = &w[(((c % C) * wd[2] + r) * wd[3] + s) * K + c / C * per];                \
                                    T *Y = &y[((n * yd[2] + p) * yd[3] + q) * K + c / C * per];                      \
                                    if (m->direction == FORWARD)                                                     \
                                        for (int k = 0; k < per; k++) Y[k] += *X * W[k];                             \
                                    else if (m->direction == BACKWARD_FILTER)                                        \
                                        for (int k = 0; k < per; k++) W[k] += *X * Y[k];                             \
                                    else {                                                                           \
                                        for (int k = 0; k < per; k++) sum += Y[k] * W[k];                            \
                                        *X += sum;                                                                   \
                                    }                                                                                \
                                }                                                                                    \
        }                                                                                                            \
        free(x), free(w), free(y);                                                                                   \
    }
#define EXACT(value) (value)
COMPUTE(compute_float, float, EXACT)
COMPUTE(compute_tf32, float, tf32)
COMPUTE(compute_double, double, EXACT)

/* 1 where fp32 may run on tensor cores as TF32. */
static int uses_tf32(const Problem *p) {
    const char *override = getenv("NVIDIA_TF32_OVERRIDE");
    int off = override && !strcmp(override, "0");
    return p->x->type == FLOAT && p->conv->math != FMA_MATH && fake_gpu()->major >= 8 && !off;
}

/* The kernels of a family of algorithms, with their shares of the work; names as nvcc mangles them. */
typedef struct { const char *name; double share; uint32_t threads, registers, shared; } Part;
static const Part PARTS[][4] = {
    {{"_Z23implicit_convolve_sgemmIffLi128ELi6ELi7ELi3ELi3ELi5ELi1ELb0ELb0ELb1EEviiiPKT_iPT0_S2_", 1, 128, 96, 4352}},
    {{"_ZN5cudnn3cnn23kern_precompute_indicesILi128ELi0EEEvPiiPNS0_15reduced_divisorE", .02, 128, 24, 0},
     {"ampere_scudnn_128x64_relu_interior_nn_v1", .98, 128, 122, 12544}},
    {{"_ZN5cudnn3cnn15im2col4d_kernelIfLi128EEEvPKT_PS2_i", .3, 128, 40, 0},
     {"ampere_sgemm_128x64_nn", .7, 128, 120, 12544}},
    {{"_Z15fft2d_r2c_16x16ILi0ELb0EEvPfPKfi", .3, 256, 64, 8448}, {"ampere_cgemm_32x32_tn", .4, 256, 86, 8448},
     {"_Z15fft2d_c2r_16x16ILi0ELb0EEvPfPKfi", .3, 256, 64, 8448}},
    {{"_Z15fft2d_r2c_32x32ILi0ELb0EEvPfPKfi", .3, 256, 72, 8448}, {"ampere_cgemm_32x32_tn", .4, 256, 86, 8448},
     {"_Z15fft2d_c2r_32x32ILi0ELb0EEvPfPKfi", .3, 256, 72, 8448}},
    {{"volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", 1, 256, 127, 49152}},
    {{"_ZN5cudnn3cnn22winogradForwardData4x4IffLi4EEEvPKT_PT0_", .2, 256, 48, 0},
     {"_ZN5cudnn3cnn24winogradForwardFilter4x4IffLi4EEEvPKT_PT0_", .1, 256, 48, 0},
     {"ampere_sgemm_64x64_nn", .5, 128, 100, 8448},
     {"_ZN5cudnn3cnn24winogradForwardOutput4x4IffLi4EEEvPKT_PT0_", .2, 256, 48, 0}},
    {{"_ZN5cudnn3cnn12dgrad_engineIfLi128ELi6ELi7ELi3ELi3ELi5ELb0EEEviiiPKT_PS2_", 1, 256, 80, 4352}},
};
static const Part WGRAD[] = {{"_ZN5cudnn3cnn17wgrad_alg0_engineIfLi128ELi6ELi7ELi3ELi3ELi5ELb0ELi512EEEviiiPKT_PS2_", 1, 256, 84, 9472},
                             {"_ZN5cudnn3cnn17wgrad_alg1_engineIfLi128ELi6ELi7ELi3ELi3ELi5ELb0ELb0EEEviiiPKT_PS2_", 1, 256, 84, 9472}};

/* Run the kernels of an algorithm on the clock; a gradient of the filter that adds by atomics is cleared before. */
static void launch_all(const Problem *p, int algorithm) {
    static const double SPEED[] = {.35, .6, .4, .45, .5, .9, .8, .3};
    int kind = family(p->direction, algorithm);
    double bytes = (double)(size_of(p->x) + size_of(p->w) + size_of(p->y));
    if (kind == ATOMIC) fake_memset_record(size_of(p->direction == BACKWARD_DATA ? p->x : p->w));
    for (int at = 0; at < 4; at++) {
        const Part *part = &PARTS[kind][at];
        if (p->direction == BACKWARD_FILTER && (kind == ATOMIC || kind == PRECOMP)) part = &WGRAD[kind == PRECOMP];
        if (!PARTS[kind][at].name) break;
        uint32_t blocks = (uint32_t)fmin(1 + p->macs / (64.0 * part->threads), 1e9);
        fake_launch(&(Launch){part->name, {blocks, 1, 1}, {part->threads, 1, 1}, part->registers, part->shared, 0,
                              2 * p->macs * part->share / SPEED[kind], bytes * part->share});
        if (part == &WGRAD[1]) break;
    }
}

/* Run one algorithm: workspace, operands, faults, kernels, result. */
static int run(const Problem *p, const char *function, int algorithm, const void *alpha, const void *x, const void *w,
               const void *y, const void *beta, const void *space, size_t space_bytes) {
    int status = supported(p, algorithm);
    if (status) return status;
    if (!alpha || !beta || !x || !w || !y) return fail(NULL_POINTER, "an operand is NULL");
    uint64_t needed = workspace(p, algorithm);
    if (space_bytes < needed || (needed && !space))
        return fail(BAD_PARAM, "workspace of %llu bytes, needed %llu", (unsigned long long)space_bytes, (unsigned long long)needed);
    if (fake_error()) return fail(EXECUTION_FAILED_CUDART, "CUDA error %d", fake_error());
    int fault = fake_fault(function, algorithm);
    if (fault == FAULT_INTERNAL) return fail(fake_version() < 90000 ? 4 : INTERNAL_ERROR, "CUDA error %d", fake_error());
    if (fault == FAULT_SOFT) return fail(EXECUTION_FAILED_CUDART, "cudaErrorLaunchOutOfResources");
    if (fault == FAULT_MEMORY) return fail(DEVICE_ALLOCATION_FAILED, "cudaMalloc failed");
    uint32_t width_ = (uint32_t)width(p->x->type);
    const Operand operands[] = {{"x", x, size_of(p->x), p->direction == BACKWARD_DATA, width_},
                                {"w", w, size_of(p->w), p->direction == BACKWARD_FILTER, width_},
                                {"y", y, size_of(p->y), p->direction == FORWARD, width_},
                                {"workspace", space, needed, 1, 16}};
    if (!fake_reachable(function, operands, 4)) return 0; /* shows when the stream is waited for */
    int wide = p->x->type == DOUBLE;
    double a = wide ? *(const double *)alpha : (double)*(const float *)alpha;
    double b = wide ? *(const double *)beta : (double)*(const float *)beta;
    launch_all(p, algorithm);
    if (p->macs <= COMPUTED_MACS)
        (wide ? compute_double : uses_tf32(p) ? compute_tf32 : compute_float)(p, x, w, y, fault == FAULT_NAN ? NAN : a, b);
    return 0;
}

/* The workspace of an algorithm. */
static int workspace_size(const Problem *p, int algorithm, size_t *bytes) {
    int status = supported(p, algorithm);
    if (!status) *bytes = (size_t)workspace(p, algorithm);
    return status;
}

/* Fastest first, refused last. */
static int faster(const void *a, const void *b) {
    const Perf *one = a, *other = b;
    if (!one->status != !other->status) return one->status ? 1 : -1;
    return (one->milliseconds > other->milliseconds) - (one->milliseconds < other->milliseconds);
}

/* Rank the algorithms: by a model alone (`pointers` is NULL; times are -1), or by running each once. */
static int rank(const Problem *p, const char *function, const void *const *pointers, const void *space, size_t space_bytes,
                int room, int *count, Perf *perf) {
    static const double SPEED[] = {.35, .6, .4, .45, .5, .9, .8, .3};
    if (!count || !perf || room < 1) return fail(BAD_PARAM, "no room for results");
    const double one[2] = {1.0, 0.0};
    const float narrow[2] = {1.0f, 0.0f};
    const void *scales = p->x->type == DOUBLE ? (const void *)one : (const void *)narrow;
    Perf all[16];
    int found = 0;
    for (int algorithm = 0; algorithm < ALGORITHMS[p->direction]; algorithm++) {
        int kind = family(p->direction, algorithm), status = supported(p, algorithm);
        Perf entry = {algorithm, status, -1.0f, 0, kind != ATOMIC, p->conv->math, {0}};
        if (!status) {
            entry.memory = (size_t)workspace(p, algorithm), entry.milliseconds = (float)(1.0 / SPEED[kind]);
            if (pointers && entry.memory <= space_bytes) {
                uint64_t began = fake_clock();
                const char *zero = (const char *)scales + width(p->x->type == DOUBLE ? DOUBLE : FLOAT);
                entry.status = run(p, function, algorithm, scales, pointers[0], pointers[1], pointers[2], zero, space, space_bytes);
                entry.milliseconds = (float)((double)(fake_clock() - began) / 1e6);
            } else if (pointers) {
                entry.status = DEVICE_ALLOCATION_FAILED, entry.milliseconds = -1.0f;
            }
        }
        all[found++] = entry;
    }
    qsort(all, (size_t)found, sizeof *all, faster);
    *count = found < room ? found : room;
    memcpy(perf, all, (size_t)*count * sizeof *perf);
    for (int at = 0; !pointers && at < *count; at++) perf[at].milliseconds = -1.0f;
    return fake_error() ? fail(EXECUTION_FAILED_CUDART, "CUDA error %d", fake_error()) : 0;
}

/* The four functions of each direction: `A`, `B`, `R` are the roles of operands and result. */
#define DIRECTION(STEM, WAY, A, B, R)                                                                                 \
    int cudnnGetConvolution##STEM##WorkspaceSize(Object *handle, Object *A, Object *B, Object *conv, Object *R,       \
                                                 int algorithm, size_t *bytes) {                                      \
        Problem p;                                                                                                    \
        fake_fault("cudnnGetConvolution" #STEM "WorkspaceSize", algorithm);                                           \
        int status = convolution(&p, handle, x, w, y, conv, WAY);                                                     \
        return status ? status : workspace_size(&p, algorithm, bytes);                                                \
    }                                                                                                                 \
    int cudnnGetConvolution##STEM##Algorithm_v7(Object *handle, Object *A, Object *B, Object *conv, Object *R,        \
                                                int room, int *count, Perf *perf) {                                   \
        Problem p;                                                                                                    \
        fake_fault("cudnnGetConvolution" #STEM "Algorithm_v7", -1);                                                   \
        int status = convolution(&p, handle, x, w, y, conv, WAY);                                                     \
        return status ? status : rank(&p, "", NULL, NULL, 0, room, count, perf);                                      \
    }                                                                                                                 \
    int cudnnFindConvolution##STEM##AlgorithmEx(Object *handle, Object *A, const void *A##_, Object *B,               \
                                                const void *B##_, Object *conv, Object *R, const void *R##_,          \
                                                int room, int *count, Perf *perf, const void *space, size_t bytes) {  \
        Problem p;                                                                                                    \
        fake_fault("cudnnFindConvolution" #STEM "AlgorithmEx", -1);                                                   \
        int status = convolution(&p, handle, x, w, y, conv, WAY);                                                     \
        return status ? status : rank(&p, "find", (const void *[]){x_, w_, y_}, space, bytes, room, count, perf);     \
    }                                                                                                                 \
    int cudnnConvolution##STEM(Object *handle, const void *alpha, Object *A, const void *A##_, Object *B,             \
                               const void *B##_, Object *conv, int algorithm, const void *space, size_t bytes,        \
                               const void *beta, Object *R, const void *R##_) {                                       \
        Problem p;                                                                                                    \
        int status = convolution(&p, handle, x, w, y, conv, WAY);                                                     \
        return status ? status : run(&p, "cudnnConvolution" #STEM, algorithm, alpha, x_, w_, y_, beta, space, bytes); \
    }
DIRECTION(Forward, FORWARD, x, w, y)
DIRECTION(BackwardData, BACKWARD_DATA, w, y, x)
DIRECTION(BackwardFilter, BACKWARD_FILTER, x, y, w)

/* Pooling of a window without padding. */
int cudnnSetPooling2dDescriptor(Object *object, int mode, int nan, int h, int w, int ph, int pw, int u, int v) {
    int status = check(object, POOLING, 0);
    if (status) return status;
    if (mode < 0 || mode > 3 || nan < 0 || nan > 1 || h < 1 || w < 1 || ph || pw || u < 1 || v < 1)
        return fail(BAD_PARAM, "window %d, stride %d, padding %d", h, u, ph);
    object->window[0] = h, object->window[1] = w, object->stride[0] = u, object->stride[1] = v, object->set = 1;
    return 0;
}
int cudnnSetActivationDescriptor(Object *object, int mode, int nan, double ceiling) {
    int status = check(object, ACTIVATION, 0);
    if (!status && (mode < 0 || nan < 0 || ceiling < 0)) status = fail(BAD_PARAM, "mode %d", mode);
    if (!status) object->mode = mode, object->set = 1;
    return status;
}

/* Run an operator of one kernel over tensors (those with `written` set are results), moving their bytes once. */
static int stream(const char *function, const Object *handle, const void *alpha, const void *beta, const char *kernel,
                  int count, const Object *const *tensors, Operand *operands) {
    double bytes = 0;
    int status = check(handle, HANDLE, 1);
    if (!status && (!alpha || !beta)) status = fail(NULL_POINTER, "alpha or beta is NULL");
    for (int at = 0; !status && at < count; at++) {
        status = check(tensors[at], TENSOR, 1);
        if (status) return status;
        operands[at].bytes = size_of(tensors[at]), operands[at].alignment = (uint32_t)width(tensors[at]->type);
        bytes += (double)operands[at].bytes;
    }
    if (status) return status;
    if (fake_error()) return fail(EXECUTION_FAILED_CUDART, "CUDA error %d", fake_error());
    int fault = fake_fault(function, -1);
    if (fault == FAULT_SOFT) return fail(EXECUTION_FAILED_CUDART, "cudaErrorLaunchOutOfResources");
    if (fault == FAULT_MEMORY) return fail(DEVICE_ALLOCATION_FAILED, "cudaMalloc failed");
    if (!fake_reachable(function, operands, count)) return 0;
    uint32_t blocks = (uint32_t)(1 + bytes / 4096);
    fake_launch(&(Launch){kernel, {blocks, 1, 1}, {256, 1, 1}, 32, 0, 0, bytes / 4, bytes});
    return 0;
}

/* 0 where y is x pooled. */
static int pooled(const Object *pooling, const Object *x, const Object *y) {
    int status = check(pooling, POOLING, 1);
    for (int axis = 0; !status && axis < 2; axis++) {
        int wanted = (x->sizes[2 + axis] - pooling->window[axis]) / pooling->stride[axis] + 1;
        if (y->sizes[2 + axis] != wanted) status = fail(BAD_PARAM, "the pooled size is not %d", wanted);
    }
    return status;
}
int cudnnPoolingForward(Object *handle, Object *pooling, const void *alpha, Object *x, const void *x_, const void *beta,
                        Object *y, const void *y_) {
    int status = pooled(pooling, x, y);
    return status ? status : stream("cudnnPoolingForward", handle, alpha, beta,
                                    "_ZN5cudnn3ops20pooling_fw_4d_kernelIffLi0EEEvPKT_PS2_iT0_S6_", 2,
                                    (const Object *[]){x, y}, (Operand[]){{"x", x_}, {"y", y_, 0, 1}});
}
int cudnnPoolingBackward(Object *handle, Object *pooling, const void *alpha, Object *y, const void *y_, Object *dy,
                         const void *dy_, Object *x, const void *x_, const void *beta, Object *dx, const void *dx_) {
    int status = pooled(pooling, x, y);
    return status ? status : stream("cudnnPoolingBackward", handle, alpha, beta,
                                    "_ZN5cudnn3ops21pooling_bw_kernel_maxIfEEvPKT_S4_S4_PS2_i", 4,
                                    (const Object *[]){y, dy, x, dx},
                                    (Operand[]){{"y", y_}, {"dy", dy_}, {"x", x_}, {"dx", dx_, 0, 1}});
}
int cudnnActivationForward(Object *handle, Object *activation, const void *alpha, Object *x, const void *x_,
                           const void *beta, Object *y, const void *y_) {
    int status = check(activation, ACTIVATION, 1);
    return status ? status : stream("cudnnActivationForward", handle, alpha, beta,
                                    "_ZN5cudnn3ops24op_generic_tensor_kernelIfEEvPKT_PS2_i", 2,
                                    (const Object *[]){x, y}, (Operand[]){{"x", x_}, {"y", y_, 0, 1}});
}
int cudnnSoftmaxForward(Object *handle, int algorithm, int mode, const void *alpha, Object *x, const void *x_,
                        const void *beta, Object *y, const void *y_) {
    if (algorithm < 0 || algorithm > 2 || mode < 0 || mode > 1) return fail(BAD_PARAM, "softmax %d %d", algorithm, mode);
    return stream("cudnnSoftmaxForward", handle, alpha, beta, "_ZN5cudnn3ops17softmax_fw_kernelIfLi2EEEvPKT_PS2_i", 2,
                  (const Object *[]){x, y}, (Operand[]){{"x", x_}, {"y", y_, 0, 1}});
}
int cudnnTransformTensor(Object *handle, const void *alpha, Object *x, const void *x_, const void *beta, Object *y,
                         const void *y_) {
    return stream("cudnnTransformTensor", handle, alpha, beta,
                  "_ZN5cudnn3ops16nchwToNhwcKernelIfffLb0ELb1ELi2EEEvPNS0_6ParamsEPKT_PT0_", 2,
                  (const Object *[]){x, y}, (Operand[]){{"x", x_}, {"y", y_, 0, 1}});
}
int cudnnBatchNormalizationForwardTraining(Object *handle, int mode, const void *alpha, const void *beta, Object *x,
                                           const void *x_, Object *y, const void *y_, Object *per, const void *scale,
                                           const void *bias, double factor, void *mean, void *variance, double epsilon,
                                           void *saved_mean, void *saved_inverse) {
    if (mode < 0 || mode > 2 || factor < 0 || epsilon < 0) return fail(BAD_PARAM, "mode %d", mode);
    return stream("cudnnBatchNormalizationForwardTraining", handle, alpha, beta,
                  "_ZN5cudnn3ops25bn_fw_tr_1C11_kernel_NCHWIffLi512EEEvPKT_PS2_T0_", 8,
                  (const Object *[]){x, y, per, per, per, per, per, per},
                  (Operand[]){{"x", x_}, {"y", y_, 0, 1}, {"scale", scale}, {"bias", bias}, {"mean", mean, 0, 1},
                              {"variance", variance, 0, 1}, {"saved mean", saved_mean, 0, 1},
                              {"saved inverse", saved_inverse, 0, 1}});
}
