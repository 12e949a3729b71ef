/* Answers every line of FIELD_COUNT numbers, the fields of a problem in the order of FIELDS. */
#include <stdio.h>
#include "picks.h"
#include "picks.h"
#ifdef SOLVERS
#define NAMED(suffix) seer_mi210##suffix
#else
#define NAMED(suffix) seer_t4##suffix
#endif
int main(void) {
    struct seer_problem p;
    int32_t *field[] = {FIELDS};
    for (;;) {
        for (int i = 0; i < FIELD_COUNT; i++) if (scanf("%d", field[i]) != 1) return 0;
        const struct seer_pick *found = NAMED(_find)(&p);
#ifdef SOLVERS
        if (found) printf("%s ", NAMED(_solver)(found));
#endif
        if (found) printf("%d %d %.6e\n", found->algorithm, found->fallback, (double)found->time_us);
        else printf("none\n");
    }
}
