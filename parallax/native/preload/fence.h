/* What listen_address.c tells fence.c. */

/* The socket listens for the job: it is fenced from its listen() on. */
void parallax_fence_listener(int fd) __attribute__((visibility("hidden")));
