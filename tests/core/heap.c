/* The heap of shared arrays: blocks, their reuse, the limit, lending, forks, and threads at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#include "_core/shared/heap.h"
#include "check.h"

enum { THREADS = 4, HELD = 8 };

#define MEBI ((size_t)1 << 20)
#define LIMIT (64 * MEBI)

static int rounds;
static char *common; /* a block of all threads */

static int holds(const char *data, size_t nbytes, char value)
{
    return data[0] == value && memcmp(data, data + 1, nbytes - 1) == 0;
}

static void blocks_have_room(void)
{
    static const size_t sizes[] = {CC_LEAST, CC_LEAST + 1, 5 * CC_PAGE, 9 * CC_PAGE + 1, MEBI, 3 * MEBI - 1, 17 * MEBI};
    enum { N = sizeof sizes / sizeof *sizes };
    char *made[N];
    for (int i = 0; i < N; ++i) {
        made[i] = cc_heap_malloc(sizes[i], 1);
        CHECK(made[i] && (uintptr_t)made[i] % CC_PAGE == 0);
        CHECK(holds(made[i], sizes[i], 0));
        CHECK(cc_heap_of(made[i]) == cc_heap_now() && cc_heap_of(made[i] + sizes[i] - 1) == cc_heap_now());
        CHECK(cc_room_of(cc_heap_now(), made[i]) >= sizes[i]);
        CHECK(cc_room_of(cc_heap_now(), made[i]) == cc_room_for(sizes[i]));
        memset(made[i], i + 1, cc_room_for(sizes[i]));
    }
    for (int i = 0; i < N; ++i)
        CHECK(holds(made[i], cc_room_for(sizes[i]), (char)(i + 1)));
    for (int i = 0; i < N; ++i) {
        char *again;
        cc_free_block(cc_heap_now(), made[i]);
        again = cc_heap_malloc(sizes[i], 1);
        CHECK(again == made[i] && holds(again, sizes[i], 0));
        cc_free_block(cc_heap_now(), again);
    }
    CHECK(cc_heap_now()->used == 0);
}

static void limit_holds(void)
{
    char *made[LIMIT / MEBI];
    CHECK(!cc_heap_malloc(0, 0) && !cc_heap_malloc(CC_LEAST - 1, 0));
    for (size_t less = 0; less < 3 * CC_PAGE; less += CC_PAGE / 2)
        CHECK(!cc_heap_malloc(SIZE_MAX - less, 0));
    CHECK(!cc_heap_malloc(LIMIT + 1, 0));
    for (size_t i = 0; i < LIMIT / MEBI; ++i) {
        made[i] = cc_heap_malloc(MEBI, 0);
        CHECK(made[i]);
    }
    CHECK(!cc_heap_malloc(CC_LEAST, 0) && cc_heap_now()->used == LIMIT);
    cc_free_block(cc_heap_now(), made[0]);
    made[0] = cc_heap_malloc(CC_LEAST, 0); /* pages that were kept do not count against it */
    CHECK(made[0] && cc_heap_now()->used + cc_heap_now()->all_kept <= LIMIT);
    for (size_t i = 0; i < LIMIT / MEBI; ++i)
        cc_free_block(cc_heap_now(), made[i]);
}

static void memory_is_lent(void)
{
    char *made = cc_heap_malloc(MEBI, 0), other;
    cc_heap *heap = cc_heap_now();
    CHECK(!cc_heap_lends(&other, 1));
    CHECK(cc_heap_lends(made, MEBI) && cc_heap_lends(made + CC_PAGE, 1));
    CHECK(!cc_heap_lends(made, heap->nbytes) && !cc_heap_lends(heap->base - 1, 2));
    cc_free_block(heap, made);
}

