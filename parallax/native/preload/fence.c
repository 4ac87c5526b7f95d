/* Admits only processes of the job to its listening sockets: TensorFlow's servers and Open MPI.
 *
 * Both communicate with any peer that reaches their port. Loaded with LD_PRELOAD, and with the job's secret in
 * PARALLAX_SECRET (64 hexadecimal digits), this library exchanges one message each way before a connection's own bytes:
 *
 *   connecting side sends    a nonce, and the MAC of "connect", the addresses of both ends, and the nonce
 *   accepting side answers   the MAC of "accept", the same addresses, and the nonce
 *
 * A MAC is HMAC-SHA256 under the secret, which is never sent. A message is invalid on a connection between other
 * addresses and ports, and the accepting side accepts a nonce once, so that a recorded message is useless. Two hosts
 * may have equal addresses (of a bridge for containers, or loopback), so between equal addresses the MACs cover the
 * kernel's boot id too: both ends are on one host. An attacker who can send packets in the name of both ends can relay
 * messages. The following bytes are neither encrypted nor authenticated.
 *
 * Fenced are sockets whose address was restricted (listen_address.c) and those on which Open MPI listens. A process
 * that connects to an address of parallax_fence_peer, or Open MPI's code that connects, authenticates itself. All other
 * sockets of a process are left alone.
 *
 * A stranger blocks nobody. A fenced socket reports a connection only when data has arrived (TCP_DEFER_ACCEPT), and the
 * first message is one segment: if it is incomplete or wrong, accept() closes the connection and examines the next. The
 * connecting side sends it when it learns that the connection is established, be it from connect() or from
 * getsockopt(SO_ERROR), and checks the answer before it reads anything else.
 *
 * Open MPI is not notified of readable data while only the answer has arrived (wait_for_messages.c): it would read
 * repeatedly for the greeting that follows, do nothing else meanwhile, and two processes that connect to each other
 * simultaneously would deadlock.
 *
 * It requires Linux 4.12, whose cookies identify sockets.
 */
#define _GNU_SOURCE
#include "fence.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "open_mpi.h"
#include "sha256.h"

#define PEERS 8192
#define NONCE_BYTES 16
#define HOST_BYTES 36 /* of the boot id, as text */
#define DEFER_S 120 /* a connection without data is reported after this time, and closed */

enum { OTHER, LISTENER, CONNECTING, PROVEN, UNANSWERED, REFUSED };

/* An end of a connection; an IPv4 address is in its mapped form. */
struct end {
    uint8_t address[16];
    uint16_t port; /* in network byte order */
} __attribute__((packed));

struct hello {
    uint8_t nonce[NONCE_BYTES];
    uint8_t mac[MAC_BYTES];
};

static uint8_t key[MAC_BYTES];
static int has_key;
static uint8_t host[HOST_BYTES];
static struct end peers[PEERS];
static atomic_int num_peers;

/* The kind of a descriptor. A number is reused after close(), so the kernel's cookie identifies the socket. */
static _Atomic uint8_t kinds[DESCRIPTORS];
static uint64_t cookies[DESCRIPTORS];
static uint8_t nonces[DESCRIPTORS][NONCE_BYTES];

