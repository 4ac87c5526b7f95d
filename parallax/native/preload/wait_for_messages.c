/* Lets a process that waits in MPI sleep until a message comes.
 *
 * Open MPI waits by asking all its connections again and again. Told that processes share cores (mpi_yield_when_idle)
 * it calls sched_yield() in between, which still takes the processor from those that compute. Loaded with LD_PRELOAD,
 * this makes such a yield wait on the descriptor that the same thread has just asked in vain, Open MPI's epoll of its
 * TCP connections: the thread sleeps until one of them has something, or PARALLAX_IDLE_US microseconds at most, in
 * which messages through shared memory may come. A job on one machine has no such connections, and Open MPI nothing to
 * ask: its yields sleep as long. 0, or no such variable, leaves sched_yield() as it is.
 *
 * Of the threads of a process that wait, one asks, and signals the others when their messages are there. Who is signalled
 * must not go on before the other has left the record of the wait, and Open MPI has it turn in a loop until then. Where
 * threads share a core, the one that turns has taken it from the one that it turns for, which a step's exchanges on one
 * machine lost a fifth of their processor time to. Here it leaves its core in between.
 */
#define _GNU_SOURCE
#include "fence.h"
#include "open_mpi.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <time.h>

typedef int (*wait_function)(int, struct epoll_event *, int, int);
typedef int (*yield_function)(void);

static __thread int asked = -1;
static __thread int came = 0; /* Open MPI yields once more before it looks whether that is all it waits for. */

/* Leaves out that a connection can be read on which nothing but the fence's answer has come. Open MPI's loop of events
 * keeps the descriptor of each with it. */
static int without_answers(struct epoll_event *events, int count) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
        struct epoll_event one = events[i];
        int is_sound = !(one.events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP));
        if ((one.events & EPOLLIN) && is_sound && parallax_fence_had_the_answer_alone(one.data.fd))
            one.events &= ~EPOLLIN;
        if (one.events) events[kept++] = one;
    }
    return kept;
}

int epoll_wait(int fd, struct epoll_event *events, int size, int timeout) {
    static wait_function next;
    if (next == NULL) next = (wait_function)dlsym(RTLD_NEXT, "epoll_wait");
    int found = next(fd, events, size, timeout);
    if (found > 0 && parallax_asks_open_mpi(__builtin_return_address(0))) found = without_answers(events, found);
    if (timeout == 0) asked = fd;
    if (found > 0) came = 1;
    return found;
}

static int yield_as_ever(void) {
    static yield_function next;
    if (next == NULL) next = (yield_function)dlsym(RTLD_NEXT, "sched_yield");
    return next();
}

int sched_yield(void) {
    long us = parallax_idle_us();
    if (us == 0 || (asked < 0 && !parallax_asks_open_mpi(__builtin_return_address(0)))) return yield_as_ever();
    if (came) {
        came = 0;
        return 0;
    }
    struct pollfd descriptor = {asked, POLLIN, 0}; /* below 0 it is left out */
    struct timespec limit = {us / 1000000, us % 1000000 * 1000};
    if (ppoll(&descriptor, 1, &limit, NULL) < 0 || descriptor.revents & POLLNVAL) asked = -1;
    return 0;
}

/* The record of a wait, as Open MPI 4.1 has it (opal/threads/wait_sync.h). */
struct wait_sync {
    volatile int count; /* messages that have not come */
    int status;
    pthread_cond_t condition;
    pthread_mutex_t lock;
    struct wait_sync *next, *prev;
    volatile bool signaling; /* somebody else is at this record */
};

typedef int (*wait_sync_function)(struct wait_sync *);

/* Open MPI's own, wherever libmpi was loaded. */
static wait_sync_function own_wait(void) {
    void *library = dlopen("libopen-pal.so.40", RTLD_LAZY | RTLD_NOLOAD);
    return (wait_sync_function)dlsym(library == NULL ? RTLD_NEXT : library, "ompi_sync_wait_mt");
}

int ompi_sync_wait_mt(struct wait_sync *sync) {
    static wait_sync_function next;
    if (next == NULL) next = own_wait();
    int status = next(sync);
    while (sync->signaling) yield_as_ever();
    return status;
}
