/* What fence.c does for the others. */

/* The socket listens for the job: it is fenced from its listen() on. 0, or -1 and errno when it cannot be. */
int parallax_fence_listener(int fd) __attribute__((visibility("hidden")));

/* Whether all that has come on a connection is the answer of who accepted it, which is taken then. */
int parallax_fence_had_the_answer_alone(int fd) __attribute__((visibility("hidden")));
