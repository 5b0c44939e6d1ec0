/* Processes: a test whether another one still runs, and files that a forked child must close. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

/* ---- whether a process runs -------------------------------------------------------------------- */

int cc_process_stat(const char *path, int64_t *pid, char *state, uint64_t *began)
{
    char text[1024];
    const char *rest;
    unsigned long long ticks;
    long long number;
    ssize_t n;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    n = read(file, text, sizeof text - 1);
    close(file);
    if (n <= 0)
        return -1;
    text[n] = 0;
    rest = strrchr(text, ')'); /* the name before it may have any characters */
    if (!rest || sscanf(text, "%lld", &number) != 1 ||
        sscanf(rest + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               state, &ticks) != 2)
        return -1;
    *pid = number;
    *began = ticks;
    return 0;
}

uint64_t cc_process_space(uint64_t *began)
{
    struct stat space;
    int64_t pid;
    char state;
    if (cc_process_stat("/proc/self/stat", &pid, &state, began) || stat("/proc/self/ns/pid", &space))
        return 0;
    return pid == getpid() ? space.st_ino : 0; /* else /proc is that of another namespace */
}

int cc_process_runs(int64_t pid, uint64_t space, uint64_t began, uint64_t mine)
{
    char path[64], state;
    uint64_t then;
    int64_t number;
    if (!space || space != mine)
        return -1;
    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    if (cc_process_stat(path, &number, &state, &then))
        return 1; /* there is a process with that number, but its age is not known */
    return then == began && state != 'Z' && state != 'X';
}

/* ---- files that children do not keep ------------------------------------------------------------- */

static cc_own_file *cc_own_files;

static void cc_close_in_child(void)
{
    for (cc_own_file *each = cc_own_files; each; each = each->next) {
        close(each->file);
        each->file = -1;
    }
    cc_own_files = NULL;
}

int cc_own(cc_own_file *own, int file)
{
    static int watches;
    if (!watches && pthread_atfork(NULL, NULL, cc_close_in_child))
        return -1;
    watches = 1;
    own->file = file;
    own->next = cc_own_files;
    __atomic_store_n(&cc_own_files, own, __ATOMIC_RELEASE);
    return 0;
}

void cc_disown(cc_own_file *own)
{
    cc_own_file **place = &cc_own_files;
    while (*place && *place != own)
        place = &(*place)->next;
    if (*place)
        __atomic_store_n(place, own->next, __ATOMIC_RELEASE);
    if (own->file >= 0)
        close(own->file);
    own->file = -1;
}
