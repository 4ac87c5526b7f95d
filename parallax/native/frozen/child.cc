#include "child.h"

#include <asm/unistd.h>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

namespace parallax_frozen {
namespace {

constexpr int kSocket = 0;       // the only open file
constexpr int kLookMs = 1000;    // interval of checks for the parent: another of its processes may keep the socket open
constexpr int kMostFiles = 65536;  // that are closed one by one, if the kernel has no close_range
constexpr int kHeadBytes = 192;  // of a line of /proc/self/maps: all but a long path
constexpr int kTextBytes = 4096;

// A system call that touches no memory of the C library, not even errno.
long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

[[noreturn]] void Leave() {
  for (;;) Call(__NR_exit_group, 0);
}

void KeepSocketOnly(int socket) {
  if (socket != kSocket) Call(__NR_dup2, socket, kSocket);
  if (Call(__NR_close_range, kSocket + 1, ~0u, 0) == 0) return;
  for (int file = kSocket + 1; file < kMostFiles; ++file) Call(__NR_close, file);
}

// Releases memory of [begin, end) except the kept spans.
void GiveBack(const Start& start, uint64_t begin, uint64_t end) {
  for (uint64_t i = 0; i < start.spans && begin < end; ++i) {
    const Span& kept = start.kept[i];
    if (kept.end <= begin) continue;
    if (kept.begin >= end) break;
    if (kept.begin > begin) Call(__NR_madvise, begin, kept.begin - begin, MADV_DONTNEED);
    begin = kept.end;
  }
  if (begin < end) Call(__NR_madvise, begin, end - begin, MADV_DONTNEED);
}

uint64_t Number(const char** text, int base) {
  uint64_t value = 0;
  for (;; ++*text) {
    const char c = **text;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : base;
    if (digit >= base) return value;
    value = value * base + digit;
  }
}

// One line of /proc/self/maps: `begin-end rw-p offset device inode   name`.
void TakeLine(const Start& start, const char* text) {
  const uint64_t begin = Number(&text, 16);
  const uint64_t end = Number(&++text, 16);
  const char* rights = ++text;
  if (rights[0] != 'r' || rights[1] != 'w' || rights[3] != 'p') return;
  for (int word = 0; word < 3; ++word) {
    while (*text != 0 && *text != ' ') ++text;
    if (*text == ' ') ++text;
  }
  if (Number(&text, 10) != 0) return;  // of a file
  while (*text == ' ') ++text;
  const bool is_named = text[0] != 0;
  if (is_named && !(text[0] == '[' && (text[1] == 'h' || text[1] == 'a'))) return;  // except [heap] and [anon:...]
  GiveBack(start, begin, end);
}

// Otherwise every page of the parent that it writes later would exist twice, whether frozen or not.
void GiveRestBack(const Start& start) {
  const long file = Call(__NR_open, reinterpret_cast<long>("/proc/self/maps"), O_RDONLY);
  if (file < 0) return;
  char text[kTextBytes], head[kHeadBytes];
  int length = 0;
  for (;;) {
    const long count = Call(__NR_read, file, reinterpret_cast<long>(text), kTextBytes);
    if (count <= 0) break;
    for (long i = 0; i < count; ++i) {
      if (text[i] == '\n') {
        head[length] = 0;
        TakeLine(start, head);
        length = 0;
      } else if (length < kHeadBytes - 1) {
        head[length++] = text[i];
      }
    }
  }
  Call(__NR_close, file);
}

// Waits until the socket is ready.
void Await(const Start& start, short event) {
  for (;;) {
    pollfd waited{kSocket, event, 0};
    if (Call(__NR_poll, reinterpret_cast<long>(&waited), 1, kLookMs) > 0) return;
    if (Call(__NR_getppid) != start.parent) Leave();
  }
}

// Transfers all bytes through the socket; the process ends when its other end is closed.
void Move(const Start& start, long number, uint64_t address, uint64_t size, short event) {
  while (size > 0) {
    const long moved = Call(number, kSocket, address, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (moved > 0) {
      address += moved;
      size -= moved;
    } else if (moved == -EAGAIN) {
      Await(start, event);
    } else if (moved != -EINTR) {
      Leave();
    }
  }
}

}  // namespace

void Serve(const Start& start) {
  Call(__NR_prctl, PR_SET_NAME, reinterpret_cast<long>("parallax-image"));
  KeepSocketOnly(start.socket);
  GiveRestBack(start);
  for (;;) {
    Request request;
    Move(start, __NR_recvfrom, reinterpret_cast<uint64_t>(&request), sizeof(request), POLLIN);
    const Span &wanted = request.wanted, &over = request.over;
    Move(start, __NR_sendto, wanted.begin, wanted.end - wanted.begin, POLLOUT);
    if (over.begin < over.end) Call(__NR_madvise, over.begin, over.end - over.begin, MADV_DONTNEED);
  }
}

}  // namespace parallax_frozen
