/* Makes TensorFlow's servers listen on one address instead of all.
 *
 * tf.distribute.Server requests 0.0.0.0 whatever its cluster says. Loaded with LD_PRELOAD, this library replaces the
 * wildcard address in bind() of a stream socket by the one in PARALLAX_LISTEN_ADDRESS (a numeric IPv4 or IPv6 address).
 * An IPv4 address on an IPv6 socket is bound in its mapped form. A bind that cannot be restricted fails instead of
 * listening everywhere. Such a socket is fenced if the process has the job's secret (fence.c). With a port in
 * PARALLAX_LISTEN_PORT only that port is restricted, because other threads may open their own sockets meanwhile.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "fence.h"

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

static int is_stream(int fd) {
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

static int is_mapped_any(const struct in6_addr *address) {
    return IN6_IS_ADDR_V4MAPPED(address) && memcmp(address->s6_addr + 12, "\0\0\0\0", 4) == 0;
}

/* Writes the configured address into an IPv6 one; 0 if the text is no address. */
static int as_ipv6(const char *wanted, struct in6_addr *result) {
    struct in_addr ipv4;
    if (inet_pton(AF_INET, wanted, &ipv4) != 1) return inet_pton(AF_INET6, wanted, result) == 1;
    memset(result, 0, sizeof *result);
    result->s6_addr[10] = result->s6_addr[11] = 0xff;
    memcpy(result->s6_addr + 12, &ipv4, sizeof ipv4);
    return 1;
}

/* Whether a bind to this port, in network byte order, must be restricted. */
static int is_wanted(in_port_t port) {
    const char *wanted = getenv("PARALLAX_LISTEN_PORT");
    return wanted == NULL || *wanted == '\0' || atoi(wanted) == ntohs(port);
}

int bind(int fd, const struct sockaddr *address, socklen_t size) {
    static bind_function next;
    if (next == NULL) next = (bind_function)dlsym(RTLD_NEXT, "bind");
    const char *wanted = getenv("PARALLAX_LISTEN_ADDRESS");
    if (wanted == NULL || *wanted == '\0' || address == NULL || !is_stream(fd)) return next(fd, address, size);
    if (address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in own;
        memcpy(&own, address, sizeof own);
        if (own.sin_addr.s_addr == htonl(INADDR_ANY) && is_wanted(own.sin_port)) {
            if (inet_pton(AF_INET, wanted, &own.sin_addr) != 1) {
                errno = EADDRNOTAVAIL;
                return -1;
            }
            return parallax_fence_listener(fd) != 0 ? -1 : next(fd, (const struct sockaddr *)&own, sizeof own);
        }
    } else if (address->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 own;
        memcpy(&own, address, sizeof own);
        if ((IN6_IS_ADDR_UNSPECIFIED(&own.sin6_addr) || is_mapped_any(&own.sin6_addr)) && is_wanted(own.sin6_port)) {
            if (!as_ipv6(wanted, &own.sin6_addr)) {
                errno = EADDRNOTAVAIL;
                return -1;
            }
            return parallax_fence_listener(fd) != 0 ? -1 : next(fd, (const struct sockaddr *)&own, sizeof own);
        }
    }
    return next(fd, address, size);
}
