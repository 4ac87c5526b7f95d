/* What listen_address.c tells fence.c. */

/* The socket listens for the job: it is fenced from its listen() on. 0, or -1 and errno when it cannot be. */
int parallax_fence_listener(int fd) __attribute__((visibility("hidden")));
