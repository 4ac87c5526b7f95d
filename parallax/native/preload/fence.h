/* Interface of fence.c. */

/* Fences the socket, which listens for the job, from its listen() on. 0, or -1 and errno on failure. */
int parallax_fence_listener(int fd) __attribute__((visibility("hidden")));

/* Whether all data received on a connection is the accepting side's answer, which is then consumed. */
int parallax_fence_had_the_answer_alone(int fd) __attribute__((visibility("hidden")));
