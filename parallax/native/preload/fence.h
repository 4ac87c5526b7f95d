/* What fence.c is told and asked by the others, and tells them. */
#include <sys/types.h>
#include <sys/uio.h>

#define DESCRIPTORS 65536 /* the kernel gives the lowest that is free; what is above is refused */

/* The socket listens for the job: it is fenced from its listen() on. 0, or -1 and errno when it cannot be. */
int parallax_fence_listener(int fd) __attribute__((visibility("hidden")));

/* A connection has been read by readv(), with what result; tells the kernel how much more there must be to wake a reader. */
void parallax_has_read(int fd, const struct iovec *parts, int count, ssize_t size, void *caller)
    __attribute__((visibility("hidden")));

/* Whether code at this address is Open MPI's: its libraries, or a component that it has loaded. */
int parallax_is_open_mpi(void *code) __attribute__((visibility("hidden")));

/* Whether all that has come on a connection is the answer of who accepted it, which is taken then. */
int parallax_fence_had_the_answer_alone(int fd) __attribute__((visibility("hidden")));
