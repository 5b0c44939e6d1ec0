/* Reads and writes of private memory of another process, if the kernel allows it. */
#ifndef COLLECTIVES_READING_H
#define COLLECTIVES_READING_H

#include <errno.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/uio.h>

/* Read `n` bytes at an address of a process. Return 0, or the number of an error. */
static int cc_read_process(int64_t pid, void *to, uint64_t from, size_t n)
{
    while (n) {
        struct iovec here = {to, n}, there = {(void *)(uintptr_t)from, n};
        const ssize_t got = process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
        if (got <= 0) /* the first part may be readable, and the rest not */
            return got < 0 ? errno : EFAULT;
        to = (char *)to + got;
        from += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* Write `n` bytes to an address of a process. Return 0, or the number of an error. */
static int cc_write_process(int64_t pid, uint64_t to, const void *from, size_t n)
{
    while (n) {
        struct iovec here = {(void *)from, n}, there = {(void *)(uintptr_t)to, n};
        const ssize_t got = process_vm_writev((pid_t)pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            return got < 0 ? errno : EFAULT;
        from = (const char *)from + got;
        to += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* Return whether the kernel can read memory of this process for others, unlike memory that a driver has
 * mapped. */
static int cc_is_readable(int64_t me, const char *data, size_t n)
{
    char ends[2];
    struct iovec here = {ends, 2}, there[2] = {{(void *)data, 1}, {(void *)(data + n - 1), 1}};
    return (uintptr_t)data >> 48 == 0 && process_vm_readv((pid_t)me, &here, 1, there, 2, 0) == 2;
}

/* Let any process of this user read the memory of this one, even under Yama. */
static void cc_allow_reads(void)
{
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
}

#endif
