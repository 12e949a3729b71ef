/* The configuration of every listed size. */
#include <stdio.h>
#include "picks.h"
int main(void) {
    for (int m = 1; m < 5000; m++) {
        const struct seer_own_kernel_problem p = {.m = m, .int_ = m, .dtype = "fp16"};
        const struct seer_own_kernel_pick *found = seer_our_own_own_kernel_find(&p);
        if (!found) continue;
        struct seer_own_kernel_configuration c = found->configuration;
        printf("%d %d %g %d %s\n", m, (int)c.block, c.share, (int)c.fast, c.order);
    }
    return 0;
}
