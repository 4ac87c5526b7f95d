/* Identifies Open MPI's code, limits the sleep of its threads, and sets when the kernel wakes a reader of its
 * connections.
 *
 * A message arrives in pieces, and each piece would wake a reader that waits for all of it. The kernel is told the
 * number of missing bytes (SO_RCVLOWAT), up to MOST_MISSING, which Open MPI reads at once while the rest is in flight.
 */
#define _GNU_SOURCE
#include "open_mpi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LEAST_MISSING 16384 /* for less the two calls cost as much as they save */
#define MOST_MISSING 65536

long parallax_idle_us(void) {
    static long us = -1;
    if (us < 0) {
        const char *text = getenv("PARALLAX_IDLE_US");
        long found = text == NULL ? 0 : atol(text);
        us = found < 0 ? 0 : found > 1000000 ? 1000000 : found;
    }
    return us;
}

int parallax_asks_open_mpi(void *caller) {
    static __thread void *last = NULL;
    static __thread int known = 0;
    if (caller != last) {
        last = caller;
        known = parallax_is_open_mpi(caller);
    }
    return known;
}

int parallax_is_open_mpi(void *code) {
    Dl_info found;
    if (!dladdr(code, &found) || found.dli_fname == NULL) return 0;
    const char *slash = strrchr(found.dli_fname, '/');
    const char *name = slash == NULL ? found.dli_fname : slash + 1;
    return !strncmp(name, "libopen-", 8) || !strncmp(name, "libmpi", 6) || !strncmp(name, "libpmix", 7) ||
           !strncmp(name, "mca_", 4);
}

/* The bytes that a connection must have before its reader is woken, if more than 1. */
static int marks[DESCRIPTORS];

/* Open MPI reads the expected bytes of a message, and any following bytes into one more part (btl_tcp_endpoint_cache).
 */
void parallax_has_read(int fd, const struct iovec *parts, int count, ssize_t size, void *caller) {
    int why = errno;
    if ((unsigned)fd >= DESCRIPTORS || (size <= 0 && !(size < 0 && why == EAGAIN))) return;
    ssize_t missing = size < 0 ? 0 : -size;
    for (int i = 0; i < count - 1; ++i) missing += parts[i].iov_len;
    int mark = missing < LEAST_MISSING ? 1 : missing > MOST_MISSING ? MOST_MISSING : (int)missing;
    int before = marks[fd] == 0 ? 1 : marks[fd];
    if (mark == before || parallax_idle_us() == 0 || !parallax_asks_open_mpi(caller)) return;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0) marks[fd] = mark;
    errno = why;
}
