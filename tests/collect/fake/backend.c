/* The fake's graph API: descriptors as lists of attributes, with the rules of setting, finalising and asking. */
#include "fake.h"
#include <stdlib.h>
#include <string.h>

/* cudnnBackendDescriptorType_t, …AttributeType_t and …AttributeName_t, as far as they are needed. */
enum { CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, OP_FORWARD = 10, OP_FILTER = 11, OP_DATA = 12,
       GRAPH = 15, TENSOR = 17, DEVICE = 38 };
enum { DATA_TYPE = 1, INT64 = 3, T_FLOAT = 4, T_DOUBLE = 5, MODE = 7, HEUR_MODE = 8, NOTE = 11, DESCRIPTOR = 15, CHAR = 24 };
enum { ATTRIBUTES = 24, VALUES = 8 };

typedef struct Node Node;
/* One attribute that was set. */
typedef struct {
    int name, type;
    int64_t count;
    union { int64_t number; double real; Node *node; } values[VALUES];
} Attribute;
/* A descriptor; `engine` is that of a result. A destroyed one has kind 0 and is kept, so that its use is seen. */
struct Node {
    int kind, final, count, engine;
    Attribute attributes[ATTRIBUTES];
};

/* Attributes: their name, their descriptor's kind (operations count as one), their type, and whether they must be set. */
static const struct { int name, kind, type, needed; } RULES[] = {
    {100, CONVOLUTION, DATA_TYPE, 1}, {101, CONVOLUTION, MODE, 1}, {102, CONVOLUTION, INT64, 1},
    {103, CONVOLUTION, INT64, 1}, {104, CONVOLUTION, INT64, 1}, {105, CONVOLUTION, INT64, 1}, {106, CONVOLUTION, INT64, 1},
    {200, HEURISTIC, HEUR_MODE, 1}, {201, HEURISTIC, DESCRIPTOR, 1}, {204, HEURISTIC, DESCRIPTOR, 0},
    {401, PLAN, DESCRIPTOR, 1}, {407, PLAN, DESCRIPTOR, 0}, {801, GRAPH, DESCRIPTOR, 1},
    {900, TENSOR, INT64, 1}, {901, TENSOR, DATA_TYPE, 1}, {902, TENSOR, INT64, 1}, {903, TENSOR, INT64, 1},
    {906, TENSOR, INT64, 1}, {2702, DEVICE, CHAR, 1},
    {702, OP_FORWARD, DESCRIPTOR, 1}, {703, OP_FORWARD, DESCRIPTOR, 1}, {704, OP_FORWARD, DESCRIPTOR, 1},
    {705, OP_FORWARD, DESCRIPTOR, 1}, {708, OP_DATA, DESCRIPTOR, 1}, {709, OP_DATA, DESCRIPTOR, 1},
    {710, OP_DATA, DESCRIPTOR, 1}, {711, OP_DATA, DESCRIPTOR, 1}, {714, OP_FILTER, DESCRIPTOR, 1},
    {715, OP_FILTER, DESCRIPTOR, 1}, {716, OP_FILTER, DESCRIPTOR, 1}, {717, OP_FILTER, DESCRIPTOR, 1},
    {700, OP_FORWARD, T_FLOAT, 1}, {701, OP_FORWARD, T_FLOAT, 1}, {706, OP_DATA, T_FLOAT, 1}, {707, OP_DATA, T_FLOAT, 1},
    {712, OP_FILTER, T_FLOAT, 1}, {713, OP_FILTER, T_FLOAT, 1},
};
enum { RULE_COUNT = sizeof RULES / sizeof *RULES };
/* The engines of every ranking, best first, their numerical notes (-1 ends them), and workspace in units of 1 KiB. */
static const struct { int engine, notes[3], workspace; } ENGINES[] = {
    {67, {0, -1}, 4}, {68, {1, -1}, 4}, {1, {-1}, 1}, {1, {-1}, 1}, {0, {9, -1}, 0}, {5, {99, -1}, 5}, {2, {5, -1}, 1},
    {3, {4, -1}, 1}, {4, {-1}, 1}};
enum { ENGINE_COUNT = sizeof ENGINES / sizeof *ENGINES };

/* The attribute of a node; NULL where it is not set. */
static Attribute *find(Node *node, int name) {
    for (int at = 0; at < node->count; at++)
        if (node->attributes[at].name == name) return &node->attributes[at];
    return NULL;
}

