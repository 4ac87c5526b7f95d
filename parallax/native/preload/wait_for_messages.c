/* Lets a process that waits in MPI sleep until a message arrives.
 *
 * Open MPI waits by polling all its connections in a loop. With mpi_yield_when_idle (processes share cores) it calls
 * sched_yield() in between, which still takes processor time from processes that compute. Loaded with LD_PRELOAD, this
 * library makes such a yield wait on the descriptor that the same thread has just polled without result, Open MPI's
 * epoll of its TCP connections: the thread sleeps until one of them has data, or PARALLAX_IDLE_US microseconds at most,
 * because messages through shared memory may arrive meanwhile. A job on one machine has no such connections, and Open
 * MPI nothing to poll: its yields sleep as long. 0, or no such variable, leaves sched_yield() unchanged. A thread that
 * polls, and goes on or waits by itself (parallax/native/stage_messages.cc, parallax/runtime/worker/polling.py), calls
 * parallax_thread_polls(): its yields do not sleep.
 *
 * Of a process's waiting threads, one polls, and signals the others when their messages have arrived. A signalled
 * thread must not proceed before the polling thread has left the record of the wait, and Open MPI makes it spin until
 * then. Where threads share a core, the spinning thread takes it from the one that it waits for, which cost a step's
 * exchanges on one machine a fifth of their processor time. Here the spinning thread yields its core in between.
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
static __thread int is_polling = 0;
static __thread int came = 0; /* Open MPI yields once more before it checks whether its wait is over. */

/* Hides a connection from the poll if only the fence's answer has arrived. Open MPI's event loop stores the descriptor
 * of each. */
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

/* Sets whether this thread polls; returns whether it did. */
int parallax_thread_polls(int polls) {
    int before = is_polling;
    is_polling = polls;
    return before;
}

int sched_yield(void) {
    long us = parallax_idle_us();
    if (us == 0 || is_polling || (asked < 0 && !parallax_asks_open_mpi(__builtin_return_address(0)))) return yield_as_ever();
    if (came) {
        came = 0;
        return 0;
    }
    struct pollfd descriptor = {asked, POLLIN, 0}; /* a negative descriptor is ignored */
    struct timespec limit = {us / 1000000, us % 1000000 * 1000};
    if (ppoll(&descriptor, 1, &limit, NULL) < 0 || descriptor.revents & POLLNVAL) asked = -1;
    return 0;
}

/* The record of a wait, as in Open MPI 4.1 (opal/threads/wait_sync.h). */
struct wait_sync {
    volatile int count; /* missing messages */
    int status;
    pthread_cond_t condition;
    pthread_mutex_t lock;
    struct wait_sync *next, *prev;
    volatile bool signaling; /* another thread is accessing this record */
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
