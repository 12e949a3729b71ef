/* C (m x n) = A (m x k) * B (k x n), all row by row, in single precision.

A work group computes a tile of tile_m x tile_n, each of its work items item_m rows and item_n columns of it, the
columns as vectors of `vector` floats. The sum over k takes unroll_k steps at a time. Where `staged` is 1, a work group
first copies SLICE rows of its tile of B into local memory.

Tiles may reach beyond C. A row or vector beyond the edge is then computed at the last place that is inside and not
stored, so the loops need no conditions; what lies outside costs as much time as what lies inside. A vector across the
edge is moved back to end at it, and stores again what its neighbour stores, the same values. n >= vector is needed.

The parameters are macros that Kernel Tuner defines; sizes are arguments, so one program serves all shapes. */

#define JOINED(name, number) name##number
#define JOIN(name, number) JOINED(name, number)
#if vector == 1
typedef float lanes;
#define LOAD(pointer) (*(pointer))
#define STORE(value, pointer) (*(pointer) = (value))
#else
typedef JOIN(float, vector) lanes;
#define LOAD(pointer) JOIN(vload, vector)(0, pointer)
#define STORE(value, pointer) JOIN(vstore, vector)(value, 0, pointer)
#endif
#define SLICE 32
#define VECTORS (item_n / vector)
#define ITEMS_M (tile_m / item_m)
#define ITEMS_N (tile_n / item_n)

/* One step of the sum: `left` is the column of A that belongs to the rows, `right` gives the place of vector j of B. */
#define STEP(left, right)                                                                                              \
    {                                                                                                                  \
        lanes b_values[VECTORS];                                                                                       \
        _Pragma("unroll") for (int j = 0; j < VECTORS; j++) b_values[j] = LOAD(right(j));                              \
        _Pragma("unroll") for (int i = 0; i < item_m; i++) {                                                           \
            const lanes a_value = (lanes)(a[row_start[i] + (left)]);                                                   \
            _Pragma("unroll") for (int j = 0; j < VECTORS; j++) sum[i][j] += a_value * b_values[j];              \
        }                                                                                                              \
    }

__attribute__((reqd_work_group_size(ITEMS_N, ITEMS_M, 1))) kernel void
matmul(global const float *restrict a, global const float *restrict b, global float *restrict c, int m, int n, int k)
{
    const int first_row = get_group_id(1) * tile_m + get_local_id(1) * item_m;
    const int tile_column = get_group_id(0) * tile_n;
    const int item_column = get_local_id(0) * item_n;
    int row_start[item_m];
    int column[VECTORS];
    lanes sum[item_m][VECTORS];
    _Pragma("unroll") for (int i = 0; i < item_m; i++) {
        row_start[i] = min(first_row + i, m - 1) * k;
        _Pragma("unroll") for (int j = 0; j < VECTORS; j++) sum[i][j] = (lanes)(0.0f);
    }
    _Pragma("unroll") for (int j = 0; j < VECTORS; j++)
        column[j] = min(tile_column + item_column + j * vector, n - vector);

#if staged
    local float slice[SLICE * tile_n];
    const int item = get_local_id(1) * ITEMS_N + get_local_id(0);
    for (int start = 0; start < k; start += SLICE) {
        const int depth = min(SLICE, k - start);
        for (int place = item; place < depth * (tile_n / vector); place += ITEMS_M * ITEMS_N) {
            const int row = place / (tile_n / vector);
            const int offset = place % (tile_n / vector) * vector;
            STORE(LOAD(b + (start + row) * n + min(tile_column + offset, n - vector)), slice + row * tile_n + offset);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#define IN_SLICE(j) (slice + (step + u) * tile_n + item_column + (j) * vector)
        int step = 0;
        for (; step + unroll_k <= depth; step += unroll_k)
            _Pragma("unroll") for (int u = 0; u < unroll_k; u++) STEP(start + step + u, IN_SLICE)
        for (; step < depth; step++) {
            const int u = 0;
            STEP(start + step, IN_SLICE)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#else
#define IN_B(j) (b + (step + u) * n + column[j])
    int step = 0;
    for (; step + unroll_k <= k; step += unroll_k)
        _Pragma("unroll") for (int u = 0; u < unroll_k; u++) STEP(step + u, IN_B)
    for (; step < k; step++) {
        const int u = 0;
        STEP(step, IN_B)
    }
#endif

    _Pragma("unroll") for (int i = 0; i < item_m; i++)
        _Pragma("unroll") for (int j = 0; j < VECTORS; j++)
            if (first_row + i < m && tile_column + item_column + j * vector < n)
                STORE(sum[i][j], c + (first_row + i) * n + column[j]);
}
