#include "shared_window.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"

namespace parallax {

namespace {

constexpr long long kPage = 4096;
constexpr int kWindowTag = 1;

// The first member's message to the others: the location of its memfd, and the number that it contains.
struct Address {
  long long process = 0;
  long long descriptor = -1;
  uint64_t token = 0;
};

std::string Failure(const std::string& what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

void* Map(int descriptor, long long bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_DONTFORK);  // images of this process (frozen/) are without it
  return memory;
}

}  // namespace

Window::Window(char* memory, long long bytes, int members, long long part_bytes, int descriptor)
    : head_(reinterpret_cast<Head*>(memory)),
      parts_(memory + kPage),
      bytes_(bytes),
      members_(members),
      part_bytes_(part_bytes),
      descriptor_(descriptor) {}

Window::~Window() {
  Close();
  munmap(head_, bytes_);
}

Window* Window::Make(const Members& host, long long part_bytes, std::string* why) {
  const long long bytes = (kPage + (host.size() + 1) * part_bytes + kPage - 1) / kPage * kPage;
  Address address;
  void* memory = nullptr;
  int descriptor = -1;
  if (host.place == 0) {
    descriptor = memfd_create("parallax-sums", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, bytes) != 0 || fallocate(descriptor, 0, 0, bytes) != 0) {
      *why = Failure(absl::StrCat(bytes, " bytes of shared memory cannot be had"));
    } else if ((memory = Map(descriptor, bytes)) == nullptr) {
      *why = Failure("shared memory cannot be mapped");
    } else {
      std::random_device random;
      address = {getpid(), descriptor, static_cast<uint64_t>(random()) << 32 | random()};
      static_cast<Head*>(memory)->token = address.token;
    }
    for (int one = 1; one < host.size(); ++one) {
      MPI_Send(&address, sizeof(address), MPI_BYTE, host.ranks[one], kWindowTag, host.comm);
    }
  } else {
    MPI_Recv(&address, sizeof(address), MPI_BYTE, host.ranks[0], kWindowTag, host.comm, MPI_STATUS_IGNORE);
    if (address.descriptor < 0) {
      *why = "another worker of the host cannot have shared memory";
    } else {
      const std::string path = absl::StrCat("/proc/", address.process, "/fd/", address.descriptor);
      descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
      struct stat seen;
      if (descriptor < 0 || fstat(descriptor, &seen) != 0) {
        *why = Failure(absl::StrCat("shared memory cannot be opened at ", path));
      } else if (seen.st_size != bytes) {
        *why = absl::StrCat("workers of the host see different processes at ", path);
      } else if ((memory = Map(descriptor, bytes)) == nullptr) {
        *why = Failure("shared memory cannot be mapped");
      } else if (static_cast<Head*>(memory)->token != address.token) {
        *why = absl::StrCat("workers of the host see different processes at ", path);
        munmap(memory, bytes);
        memory = nullptr;
      }
    }
  }
  if (memory != nullptr) return new Window(static_cast<char*>(memory), bytes, host.size(), part_bytes, descriptor);
  if (descriptor >= 0) close(descriptor);
  return nullptr;
}

void Window::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void Window::Count(Counter* count, uint32_t last) {
  if (count->fetch_add(1, std::memory_order_acq_rel) + 1 == last) {
    syscall(SYS_futex, count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Window::Await(Counter& count, uint32_t last) {
  for (;;) {
    const uint32_t now = count.load(std::memory_order_acquire);
    if (static_cast<int32_t>(now - last) >= 0) return;
    syscall(SYS_futex, &count, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

}  // namespace parallax