/* cudnnBackendCreateDescriptor. */
int cudnnBackendCreateDescriptor(int kind, Node **node) {
    if (!node) return fail(NULL_POINTER, "no descriptor");
    if (kind == DEVICE && fake_version() < 90800) return fail(NOT_SUPPORTED, "device properties are of 9.8");
    *node = calloc(1, sizeof **node);
    (*node)->kind = kind;
    return 0;
}
int cudnnBackendDestroyDescriptor(Node *node) {
    if (!node || !node->kind) return fail(BAD_PARAM, "destroyed twice");
    node->kind = 0;
    return 0;
}

/* cudnnBackendSetAttribute: of the right descriptor, type and before it is final; a referenced one must be final. */
int cudnnBackendSetAttribute(Node *node, int name, int type, int64_t count, const void *data) {
    if (!node || !data) return fail(NULL_POINTER, "no descriptor or no data");
    if (node->final || !node->kind) return fail(BAD_PARAM, "the descriptor is final or destroyed");
    int rule = 0;
    while (rule < RULE_COUNT && (RULES[rule].name != name || RULES[rule].kind != node->kind)) rule++;
    if (rule == RULE_COUNT) return fail(BAD_PARAM, "attribute %d is not one of descriptor %d", name, node->kind);
    if (type != RULES[rule].type && !(RULES[rule].type == T_FLOAT && type == T_DOUBLE))
        return fail(ATTRIBUTE_TYPE, "attribute %d has type %d", name, RULES[rule].type);
    if (count < 1 || (type != CHAR && count > VALUES)) return fail(SIZE_INSUFFICIENT, "%lld values", (long long)count);
    Attribute *one = find(node, name);
    if (!one) one = &node->attributes[node->count++];
    *one = (Attribute){.name = name, .type = type, .count = count};
    for (int64_t at = 0; type != CHAR && at < count; at++) {
        if (type == INT64) one->values[at].number = ((const int64_t *)data)[at];
        else if (type == T_FLOAT) one->values[at].real = (double)((const float *)data)[at];
        else if (type == T_DOUBLE) one->values[at].real = ((const double *)data)[at];
        else if (type != DESCRIPTOR) one->values[at].number = ((const int32_t *)data)[at];
        else if ((one->values[at].node = ((Node *const *)data)[at]) == NULL || !one->values[at].node->final)
            return fail(NOT_FINALIZED, "attribute %d names a descriptor that is not final", name);
    }
    if (type == CHAR && ((const char *)data)[0] != '{') return fail(BAD_PARAM, "no JSON");
    return 0;
}

/* An operation's attributes from `first` on: scales 1 and 0, and tensors that are those of its convolution: sizes,
 * types, ids, all packed in one of both orders; sums of half-precision values are kept in fp32 (0). */
static int fake_operation(Node *op, int first) {
    Node *conv = find(op, first + 2)->values[0].node;
    int64_t size[3][4], type[3], id[3], order = -1;
    for (int at = 0; at < 3; at++) {
        Node *tensor = find(op, first + 3 + at)->values[0].node;
        Attribute *sizes = find(tensor, 902), *strides = find(tensor, 903);
        if (sizes->count != 4) return fail(BAD_PARAM, "a tensor has %lld sizes", (long long)sizes->count);
        for (int axis = 0; axis < 4; axis++) size[at][axis] = sizes->values[axis].number;
        int64_t *s = size[at], packed[2][4] = {{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]}};
        int fits[2] = {1, 1};
        for (int axis = 0; axis < 4; axis++)
            for (int way = 0; way < 2; way++) fits[way] &= strides->values[axis].number == packed[way][axis];
        if (!fits[0] && !fits[1]) return fail(BAD_PARAM, "tensor %d is not packed", at);
        if (fits[0] != fits[1] && order >= 0 && order != fits[1]) return fail(BAD_PARAM, "tensors in two orders");
        if (fits[0] != fits[1]) order = fits[1];
        type[at] = find(tensor, 901)->values[0].number, id[at] = find(tensor, 906)->values[0].number;
    }
    int64_t *w = size[0], *x = size[1], *y = size[2], sums = find(conv, 100)->values[0].number;
    if (type[0] != type[1] || type[0] != type[2] || sums != (type[0] == 1)) return fail(BAD_PARAM, "types");
    if (id[0] == id[1] || id[0] == id[2] || id[1] == id[2]) return fail(BAD_PARAM, "two tensors have one id");
    if (find(op, first)->values[0].real != 1.0 || find(op, first + 1)->values[0].real != 0.0) return fail(BAD_PARAM, "scales");
    if (y[0] != x[0] || y[1] != w[0] || x[1] % w[1] || w[0] % (x[1] / w[1])) return fail(BAD_PARAM, "channels or groups");
    for (int axis = 0; axis < 2; axis++) {
        int64_t pads = find(conv, 104)->values[axis].number + find(conv, 105)->values[axis].number;
        int64_t taps = find(conv, 102)->values[axis].number * (w[2 + axis] - 1) + 1;
        if (y[2 + axis] != (x[2 + axis] + pads - taps) / find(conv, 103)->values[axis].number + 1)
            return fail(BAD_PARAM, "the result has another size on axis %d", axis);
    }
    return 0;
}

