/* Other hosts: a test whether one answers, and a thread that ends this process when it no longer does.
 *
 * A host is asked for a connection to a port of TCP. A refusal is an answer. */
#ifndef COLLECTIVES_HOSTS_H
#define COLLECTIVES_HOSTS_H

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../shared/clock.h"

#define CC_ANSWER 3.0    /* seconds for an answer; the kernel asks twice in that time */
#define CC_QUESTIONS 2   /* the least number of questions without an answer */
#define CC_LONGEST 10.0  /* seconds between two questions, at most */

/* The host that is watched while MPI is finalised. */
static struct {
    volatile int wanted;
    struct sockaddr_storage address;
    socklen_t nbytes;
    double patience; /* seconds without an answer */
    int ends;        /* whether the process is ended, or only a text is written */
    int launcher;    /* the descriptor by which MPICH talks to its launcher, or -1 */
    int daemon;      /* the process number of Open MPI's daemon on this host, or 0 */
    char text[1024]; /* the text for stderr */
} cc_watched;

/* Find the address of a host, a number of IPv4 or IPv6, and of a port. Returns 0, or -1. */
static int cc_host_address(const char *host, const char *port, struct sockaddr_storage *address,
                           socklen_t *nbytes)
{
    struct addrinfo hints, *found;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(host, port, &hints, &found))
        return -1;
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *nbytes = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

/* Return 1 if a host answers within some seconds, or if this process cannot ask. */
static int cc_host_answers(const struct sockaddr_storage *address, socklen_t nbytes, double seconds)
{
    struct pollfd asked;
    int error = 0;
    socklen_t size = sizeof error;
    asked.fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (asked.fd < 0)
        return 1;
    if (connect(asked.fd, (const struct sockaddr *)address, nbytes))
        error = errno;
    if (error == EINPROGRESS) {
        asked.events = POLLOUT;
        if (poll(&asked, 1, (int)(seconds * 1e3)) <= 0 ||
            getsockopt(asked.fd, SOL_SOCKET, SO_ERROR, &error, &size))
            error = ETIMEDOUT;
    }
    close(asked.fd);
    return error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH &&
           error != EHOSTDOWN && error != ENETDOWN;
}

/* Write a text, unless this would block because nothing reads it. */
static void cc_tell(int file, const char *text)
{
    struct pollfd ready = {file, POLLOUT, 0};
    if (poll(&ready, 1, 1000) > 0 && write(file, text, strlen(text)) < 0)
        errno = 0;
}

static void cc_rest(double seconds)
{
    struct timespec pause;
    pause.tv_sec = (time_t)seconds;
    pause.tv_nsec = (long)(1e9 * (seconds - (double)pause.tv_sec));
    nanosleep(&pause, NULL);
}

static void *cc_watch(void *unused)
{
    double silent = 0, pause = cc_watched.patience / 60, began, passed;
    int asked = 0; /* questions without an answer */
    (void)unused;
    pause = pause < 1 ? 1 : pause < CC_LONGEST ? pause : CC_LONGEST;
    while (cc_watched.wanted && (silent < cc_watched.patience || asked < CC_QUESTIONS)) {
        began = 1e-9 * cc_nanoseconds();
        cc_rest(pause);
        ++asked;
        if (cc_host_answers(&cc_watched.address, cc_watched.nbytes, CC_ANSWER))
            silent = asked = 0;
        passed = 1e-9 * cc_nanoseconds() - began;
        if (asked) /* the time for which this process was stopped does not count */
            silent += passed < pause + CC_ANSWER ? passed : pause + CC_ANSWER;
    }
    if (!cc_watched.wanted)
        return NULL;
    cc_tell(STDERR_FILENO, cc_watched.text);
    if (!cc_watched.ends)
        return NULL;
    cc_rest(1); /* the launcher reads the text before it ends */
    /* The launcher would wait for the other host. MPI_Abort is impossible, as MPI_COMM_WORLD is gone. */
    if (cc_watched.launcher >= 0)
        cc_tell(cc_watched.launcher, "cmd=abort exitcode=1\n"); /* PMI-1 */
    if (cc_watched.daemon > 0)
        kill(cc_watched.daemon, SIGTERM);
    cc_rest(1);
    _exit(1);
}

/* Set the host that is watched when cc_watch_begin is called. Return 0, or -1. */
static int cc_watch_host(const char *host, const char *port, double patience, int ends,
                         int launcher, int daemon, const char *text)
{
    if (cc_host_address(host, port, &cc_watched.address, &cc_watched.nbytes))
        return -1;
    cc_watched.patience = patience;
    cc_watched.ends = ends;
    cc_watched.launcher = launcher;
    cc_watched.daemon = daemon;
    strncpy(cc_watched.text, text, sizeof cc_watched.text - 1);
    cc_watched.wanted = 1;
    return 0;
}

/* Start a thread that receives no signals, which are for threads of Python. Return 0, or an error. */
static int cc_start_thread(pthread_t *thread, void *(*run)(void *))
{
    sigset_t every, before;
    int error;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    error = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Watch the host that was set, if there is one, in a thread. */
static void cc_watch_begin(void)
{
    pthread_t thread;
    if (cc_watched.wanted && !cc_start_thread(&thread, cc_watch))
        pthread_detach(thread);
}

static void cc_watch_end(void)
{
    cc_watched.wanted = 0;
}

#endif
