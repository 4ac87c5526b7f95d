/* Interface of open_mpi.c. */
#include <sys/types.h>
#include <sys/uio.h>

#define DESCRIPTORS 65536 /* the kernel returns the lowest free number; higher ones are refused */

/* The longest sleep of a thread that waits in MPI, in microseconds, from PARALLAX_IDLE_US. */
long parallax_idle_us(void) __attribute__((visibility("hidden")));

/* Same as parallax_is_open_mpi(), for a thread's caller, which is mostly the previous one. */
int parallax_asks_open_mpi(void *caller) __attribute__((visibility("hidden")));

/* Processes the result of readv() on a connection; tells the kernel how many more bytes must arrive to wake a reader.
 */
void parallax_has_read(int fd, const struct iovec *parts, int count, ssize_t size, void *caller)
    __attribute__((visibility("hidden")));

/* Whether code at this address is Open MPI's: its libraries, or a component that it has loaded. */
int parallax_is_open_mpi(void *code) __attribute__((visibility("hidden")));