/* cudnnBackendFinalize: all that is needed is set; alignment a power of two; tensors of four sizes. Faults go by kind. */
int cudnnBackendFinalize(Node *node) {
    if (!node || node->final) return fail(BAD_PARAM, "NULL, or final already");
    int fault = fake_fault("cudnnBackendFinalize", node->kind);
    if (fault) return fail(fault == FAULT_SOFT ? NOT_SUPPORTED : NOT_INITIALIZED, "ordered");
    for (int rule = 0; rule < RULE_COUNT; rule++)
        if (RULES[rule].kind == node->kind && RULES[rule].needed && !find(node, RULES[rule].name))
            return fail(BAD_PARAM, "attribute %d is not set", RULES[rule].name);
    if (node->kind == TENSOR) {
        int64_t alignment = find(node, 900)->values[0].number;
        if (alignment < 1 || alignment & (alignment - 1)) return fail(MISALIGNED, "alignment %lld", (long long)alignment);
        if (find(node, 902)->count != find(node, 903)->count) return fail(BAD_PARAM, "sizes and strides differ");
    }
    if (node->kind >= OP_FORWARD && node->kind <= OP_DATA) {
        int first = node->kind == OP_FORWARD ? 700 : node->kind == OP_DATA ? 706 : 712, refused = fake_operation(node, first);
        if (refused) return refused;
    }
    if (node->kind == HEURISTIC && !find(node, 204) && !fake_gpu()) return fail(NOT_INITIALIZED, "no device");
    if (node->kind == PLAN && ENGINES[find(node, 401)->values[0].node->engine].engine == 5)
        return fail(NOT_SUPPORTED, "engine 5 refuses the problem after all");
    node->final = 1;
    return 0;
}

/* cudnnBackendGetAttribute of a final descriptor: results, engine, index, notes, workspace. */
int cudnnBackendGetAttribute(Node *node, int name, int type, int64_t room, int64_t *count, void *data) {
    if (!node || !count) return fail(NULL_POINTER, "no descriptor or no count");
    if (!node->final) return fail(NOT_FINALIZED, "descriptor %d is not final", node->kind);
    fake_fault("cudnnBackendGetAttribute", -1);
    int wanted = name == 202 || name == 301 || name == 300 ? DESCRIPTOR : name == 1303 ? NOTE : INT64;
    if (type != wanted) return fail(ATTRIBUTE_TYPE, "attribute %d has type %d", name, wanted);
    if ((name == 202 && node->kind == HEURISTIC) || (name == 300 && node->kind == CONFIG)) {
        *count = name == 202 ? ENGINE_COUNT : 1;
        for (int64_t at = 0; data && at < room && at < *count; at++) {
            Node *into = ((Node **)data)[at];
            if (!into || into->kind != (name == 202 ? CONFIG : ENGINE)) return fail(2012, "descriptor %d", into ? into->kind : 0);
            into->engine = name == 202 ? (int)at : node->engine, into->final = 1;
        }
        if (name == 202 && data && *count > room) *count = room;
        return 0;
    }
    int engine = node->kind == PLAN ? find(node, 401)->values[0].node->engine : node->engine;
    *count = 1;
    if (name == 1301 && node->kind == ENGINE) {
        *(int64_t *)data = ENGINES[engine].engine;
    } else if (name == 402 && node->kind == PLAN) {
        *(int64_t *)data = 1024 * ENGINES[engine].workspace;
    } else if (name == 1303 && node->kind == ENGINE) {
        for (*count = 0; ENGINES[engine].notes[*count] >= 0; ++*count)
            if (*count < room) ((int32_t *)data)[*count] = ENGINES[engine].notes[*count];
    } else {
        return fail(BAD_PARAM, "attribute %d of descriptor %d", name, node->kind);
    }
    return 0;
}