#define NEXT(name)                                                                   \
    static __typeof__(&name) next;                                                   \
    if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    NEXT(getsockopt);
    return next(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

static void need(int is_met, const char *what) {
    if (is_met) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static void read_key(const char *text) {
    size_t digits = 0;
    while (isxdigit((unsigned char)text[digits])) ++digits;
    need(digits == 2 * MAC_BYTES && text[digits] == '\0', "PARALLAX_SECRET must be 64 hexadecimal digits, and is not.");
    for (int i = 0; i < MAC_BYTES; ++i) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        key[i] = byte;
    }
}

static int read_host(void) {
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size = 0;
    NEXT(read);
    if (file >= 0) size = next(file, host, sizeof host);
    if (file >= 0) close(file);
    return size == sizeof host;
}

static int has_cookies(void) {
    int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int has = one < 0 || cookie_of(one) != 0; /* a process that may open no socket fences none */
    if (one >= 0) close(one);
    return has;
}

/* Called when the library is loaded; and by a forked process that learns of its job only then. */
__attribute__((constructor)) void parallax_prepare_fence(void) {
    const char *text = getenv("PARALLAX_SECRET");
    if (text == NULL) return;
    read_key(text);
    need(has_cookies(), "A job whose processes prove that they are its own needs Linux 4.12 or later on every host.");
    need(read_host(), "A job whose processes prove that they are its own must read /proc/sys/kernel/random/boot_id.");
    has_key = 1;
}

/* The cookie under which a descriptor's kind is stored; 0 and errno on failure. */
static uint64_t kept_by(int fd) {
    uint64_t cookie = (unsigned)fd < DESCRIPTORS ? cookie_of(fd) : 0;
    if (cookie == 0) errno = (unsigned)fd < DESCRIPTORS ? EOPNOTSUPP : EMFILE;
    return cookie;
}

static int kind_of(int fd) {
    if ((unsigned)fd >= DESCRIPTORS) return OTHER;
    int kind = atomic_load_explicit(&kinds[fd], memory_order_acquire);
    if (kind == OTHER) return OTHER;
    uint64_t cookie = cookie_of(fd);
    return cookie != 0 && cookies[fd] == cookie ? kind : OTHER;
}

static int set_kind(int fd, int kind) {
    uint64_t cookie = kept_by(fd);
    if (cookie == 0) return -1;
    cookies[fd] = cookie;
    atomic_store_explicit(&kinds[fd], kind, memory_order_release);
    return 0;
}

static int is_tcp(int fd) {
    int protocol = 0;
    socklen_t size = sizeof protocol;
    NEXT(getsockopt);
    return next(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

/* Whether a socket's address is IPv4 or IPv6; writes it into `end`. */
static int as_end(const void *found, socklen_t size, struct end *end) {
    const struct sockaddr *address = found;
    memset(end, 0, sizeof *end);
    if (size < sizeof address->sa_family) return 0;
    if (address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *ipv4 = found;
        end->address[10] = end->address[11] = 0xff;
        memcpy(end->address + 12, &ipv4->sin_addr, 4);
        end->port = ipv4->sin_port;
        return 1;
    }
    if (address->sa_family == AF_INET6 && size >= offsetof(struct sockaddr_in6, sin6_scope_id)) {
        const struct sockaddr_in6 *ipv6 = found;
        memcpy(end->address, &ipv6->sin6_addr, 16);
        end->port = ipv6->sin6_port;
        return 1;
    }
    return 0;
}

/* Makes connections to a port of a numeric address authenticate themselves; -1 if it is no address, -2 if there is no
 * space for one more. */
int parallax_fence_peer(const char *address, int port) {
    struct sockaddr_storage text = {0};
    struct sockaddr_in *ipv4 = (void *)&text;
    struct sockaddr_in6 *ipv6 = (void *)&text;
    struct end end;
    if (inet_pton(AF_INET, address, &ipv4->sin_addr) == 1) {
        ipv4->sin_family = AF_INET;
        ipv4->sin_port = htons(port);
    } else if (inet_pton(AF_INET6, address, &ipv6->sin6_addr) == 1) {
        ipv6->sin6_family = AF_INET6;
        ipv6->sin6_port = htons(port);
    }
    if (!as_end(&text, sizeof text, &end)) return -1;
    int at = atomic_load(&num_peers);
    if (at == PEERS) return -2;
    peers[at] = end;
    atomic_store(&num_peers, at + 1);
    return 0;
}

/* Whether this process has the job's secret. */
int parallax_is_fenced(void) { return has_key; }

static int is_peer(const struct sockaddr *address, socklen_t size) {
    struct end end;
    if (!as_end(address, size, &end)) return 0;
    for (int i = atomic_load(&num_peers); i-- > 0;)
        if (!memcmp(&peers[i], &end, sizeof end)) return 1;
    return 0;
}

/* The MAC of one side's message on a connection; -1 if it is not connected. */
static int mac_of(int fd, int is_client, const char *side, const uint8_t *nonce, uint8_t mac[MAC_BYTES]) {
    struct __attribute__((packed)) {
        char side[8];
        struct end client, server;
        uint8_t host[HOST_BYTES]; /* if both are on one host */
        uint8_t nonce[NONCE_BYTES];
    } text;
    struct sockaddr_storage own, other;
    socklen_t own_size = sizeof own, other_size = sizeof other;
    if (getsockname(fd, (void *)&own, &own_size) != 0 || getpeername(fd, (void *)&other, &other_size) != 0) return -1;
    memset(&text, 0, sizeof text);
    memcpy(text.side, side, strlen(side));
    if (!as_end(&own, own_size, is_client ? &text.client : &text.server)) return -1;
    if (!as_end(&other, other_size, is_client ? &text.server : &text.client)) return -1;
    if (!memcmp(text.client.address, text.server.address, sizeof text.client.address))
        memcpy(text.host, host, sizeof host);
    memcpy(text.nonce, nonce, NONCE_BYTES);
    parallax_hmac(key, sizeof key, (const void *)&text, sizeof text, mac);
    return 0;
}

/* Compares in constant time. */
static int are_equal(const uint8_t *one, const uint8_t *other) {
    uint8_t difference = 0;
    for (int i = 0; i < MAC_BYTES; ++i) difference |= one[i] ^ other[i];
    return difference == 0;
}

/* The side that has just connected sends the first message; the empty buffer of a new socket has space for it. */
static int prove(int fd) {
    struct hello hello;
    if (getrandom(hello.nonce, sizeof hello.nonce, 0) != sizeof hello.nonce) return -1;
    if (mac_of(fd, 1, "connect", hello.nonce, hello.mac) != 0) return -1;
    memcpy(nonces[fd], hello.nonce, sizeof hello.nonce);
    if (set_kind(fd, UNANSWERED) != 0) return -1;
    return send(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof hello ? 0 : -1;
}

/* Whether no earlier connection with this nonce has been admitted; records the nonce. */
static int is_new(const uint8_t *nonce) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t(*taken)[NONCE_BYTES];
    static size_t count, room;
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < count && memcmp(taken[at], nonce, NONCE_BYTES)) ++at;
    int keeps = at == count;
    if (keeps && count == room) {
        size_t more = room == 0 ? 64 : 2 * room;
        void *larger = realloc(taken, more * NONCE_BYTES);
        keeps = larger != NULL;
        if (keeps) taken = larger, room = more;
    }
    if (keeps) memcpy(taken[count++], nonce, NONCE_BYTES);
    pthread_mutex_unlock(&lock);
    return keeps;
}

/* Whether an accepted connection belongs to the job; answers if it does. */
static int is_let_through(int fd) {
    struct hello hello;
    uint8_t mac[MAC_BYTES];
    NEXT(recv);
    if (next(fd, &hello, sizeof hello, MSG_DONTWAIT) != sizeof hello) return 0;
    if (mac_of(fd, 0, "connect", hello.nonce, mac) != 0 || !are_equal(mac, hello.mac)) return 0;
    if (!is_new(hello.nonce)) return 0;
    if (mac_of(fd, 0, "accept", hello.nonce, mac) != 0) return 0;
    return send(fd, mac, sizeof mac, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof mac;
}

/* Checks the answer, which must be complete; 0 if reading may continue, else -1 and errno. */
static int take_answer(int fd, int flags) {
    uint8_t answer[MAC_BYTES], wanted[MAC_BYTES];
    int kind = kind_of(fd), left = OTHER; /* also of a socket that has this number now */
    if (kind == UNANSWERED) {
        NEXT(recv);
        ssize_t size = next(fd, answer, sizeof answer, MSG_WAITALL | (flags & MSG_DONTWAIT));
        if (size < 0) return -1;
        kind = left = PROVEN;
        if (size > 0 && (size < MAC_BYTES || mac_of(fd, 1, "accept", nonces[fd], wanted) != 0 || !are_equal(answer, wanted)))
            kind = REFUSED;
    }
    if (kind == REFUSED) {
        shutdown(fd, SHUT_RDWR);
        set_kind(fd, REFUSED);
        errno = ECONNRESET;
        return -1;
    }
    atomic_store_explicit(&kinds[fd], left, memory_order_release);
    return 0;
}

int parallax_fence_had_the_answer_alone(int fd) {
    uint8_t come[MAC_BYTES + 1];
    if ((unsigned)fd >= DESCRIPTORS || atomic_load_explicit(&kinds[fd], memory_order_relaxed) != UNANSWERED) return 0;
    if (kind_of(fd) != UNANSWERED) return 0;
    NEXT(recv);
    ssize_t size = next(fd, come, sizeof come, MSG_PEEK | MSG_DONTWAIT);
    if (size < 1 || size > MAC_BYTES) return 0; /* it is closed, or there is more */
    return size < MAC_BYTES || take_answer(fd, MSG_DONTWAIT) == 0;
}

/* Returns 0 at the cost of a load, for all but new connections. */
static inline int may_not_read(int fd, int flags) {
    if ((unsigned)fd >= DESCRIPTORS || atomic_load_explicit(&kinds[fd], memory_order_relaxed) < UNANSWERED) return 0;
    return take_answer(fd, flags);
}

int parallax_fence_listener(int fd) { return has_key ? set_kind(fd, LISTENER) : 0; }

int listen(int fd, int backlog) {
    NEXT(listen);
    if (has_key && is_tcp(fd) && (kind_of(fd) == LISTENER || parallax_is_open_mpi(__builtin_return_address(0)))) {
        int seconds = DEFER_S;
        if (set_kind(fd, LISTENER) != 0 || setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds) != 0)
            return -1;
        backlog = SOMAXCONN; /* silent strangers occupy this queue too */
    }
    return next(fd, backlog);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    NEXT(accept4);
    socklen_t room = size == NULL ? 0 : *size;
    for (;;) {
        if (size != NULL) *size = room;
        int made = next(fd, address, size, flags);
        if (made < 0 || kind_of(fd) != LISTENER || is_let_through(made)) return made;
        close(made);
        struct pollfd more = {fd, POLLIN, 0};
        if (poll(&more, 1, 0) <= 0) { /* a listener that waits in accept() was told of a connection by select() */
            errno = EAGAIN;
            return -1;
        }
    }
}

int accept(int fd, struct sockaddr *address, socklen_t *size) { return accept4(fd, address, size, 0); }

int connect(int fd, const struct sockaddr *address, socklen_t size) {
    NEXT(connect);
    int proves = has_key && address != NULL && is_tcp(fd) &&
                 (is_peer(address, size) || parallax_is_open_mpi(__builtin_return_address(0)));
    if (proves && kept_by(fd) == 0) return -1;
    int result = next(fd, address, size), why = errno;
    if (!proves) return result;
    if (result == 0) {
        if (kind_of(fd) >= PROVEN || prove(fd) == 0) return 0; /* the result may be queried repeatedly */
        why = ECONNRESET;
    } else if ((why == EINPROGRESS || why == EINTR) && set_kind(fd, CONNECTING) != 0) {
        return -1;
    }
    errno = why;
    return -1;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
    NEXT(getsockopt);
    int result = next(fd, level, name, value, size);
    if (result != 0 || level != SOL_SOCKET || name != SO_ERROR || *(int *)value != 0) return result;
    struct sockaddr_storage other;
    socklen_t other_size = sizeof other;
    if (kind_of(fd) == CONNECTING && getpeername(fd, (void *)&other, &other_size) == 0 && prove(fd) != 0)
        *(int *)value = ECONNRESET;
    return 0;
}

ssize_t recv(int fd, void *bytes, size_t size, int flags) {
    NEXT(recv);
    return may_not_read(fd, flags) ? -1 : next(fd, bytes, size, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    NEXT(recvmsg);
    return may_not_read(fd, flags) ? -1 : next(fd, message, flags);
}

ssize_t read(int fd, void *bytes, size_t size) {
    NEXT(read);
    return may_not_read(fd, 0) ? -1 : next(fd, bytes, size);
}

ssize_t readv(int fd, const struct iovec *parts, int count) {
    NEXT(readv);
    if (may_not_read(fd, 0)) return -1;
    ssize_t size = next(fd, parts, count);
    parallax_has_read(fd, parts, count, size, __builtin_return_address(0));
    return size;
}

ssize_t recvfrom(int fd, void *bytes, size_t size, int flags, struct sockaddr *address, socklen_t *room) {
    NEXT(recvfrom);
    return may_not_read(fd, flags) ? -1 : next(fd, bytes, size, flags, address, room);
}

/* The C library's replacements of these in programs that are built with checks. */
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
ssize_t __read_chk(int, void *, size_t, size_t);

ssize_t __recv_chk(int fd, void *bytes, size_t size, size_t room, int flags) {
    NEXT(__recv_chk);
    return may_not_read(fd, flags) ? -1 : next(fd, bytes, size, room, flags);
}

ssize_t __recvfrom_chk(int fd, void *bytes, size_t size, size_t room, int flags, struct sockaddr *address,
                       socklen_t *address_room) {
    NEXT(__recvfrom_chk);
    return may_not_read(fd, flags) ? -1 : next(fd, bytes, size, room, flags, address, address_room);
}

ssize_t __read_chk(int fd, void *bytes, size_t size, size_t room) {
    NEXT(__read_chk);
    return may_not_read(fd, 0) ? -1 : next(fd, bytes, size, room);
}
