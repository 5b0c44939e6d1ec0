/* The copies of each instruction set that this processor has, in memory without a byte to spare. */
#include "_core/kernels/copies.h"
#include "check.h"

enum { MOST = 700, LINE = 64 };

static void try(const cc_copies *copies, int way, size_t n, size_t to, size_t from)
{
    char *const memory = malloc(n + to), *const source = malloc(n + from);
    CHECK(memory && source);
    for (size_t i = 0; i < n; ++i)
        source[from + i] = (char)(i * 31 + n);
    memset(memory, 7, to);
    if (way == 0)
        copies->copy(memory + to, source + from, n);
    else if (way == 1)
        copies->stream(memory + to, source + from, n);
    else
        cc_copy_by_library(copies, memory + to, source + from, n);
    CHECK(memcmp(memory + to, source + from, n) == 0);
    for (size_t i = 0; i < to; ++i)
        CHECK(memory[i] == 7);
    free(memory);
    free(source);
}

int main(int argc, char **argv)
{
    const int rounds = begin(argc, argv);
    const cc_copies *every[] = {&cc_copies_portable, NULL, NULL};
    unsigned dice = 1;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        every[1] = &cc_copies_avx2;
    if (__builtin_cpu_supports("avx512f"))
        every[2] = &cc_copies_avx512;
#endif
    for (int k = 0; k < 3; ++k)
        for (int way = 0; every[k] && way < 3; ++way) {
            for (size_t n = 0; n < MOST; ++n)
                for (size_t to = 0; to < LINE; to += 1 + n % 7)
                    try(every[k], way, n, to, roll(&dice) % LINE);
            for (int i = 0; i < rounds; ++i)
                try(every[k], way, roll(&dice), roll(&dice) % 4096, roll(&dice) % 4096);
        }
    return 0;
}
