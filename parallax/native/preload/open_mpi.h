/* What open_mpi.c does for the others. */
#include <sys/types.h>
#include <sys/uio.h>

#define DESCRIPTORS 65536 /* the kernel gives the lowest that is free; what is above is refused */

/* How many microseconds a thread that waits in MPI may sleep, by PARALLAX_IDLE_US. */
long parallax_idle_us(void) __attribute__((visibility("hidden")));

/* As parallax_is_open_mpi(), of a thread's caller, which is mostly the one of before. */
int parallax_asks_open_mpi(void *caller) __attribute__((visibility("hidden")));

/* A connection has been read by readv(), with what result; tells the kernel how much more there must be to wake a reader. */
void parallax_has_read(int fd, const struct iovec *parts, int count, ssize_t size, void *caller)
    __attribute__((visibility("hidden")));

/* Whether code at this address is Open MPI's: its libraries, or a component that it has loaded. */
int parallax_is_open_mpi(void *code) __attribute__((visibility("hidden")));
