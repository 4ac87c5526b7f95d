#include "image.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace parallax_frozen {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kSecondMs = 1000, kReapMs = 5000;  // a killed process ends within the latter
constexpr uint64_t kStackBytes = 256 << 10, kAroundBytes = 64 << 10;  // thread memory that the new process may touch

uint64_t Down(uint64_t address) { return address & ~(kPage - 1); }
uint64_t Up(uint64_t address) { return Down(address + kPage - 1); }

absl::Status Cannot(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, " failed: ", std::strerror(errno)));
}

// Whole pages, ascending, without overlaps.
std::vector<Span> Pages(std::vector<Span> spans) {
  for (Span& span : spans) span = {Down(span.begin), Up(span.end)};
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> joined;
  for (const Span& span : spans) {
    if (!joined.empty() && span.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, span.end);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

// Clones the process, which serves from then on; returns its process id. It sends no signal when it ends, so that code
// that waits for its own children does not see it, and blocks all signals but SIGKILL: the signals that end the job's
// processes end its parent.
__attribute__((noinline)) absl::StatusOr<pid_t> Clone(std::vector<Span> kept, int socket) {
  const auto frame = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  const auto thread = reinterpret_cast<uint64_t>(__builtin_thread_pointer());
  kept.push_back({frame - kStackBytes, frame + kAroundBytes});
  kept.push_back({thread - kAroundBytes, thread + kAroundBytes});
  const uint64_t size = Up(sizeof(Start) + (kept.size() + 1) * sizeof(Span));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Cannot("mmap");
  const auto begin = reinterpret_cast<uint64_t>(memory);
  kept.push_back({begin, begin + size});
  const std::vector<Span> pages = Pages(std::move(kept));
  Start* start = static_cast<Start*>(memory);
  start->socket = socket;
  start->parent = getpid();
  start->spans = pages.size();
  std::copy(pages.begin(), pages.end(), start->kept);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const long process = syscall(SYS_clone, 0, 0, 0, 0, 0);  // fork would run the libraries' fork handlers
  if (process == 0) Serve(*start);
  const int failure = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  munmap(memory, size);
  errno = failure;
  if (process < 0) return Cannot("A copy of the process by clone");
  return static_cast<pid_t>(process);
}

std::mutex& RegistryMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::map<std::string, std::shared_ptr<Image>>& Registry() {
  static auto* registry = new std::map<std::string, std::shared_ptr<Image>>;
  return *registry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Image>> Image::Make(const std::string& name, std::vector<Span> buffers) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Cannot("socketpair");
  absl::StatusOr<pid_t> process = Clone(buffers, ends[1]);
  close(ends[1]);
  if (!process.ok()) {
    close(ends[0]);
    return process.status();
  }
  return std::shared_ptr<Image>(new Image(name, std::move(buffers), *process, ends[0]));
}

Image::~Image() {
  shutdown(socket_, SHUT_RDWR);  // the process ends, even if another process has the socket too
  close(socket_);
  if (!is_reaped_) kill(process_, SIGKILL);  // also if it is stopped
  Reap();
}

// Waits for the end of the process, with a timeout: a process that waits for a disk in the kernel does not end.
void Image::Reap() {
  for (int waited = 0; !is_reaped_ && waited < kReapMs; ++waited) {
    is_reaped_ = waitpid(process_, &end_, __WALL | WNOHANG) != 0;
    if (!is_reaped_) poll(nullptr, 0, 1);
  }
}

absl::Status Image::Ended() {
  Reap();
  const bool is_killed = is_reaped_ && WIFSIGNALED(end_);
  return absl::AbortedError(absl::StrCat("Process ", process_, ", which held the image ", name_, ", has ended",
                                         is_killed ? absl::StrCat(": signal ", WTERMSIG(end_), " killed it.") : "."));
}

absl::Status Image::Check(int64_t buffer, int64_t offset, int64_t size) const {
  const auto count = static_cast<int64_t>(buffers_.size());
  if (buffer < 0 || buffer >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("The image ", name_, " has buffers 0 to ", count - 1, ", and buffer ", buffer, " was asked for."));
  }
  const auto length = static_cast<int64_t>(buffers_[buffer].end - buffers_[buffer].begin);
  if (offset < 0 || size < 0 || offset > length || size > length - offset) {
    return absl::InvalidArgumentError(absl::StrCat("Buffer ", buffer, " of the image ", name_, " has ", length,
                                                   " bytes, and ", size, " from byte ", offset, " on were asked for."));
  }
  if (size > 0 && offset < over_[buffer]) {
    return absl::FailedPreconditionError(absl::StrCat("Bytes of an image are read in order, and of buffer ", buffer,
                                                      " of the image ", name_, " those before byte ", over_[buffer],
                                                      " are gone; byte ", offset, " was asked for."));
  }
  return absl::OkStatus();
}

absl::Status Image::Read(int64_t buffer, int64_t offset, int64_t size, bool is_last, int silent_s, char* into) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = Check(buffer, offset, size); !status.ok() || size == 0) return status;
  if (!lost_.ok()) return lost_;
  const Span& all = buffers_[buffer];
  Request request{{all.begin + offset, all.begin + offset + size}, {0, 0}};
  if (is_last) {
    // A page shared with memory before or behind the buffer is never released.
    request.over = {std::max(Down(request.wanted.begin), Up(all.begin)), Down(request.wanted.end)};
    over_[buffer] = offset + size;
  }
  if (send(socket_, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) return lost_ = Ended();
  int silent = 0;  // seconds without a byte in which this process ran: both may be stopped together
  while (size > 0) {
    const ssize_t got = recv(socket_, into, size, MSG_DONTWAIT);
    if (got > 0) {
      into += got;
      size -= got;
      silent = 0;
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (silent >= silent_s) {
        return lost_ = absl::DeadlineExceededError(absl::StrCat("Process ", process_, ", which holds the image ",
                                                                name_, ", has given no byte for ", silent_s, " s."));
      }
      pollfd waited{socket_, POLLIN, 0};
      if (poll(&waited, 1, kSecondMs) == 0) ++silent;
    } else {
      return lost_ = Ended();
    }
  }
  return absl::OkStatus();
}

absl::Status Keep(const std::string& name, std::vector<Span> buffers, pid_t* process) {
  const std::lock_guard<std::mutex> lock(RegistryMutex());
  if (Registry().count(name) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("Each image has a name of its own, and there is one named ", name));
  }
  auto made = Image::Make(name, std::move(buffers));
  if (!made.ok()) return made.status();
  *process = (*made)->process();
  Registry()[name] = *std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Image>> Find(const std::string& name) {
  const std::lock_guard<std::mutex> lock(RegistryMutex());
  const auto found = Registry().find(name);
  if (found == Registry().end()) {
    return absl::NotFoundError(absl::StrCat("This process has no image named ", name));
  }
  return found->second;
}

void Forget(const std::string& name) {
  std::shared_ptr<Image> last;  // destroyed outside the lock
  const std::lock_guard<std::mutex> lock(RegistryMutex());
  const auto found = Registry().find(name);
  if (found == Registry().end()) return;
  last = std::move(found->second);
  Registry().erase(found);
}

}  // namespace parallax_frozen