/* Parent and child do not see each other's later writes, whether the block was lent or not. */
static void child_has_its_own(void)
{
    char *lent = cc_heap_malloc(MEBI, 0), *mine = cc_heap_malloc(MEBI, 1);
    int status, go[2];
    pid_t child;
    CHECK(cc_heap_lends(lent, 1) && pipe(go) == 0);
    memset(lent, 1, MEBI);
    memset(mine, 2, MEBI / 2); /* the rest is a hole */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *fresh;
        CHECK(read(go[0], &status, 1) == 1);
        CHECK(holds(lent, MEBI, 1) && holds(mine, MEBI / 2, 2) && holds(mine + MEBI / 2, MEBI / 2, 0));
        memset(lent, 5, MEBI);
        memset(mine, 6, MEBI);
        CHECK(!cc_heap_now() && !cc_heap_lends(lent, 1));
        fresh = cc_heap_malloc(MEBI, 1); /* in a heap of its own */
        CHECK(fresh && cc_heap_of(fresh) == cc_heap_now() && cc_heap_of(lent) == cc_heap_now()->older);
        CHECK(holds(fresh, MEBI, 0) && cc_heap_lends(fresh, 1));
        cc_free_block(cc_heap_of(lent), lent);
        cc_free_block(cc_heap_of(mine), mine);
        cc_free_block(cc_heap_of(fresh), fresh);
        _exit(0);
    }
    memset(lent, 3, MEBI);
    memset(mine, 4, MEBI);
    CHECK(write(go[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(holds(lent, MEBI, 3) && holds(mine, MEBI, 4));
    CHECK(cc_heap_lends(lent, 1) && !cc_heap_lends(mine, 1));
    cc_free_block(cc_heap_now(), lent);
    cc_free_block(cc_heap_now(), mine);
    mine = cc_heap_malloc(MEBI, 1);
    CHECK(holds(mine, MEBI, 0) && cc_heap_lends(mine, 1));
    cc_free_block(cc_heap_now(), mine);
    close(go[0]);
    close(go[1]);
}

static void *allocates(void *number)
{
    unsigned dice = 1 + (unsigned)(uintptr_t)number;
    char *held[HELD] = {NULL};
    size_t sizes[HELD];
    (void)cc_heap_lends(common, 1); /* unless a fork was first */
    for (int i = 0; i < rounds; ++i) {
        const int at = (int)(roll(&dice) % HELD), zero = (int)(roll(&dice) % 2);
        const char value = (char)(at + 1);
        if (held[at]) {
            CHECK(holds(held[at], sizes[at], value));
            cc_free_block(cc_heap_of(held[at]), held[at]);
        }
        sizes[at] = CC_LEAST + roll(&dice) % (6 * CC_LEAST);
        held[at] = cc_heap_malloc(sizes[at], zero);
        if (!held[at]) /* another thread is about to open the heap */
            continue;
        CHECK(!zero || holds(held[at], sizes[at], 0));
        memset(held[at], value, sizes[at]);
        (void)(roll(&dice) % 4 || cc_heap_lends(held[at], sizes[at]));
    }
    for (int at = 0; at < HELD; ++at)
        if (held[at]) {
            CHECK(holds(held[at], sizes[at], (char)(at + 1)));
            cc_free_block(cc_heap_of(held[at]), held[at]);
        }
    return NULL;
}

static void threads_share_it(int forks)
{
    pthread_t threads[THREADS];
    int status;
    common = cc_heap_malloc(MEBI, 0);
    for (int i = 0; i < THREADS; ++i)
        CHECK(pthread_create(&threads[i], NULL, allocates, (void *)(uintptr_t)i) == 0);
    while (forks-- > 0) {
        const pid_t child = fork();
        if (child == 0) {
            char *made = cc_heap_malloc(MEBI, 1);
            CHECK(made && holds(made, MEBI, 0));
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < THREADS; ++i)
        pthread_join(threads[i], NULL);
    cc_free_block(cc_heap_now(), common);
    CHECK(cc_heap_now()->used == 0);
}

int main(int argc, char **argv)
{
    rounds = begin(argc, argv);
    CHECK(!cc_heap_malloc(MEBI, 0)); /* without a limit there is no heap */
    CHECK(cc_heap_open(LIMIT) && cc_heap_error == 0);
    threads_share_it(0);
    blocks_have_room();
    limit_holds();
    memory_is_lent();
    child_has_its_own();
#ifndef __SANITIZE_THREAD__ /* which does not support threads in a child */
    threads_share_it(20);
#endif
    return 0;
}
