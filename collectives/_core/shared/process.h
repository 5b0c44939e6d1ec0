/* Processes: a test whether another one still runs, and files that a forked child must close. */
#ifndef COLLECTIVES_PROCESS_H
#define COLLECTIVES_PROCESS_H

#include <stdint.h>

/* Read the state of a process, and when it began, from its `stat`. Return 0, or -1. */
int cc_process_stat(const char *path, int64_t *pid, char *state, uint64_t *began);
/* Return the namespace of this process's number, and when the process began; 0 if others cannot use
 * them to find whether it runs. */
uint64_t cc_process_space(uint64_t *began);
/* Return 1 if a process runs, else 0; -1 if its namespace is not that of this process, `mine`. */
int cc_process_runs(int64_t pid, uint64_t space, uint64_t began, uint64_t mine);

/* A lock belongs to an open file, which a forked child has, too: it would hold the lock of a dead
 * parent. So children close these files at once after any fork. The list is changed with the GIL held,
 * and is consistent at every moment. */
typedef struct cc_own_file {
    int file; /* or -1 */
    struct cc_own_file *next;
} cc_own_file;

/* Add a file to the list. Return 0, or -1 without memory. */
int cc_own(cc_own_file *own, int file);
void cc_disown(cc_own_file *own);

#endif
