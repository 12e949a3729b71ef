/* Four products, of which the last two are not listed, and a ReLU. */
#include <stdio.h>
#include "gemm.h"
#include "relu.h"
#define PRODUCT(m_, k_, type) \
    {.batch = 1, .m = m_, .n = 512, .k = k_, .operator_ = "gemm", .dtype = type, .math = "fma", .variant = ""}
int main(void) {
    const struct seer_gemm_problem p[] = {
        PRODUCT(64, 256, "fp32"), PRODUCT(3000, 256, "fp32"), PRODUCT(64, 257, "fp32"), PRODUCT(64, 256, "fp16")};
    for (int i = 0; i < 4; i++) {
        const struct seer_gemm_pick *found = seer_t4_gemm_find(&p[i]);
        if (found) printf("%s %s %.6e\n", found->library, found->algorithm, (double)found->time_us);
        else printf("none\n");
    }
    return seer_t4_pointwise_find(&seer_t4_pointwise_picks[0].problem) == NULL;
}
