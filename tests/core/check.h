/* The common parts of the tests in C: a check that ends the program, a deadline, and a die. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #what);     \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

/* A signal ends the program after the seconds of its first argument; return the second, the rounds. */
static inline int begin(int argc, char **argv)
{
    CHECK(argc == 3);
    alarm((unsigned)atoi(argv[1]));
    return atoi(argv[2]);
}

static inline unsigned roll(unsigned *dice)
{
    return *dice = *dice * 1103515245u + 12345u, *dice >> 16;
}

#endif
