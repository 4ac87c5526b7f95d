// The process that holds an image: its start parameters, and the requests it serves.
#ifndef PARALLAX_NATIVE_FROZEN_CHILD_H_
#define PARALLAX_NATIVE_FROZEN_CHILD_H_

#include <cstddef>
#include <cstdint>

namespace parallax_frozen {

// Addresses from `begin` up to `end`.
struct Span {
  uint64_t begin, end;
};

// Requests the bytes of `wanted`; pages of `over` will not be requested again, and are released.
struct Request {
  Span wanted, over;
};

// The start parameters of the process, in memory that no other code writes.
struct Start {
  int socket;      // receives requests, and sends bytes
  int parent;      // its end ends this process
  uint64_t spans;  // number of spans
  Span kept[];     // ascending, of whole pages: all anonymous memory outside them is released
};

// Body of the process. Between a clone of a process with threads and its end, it may use nothing that another thread
// may have left locked: no memory allocation, no library function. So it makes system calls only.
[[noreturn]] void Serve(const Start& start);

}  // namespace parallax_frozen

#endif
